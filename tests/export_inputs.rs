//! What goes wrong with an export, what is then said, and that nothing is left half-done.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::Path, process::Stdio, thread, time::Duration};

use common::{data, program, run};
use higgs_tts::{
    export::{Export, Options, Source, Target},
    manifest::Part,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use tempfile::TempDir;

/// A folder with a checkpoint in `ck`, whose files may be replaced.
fn folder() -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::create_dir(folder.path().join("ck")).unwrap();
    for entry in fs::read_dir(data().join("tiny/checkpoint")).unwrap() {
        let path = entry.unwrap().path();
        symlink(&path, folder.path().join("ck").join(path.file_name().unwrap())).unwrap();
    }
    folder
}

/// Writes a file in place of a link.
fn replace(path: &Path, content: impl AsRef<[u8]>) {
    let _ = fs::remove_file(path);
    fs::write(path, content).unwrap();
}

fn export(folder: &Path, args: &str) -> (Option<i32>, String) {
    let mut command = program();
    command.current_dir(folder).args(["export", "--quiet"]).args(args.split_whitespace());
    let run = run(command, b"");
    (run.code, run.stderr)
}

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

const TABLE: &str = "tied.embedding.text_embedding.weight";
const NORM: &str = "body.layers.0.input_layernorm.weight";
const DOWN: &str = "body.layers.1.mlp.down_proj.weight";
const BIAS: &str = "tied.embedding.modality_embeddings.0.model.fc2.bias";

