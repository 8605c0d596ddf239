//! The house has floors: a room imports from lower floors only, and every dependency has its homes.

use std::{collections::BTreeSet, fs, path::Path};

/// Rooms from the ground up. Those on one floor do not know each other.
const FLOORS: [&[&str]; 7] = [
    &["error"],
    &["text", "audio", "manifest", "onnx", "codes"],
    &["prompt", "sampler", "graphs", "export"],
    &["utterance"],
    &["model"],
    &["draw", "eval"],
    &["scheduler"],
];

/// Where each dependency may be named. The doors, `cli` and `main`, are a crate of their own and see only what is public.
const HOMES: [(&str, &[&str]); 21] = [
    ("ort", &["graphs"]),
    ("half", &["export", "graphs"]),
    ("libloading", &["graphs"]),
    ("rustix", &["export", "graphs"]),
    ("sha2", &["export", "graphs"]),
    ("miniz_oxide", &["graphs"]),
    ("tokenizers", &["prompt"]),
    ("rand", &["sampler"]),
    ("symphonia", &["audio"]),
    ("opus_rs", &["audio"]),
    ("rubato", &["audio"]),
    ("tempfile", &["audio", "export", "graphs"]),
    ("memmap2", &["export", "onnx"]),
    ("prost", &["export", "onnx"]),
    ("safetensors", &["export"]),
    ("serde_json", &["manifest", "cli", "export"]),
    ("ndarray", &["eval", "export", "graphs", "model", "sampler", "utterance"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("ctrlc", &["cli"]),
    ("signal_hook", &["cli"]),
];

/// Every source file without its tests, with the room it belongs to.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.file_name().unwrap() != "tests.rs" {
            let relative = path.strip_prefix(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap();
            let room = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned();
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]\nmod ").next().unwrap();
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            found.push((room, code.lines().filter(is_code).collect::<Vec<_>>().join("\n")));
        }
    }
}

/// Rooms named after `crate::`, alone or in braces.
fn imports(code: &str) -> BTreeSet<String> {
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut rooms = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        let mut depth = 0;
        let mut begins = true;
        for (at, c) in rest.char_indices() {
            match c {
                '{' => (depth, begins) = (depth + 1, true),
                '}' => depth -= 1,
                ',' => begins = true,
                c if begins && !c.is_whitespace() => {
                    if depth < 2 {
                        rooms.insert(name(&rest[at..]));
                    }
                    begins = false;
                }
                _ => {}
            }
            if depth == 0 && (c == '}' || !begins) {
                break;
            }
        }
    }
    rooms
}

fn floor_of(room: &str) -> usize {
    let floor = FLOORS.iter().position(|rooms| rooms.contains(&room));
    floor.unwrap_or_else(|| panic!("`{room}` stands on no floor"))
}

#[test]
fn imports_go_down_only() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert!(found.len() > 20);
    for (room, code) in found.iter().filter(|(room, _)| !["cli", "main", "lib"].contains(&room.as_str())) {
        for import in imports(code).iter().filter(|import| *import != room) {
            assert!(floor_of(import) < floor_of(room), "`{room}` imports `{import}`, which is not below it");
        }
    }
}

#[test]
fn every_dependency_is_named_in_its_home_only() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    for (dependency, homes) in HOMES {
        for (room, code) in &found {
            let is_name = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || "_:".contains(c));
            let named = code.match_indices(&format!("{dependency}::")).any(|(at, _)| is_name(at));
            assert!(!named || homes.contains(&room.as_str()), "`{room}` names `{dependency}`");
        }
    }
}

#[test]
fn an_import_in_braces_is_seen() {
    let code = "use crate::{\n    audio::{Audio, x::y},\n    codes::Codes,\n};\nlet a = crate::model::b(c, d);";
    assert_eq!(imports(code).into_iter().collect::<Vec<_>>(), ["audio", "codes", "model"]);
}
