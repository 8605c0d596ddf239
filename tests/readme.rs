//! The commands of the README, as they stand there.

mod common;

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use common::{data, tiny};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const BINARY: &str = env!("CARGO_BIN_EXE_higgs-tts");

/// The indented lines that run this program.
fn commands() -> Vec<String> {
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let lines = readme.lines().filter_map(|line| line.strip_prefix("    "));
    let ours = |line: &&str| line.contains("higgs-tts ") || line.starts_with("cargo run");
    lines.filter(ours).map(str::to_owned).collect()
}

fn shell(command: &str, folder: &Path, path: &Path) -> Output {
    let search = format!("{}:{}:/usr/bin:/bin", path.display(), Path::new(BINARY).parent().unwrap().display());
    Command::new("sh").args(["-c", command]).current_dir(folder).env("PATH", search).output().unwrap()
}

#[test]
fn the_first_command_speaks() {
    let commands = commands();
    let first = commands.iter().find(|command| command.starts_with("cargo run")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("hello.wav");
    // The same arguments, without building once more.
    let arguments = first.strip_prefix("cargo run --release -- ").unwrap();
    let command = format!("higgs-tts {}", arguments.replace("hello.wav", &out.display().to_string()));
    let output = shell(&command, Path::new(ROOT), folder.path());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains(": 1.28 s of audio in ") && said.contains("end of speech, seed 6"), "{said}");
    assert_eq!(hound::WavReader::open(&out).unwrap().duration(), 32 * 960);
}

#[test]
fn every_other_command_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    fs::create_dir(here.join("onnx")).unwrap();
    let reference = tiny("cpu_fp32");
    fs::rename(reference.path(), here.join("onnx/cpu_fp32")).unwrap();
    // What `export` makes of the tiny checkpoint is what the commands after it run on.
    std::os::unix::fs::symlink(data().join("tiny/checkpoint"), here.join("higgs-tts-3-4b")).unwrap();
    fs::copy(data().join("clone/reference.wav"), here.join("ref.wav")).unwrap();
    fs::write(here.join("chapter.txt"), "A short chapter.").unwrap();
    // A player that keeps what it is given.
    fs::write(here.join("aplay"), "#!/bin/sh\nexec cat > played.wav\n").unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(here.join("aplay"), executable).unwrap();
    let mut ran = 0;
    let mut commands = commands();
    commands.retain(|command| !command.starts_with("cargo"));
    // The folder is made first.
    commands.sort_by_key(|command| !command.contains(" export "));
    for command in &commands {
        let output = shell(command, here, here);
        // Random weights seldom end by themselves: written, but not healthy, is all that can be asked.
        let code = output.status.code().unwrap();
        assert!(code == 0 || code == 4, "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let words: Vec<&str> = command.split_whitespace().collect();
        let out = words.iter().position(|word| *word == "--out").map(|at| words[at + 1]);
        if let Some(out) = out.filter(|out| !out.starts_with("onnx/")) {
            let file = here.join(if out == "-" { "played.wav" } else { out });
            let reader = hound::WavReader::open(&file).unwrap();
            assert_eq!((reader.spec().sample_rate, reader.spec().channels), (24_000, 1), "{command}");
            assert!(reader.duration() > 0 && reader.duration().is_multiple_of(960), "{command}");
            fs::remove_file(file).unwrap();
        }
        ran += 1;
    }
    assert_eq!(ran, 9, "the README has other commands than this test expects");
}