/// Changes one tensor: its type, and its bytes.
fn change(ck: &Path, tensor: &str, change: impl Fn(&[u8]) -> (Dtype, Vec<u8>)) {
    let bytes = fs::read(data().join("tiny/checkpoint/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let view = file.tensor(tensor).unwrap();
    let (dtype, changed) = change(view.data());
    let changed = TensorView::new(dtype, view.shape().to_vec(), &changed).unwrap();
    let tensors = file
        .tensors()
        .into_iter()
        .map(|(name, view)| if name == tensor { (name, changed.clone()) } else { (name, view) });
    replace(&ck.join("model.safetensors"), safetensors::serialize(tensors, None).unwrap());
}

fn not_a_number(ck: &Path, tensor: &str) {
    change(ck, tensor, |bytes| (Dtype::BF16, [&[0xc0, 0x7f], &bytes[2..]].concat()));
}

/// Splits the checkpoint in three, with an index that `named` may change.
fn shards(ck: &Path, named: impl Fn(&str) -> String) {
    let bytes = fs::read(data().join("tiny/checkpoint/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    fs::remove_file(ck.join("model.safetensors")).unwrap();
    let mut index = BTreeMap::new();
    for shard in 0..3 {
        let name = format!("model-{shard}.safetensors");
        let tensors: Vec<_> = file.tensors().into_iter().skip(shard).step_by(3).collect();
        index.extend(tensors.iter().map(|(tensor, _)| (tensor.clone(), named(&name))));
        fs::write(ck.join(name), safetensors::serialize(tensors, None).unwrap()).unwrap();
    }
    let index = serde_json::json!({ "weight_map": index });
    fs::write(ck.join("model.safetensors.index.json"), index.to_string()).unwrap();
}

#[test]
fn every_bad_checkpoint_is_named_with_what_is_wrong() {
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil, &str); 14] = [
        (
            "int4",
            |ck| change(ck, DOWN, |bytes| (Dtype::I16, bytes.to_vec())),
            "the checkpoint does not fit its config.json: body.layers.1.mlp.down_proj.weight is of type I16",
        ),
        (
            "int4",
            |ck| not_a_number(ck, DOWN),
            "cannot export llm_decoder: cannot make model.layers.1.mlp.down_proj.MatMul.weight_Q4: some weights are not finite numbers in float32",
        ),
        (
            "fp32",
            |ck| not_a_number(ck, DOWN),
            "cannot export llm_decoder: cannot make model.layers.1.mlp.down_proj.MatMul.weight: some weights are not finite numbers in float32",
        ),
        (
            "int4",
            |ck| not_a_number(ck, NORM),
            "cannot export llm_decoder: cannot make model.layers.0.input_layernorm.weight: some weights are not finite numbers in float32",
        ),
        (
            "int4",
            |ck| not_a_number(ck, TABLE),
            "cannot export text_embed: cannot make emb.weight: some weights are not finite numbers in float16",
        ),
        // 1e30 is a number in bfloat16, and none in half precision.
        (
            "int4",
            |ck| change(ck, TABLE, |bytes| (Dtype::BF16, [&[0x4a, 0x71], &bytes[2..]].concat())),
            "cannot export text_embed: cannot make emb.weight: some weights are not finite numbers in float16",
        ),
        (
            "int4",
            |ck| not_a_number(ck, BIAS),
            "cannot export audio_tokenizer: cannot make quantizer.quantizers.0.table: some weights are not finite numbers in float32",
        ),
        (
            "int4",
            |ck| shards(ck, |name| format!("../ck/{name}")),
            "ck/model.safetensors.index.json cannot be used: its file \"../ck/model-",
        ),
        (
            "int4",
            |ck| replace(&ck.join("model.safetensors.index.json"), r#"{"weight_map": {"a": 5}}"#),
            "ck/model.safetensors.index.json cannot be used: its file 5 of a is not the name of a file in the folder",
        ),
        (
            "int4",
            |ck| {
                shards(ck, str::to_owned);
                fs::remove_file(ck.join("model-1.safetensors")).unwrap();
            },
            "1 of 3 checkpoint files are missing in ck: model-1.safetensors",
        ),
        (
            "int4",
            |ck| fs::remove_file(ck.join("tokenizer.json")).unwrap(),
            "cannot open ck/tokenizer.json: No such file or directory (os error 2)",
        ),
        (
            "int4",
            |ck| replace(&ck.join("tokenizer.json"), "{"),
            "ck/tokenizer.json cannot be used: it is not valid JSON: ",
        ),
        (
            "int4",
            |ck| replace(&ck.join("tokenizer.json"), r#"{"added_tokens": []}"#),
            "ck/tokenizer.json cannot be used: it has no token <|endoftext|>",
        ),
        (
            "int4",
            |ck| {
                replace(
                    &ck.join("model.safetensors"),
                    b"\x3d\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"Q9\",\"shape\":[0],\"data_offsets\":[0,0]}}        ",
                )
            },
            "ck/model.safetensors cannot be used: its header is wrong: ",
        ),
    ];
    for (precision, spoil, says) in cases {
        let folder = folder();
        spoil(&folder.path().join("ck"));
        let (code, stderr) = export(folder.path(), &format!("--checkpoint ck --out out --precision {precision}"));
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.starts_with(&format!("higgs-tts: {says}")), "{stderr}");
        let left = contents(&folder.path().join("out"));
        assert!(!left.keys().any(|name| name == "manifest.json" || name.ends_with(".part")), "{says}");
        // Nothing at all is written when the fault can be seen before.
        assert!(left.is_empty() || says.starts_with("cannot export"), "{says}");
    }
}

#[test]
fn shards_are_as_good_as_one_file() {
    let folder = folder();
    let made = |out: &str| {
        assert_eq!(export(folder.path(), &format!("--checkpoint ck --out {out}")).0, Some(0));
        contents(&folder.path().join(out)).remove("llm_decoder.onnx.data")
    };
    let whole = made("whole");
    shards(&folder.path().join("ck"), str::to_owned);
    assert!(whole == made("split"));
}

#[test]
fn models_are_never_mixed() {
    let folder = folder();
    let export = |args: &str| export(folder.path(), &format!("--checkpoint ck {args}"));
    let parts = ["audio_heads", "text_embed", "llm_decoder", "audio_encoder", "audio_embed", "audio_tokenizer"];
    assert_eq!(export("--out whole"), (Some(0), String::new()));
    let whole = contents(&folder.path().join("whole"));
    for part in parts {
        assert_eq!(export(&format!("--out parts --components {part}")).0, Some(0));
    }
    assert!(contents(&folder.path().join("parts")) == whole);

    for (args, says) in [
        ("--device cuda", "whole holds a model of cpu int4, not of cuda int4"),
        ("--precision fp32 --dry-run", "whole holds a model of cpu int4, not of cpu fp32"),
        ("--precision fp32 --components text_embed --force", "whole holds a model of cpu int4, not of cpu fp32"),
        ("--random 1 --components text_embed", "audio_encoder in whole is of \"sha256-sampled:"),
    ] {
        let (code, stderr) = export(&format!("--out whole {args}"));
        assert!(code == Some(2) && stderr.starts_with(&format!("higgs-tts: {says}")), "{stderr}");
        assert!(contents(&folder.path().join("whole")) == whole, "{args}");
    }
    assert_eq!(export("--out whole --device cuda --force").0, Some(0));
    assert_eq!(export("--out other --device cuda").0, Some(0));
    assert!(contents(&folder.path().join("whole")) == contents(&folder.path().join("other")));
    let (code, stderr) = export("--out ck/.");
    assert_eq!((code, &*stderr), (Some(2), "higgs-tts: ck/. is the folder of the checkpoint: name another one\n"));
}

#[test]
fn one_export_at_a_time_writes_to_a_folder_which_is_no_model_meanwhile() {
    let folder = folder();
    let out = folder.path().join("out");
    assert_eq!(export(folder.path(), "--checkpoint ck --out out").0, Some(0));
    let source = Source::Checkpoint(folder.path().join("ck"));
    let one = Export::open(&source, Options::new(Target::CpuInt4), &Part::ALL, &out).unwrap();
    let claim = one.prepare(1).unwrap();
    assert!(!out.join("manifest.json").exists());
    let (code, stderr) = export(folder.path(), "--checkpoint ck --out out");
    assert_eq!((code, &*stderr), (Some(2), "higgs-tts: another export writes to out just now\n"));
    drop(claim);
    assert_eq!(export(folder.path(), "--checkpoint ck --out out"), (Some(0), String::new()));
    assert!(out.join("manifest.json").exists());
}

/// For root every folder is open, but not one of the kernel's.
#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_takes_no_files_is_refused_at_once() {
    let folder = folder();
    let (code, stderr) = export(folder.path(), "--checkpoint ck --out /proc/self/fdinfo");
    assert!(
        code == Some(2) && stderr.starts_with("higgs-tts: the folder /proc/self/fdinfo cannot be written to: "),
        "{stderr}"
    );
}

#[test]
fn an_export_that_is_broken_off_goes_on_where_it_was() {
    let folder = folder();
    assert_eq!(export(folder.path(), "--checkpoint ck --out whole").0, Some(0));
    let whole = contents(&folder.path().join("whole"));
    for (signal, code) in [("KILL", None), ("INT", Some(130)), ("TERM", Some(130))] {
        for pause in [40, 150, 300, 500] {
            let out = format!("{signal}{pause}");
            let mut command = program();
            command.current_dir(folder.path()).args(["export", "--quiet", "--checkpoint", "ck", "--out", &out]);
            let mut child = command.stderr(Stdio::null()).spawn().unwrap();
            thread::sleep(Duration::from_millis(pause));
            let kill = ["-s", signal, &child.id().to_string()].map(str::to_owned);
            std::process::Command::new("kill").args(kill).status().unwrap();
            let ended = child.wait().unwrap().code();
            // A fast machine may be done already.
            assert!(ended == code || ended == Some(0), "{out}: {ended:?}");
            let left = contents(&folder.path().join(&out));
            assert!(code.is_none() || !left.keys().any(|name| name.ends_with(".part")), "{out}");
            assert_eq!(export(folder.path(), &format!("--checkpoint ck --out {out}")).0, Some(0));
            assert!(contents(&folder.path().join(&out)) == whole, "{out}");
        }
    }
}
