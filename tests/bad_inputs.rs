//! What goes wrong and what is then said: one row a case. After each, the disk is as it was before.
//!
//! Every case runs in a folder of its own, so that the paths in the messages are short and known. There are a `model`
//! folder, a recording `voice.wav`, and an older `out/speech.wav` that no failure may touch.

// The words of the system are those of Unix.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    os::unix::fs::symlink,
    path::Path,
    process::Stdio,
};

use common::{Run, data, program, run, tiny};
use serde_json::{Value, json};
use tempfile::TempDir;

/// One bad input.
struct Case {
    name: &'static str,
    /// Makes it, in the case's folder.
    spoil: fn(&Path),
    /// Arguments, separated by spaces.
    args: &'static str,
    /// All that stands on stderr.
    stderr: String,
    code: i32,
}

const SPEAK: &str = "--model-path model --text Hello. --out out/speech.wav --max-frames 9";
const CLONE: &str = "--model-path model --text Hello. --out out/speech.wav --max-frames 9 --ref-audio voice.wav";
const SELFTEST: &str = "--model-path model --selftest --out out/speech.wav";

/// The request is wrong: what is said after the program's name, and exit code 2.
fn request(name: &'static str, spoil: fn(&Path), args: &'static str, says: &str) -> Case {
    Case { name, spoil, args, stderr: format!("higgs-tts: {says}"), code: 2 }
}

/// A command line that its parser refuses.
fn flag(name: &'static str, args: &'static str, says: &str) -> Case {
    let stderr = format!("error: {says}\n\nFor more information, try '--help'.");
    Case { name, spoil: nothing, args, stderr, code: 2 }
}

/// The model folder or the runtime cannot be used: exit code 3.
fn model(name: &'static str, spoil: fn(&Path), args: &'static str, says: &str) -> Case {
    Case { name, spoil, args, stderr: format!("higgs-tts: {says}"), code: 3 }
}

/// The same, with the hint for a file that is missing.
fn missing(name: &'static str, spoil: fn(&Path), args: &'static str, says: &str) -> Case {
    let hint = "every part of the model folder must be downloaded, its .data files too";
    model(name, spoil, args, &format!("{says}\nhint: {hint}"))
}

/// The same, with the hint for a damaged file.
fn again(name: &'static str, spoil: fn(&Path), args: &'static str, says: &str) -> Case {
    model(name, spoil, args, &format!("{says}\nhint: download or export it again"))
}

/// The same, with the hint for a file that does not fit the others.
fn copied(name: &'static str, spoil: fn(&Path), args: &'static str, says: &str) -> Case {
    model(name, spoil, args, &format!("{says}\nhint: a file of another folder or model may have been copied in"))
}

/// The same, with the hint for a library that cannot be used.
#[cfg(target_os = "linux")]
fn runtime(name: &'static str, spoil: fn(&Path), args: &'static str, says: &str) -> Case {
    model(name, spoil, args, &format!("{says}\nhint: unset ORT_DYLIB_PATH to use the library inside this program"))
}

/// Something failed that nobody could foresee: exit code 1.
#[cfg(target_os = "linux")]
fn failure(name: &'static str, spoil: fn(&Path), args: &'static str, says: &str) -> Case {
    Case { name, spoil, args, stderr: format!("higgs-tts: {says}"), code: 1 }
}

/// Nothing on the disk is bad.
fn nothing(_: &Path) {}

/// Whether the cases spoil their model folder or only read it.
enum Model {
    Own,
    Shared,
}

fn folder(model: &Model) -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = folder.path();
    match model {
        Model::Own => fs::rename(tiny("cpu_int4").keep(), at.join("model")).unwrap(),
        Model::Shared => symlink(data().join("tiny/cpu_fp32"), at.join("model")).unwrap(),
    }
    fs::copy(data().join("clone/reference.wav"), at.join("voice.wav")).unwrap();
    fs::create_dir(at.join("out")).unwrap();
    fs::write(at.join("out/speech.wav"), "an older file").unwrap();
    folder
}

/// Every path in a folder, and the content of the files.
fn snapshot(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if metadata.is_dir() {
            found.extend(snapshot(&path));
        }
        found.insert(path.display().to_string(), content);
    }
    found
}

/// Runs the cases and compares all of them before it fails.
fn check(model: &Model, cases: &[Case]) {
    check_with(model, cases, |_| Vec::new());
}

/// The same, with variables of the environment that lie in the case's folder.
fn check_with(model: &Model, cases: &[Case], variables: fn(&Case) -> Vec<(&'static str, &'static str)>) {
    let mut failures = Vec::new();
    for case in cases {
        let folder = folder(model);
        (case.spoil)(folder.path());
        let before = snapshot(folder.path());
        let mut command = program();
        command.current_dir(&folder).args(case.args.split(' ').filter(|arg| !arg.is_empty())).envs(variables(case));
        let Run { code, stdout, stderr } = run(command, b"");
        let stderr = stderr.replace(&folder.path().display().to_string(), "HERE");
        if stderr.trim_end() != case.stderr || code != Some(case.code) {
            failures.push(format!("{}: exit code {code:?}, expected {}\n{stderr}", case.name, case.code));
        }
        if !stdout.is_empty() {
            failures.push(format!("{}: {} bytes on stdout", case.name, stdout.len()));
        }
        let after = snapshot(folder.path());
        if after != before {
            let paths: Vec<_> = after.keys().filter(|path| before.get(*path) != after.get(*path)).collect();
            failures.push(format!("{}: new or changed: {paths:?}", case.name));
        }
    }
    assert!(failures.is_empty(), "{} of {} cases:\n\n{}", failures.len(), cases.len(), failures.join("\n\n"));
}

fn write(folder: &Path, file: &str, content: impl AsRef<[u8]>) {
    fs::write(folder.join(file), content).unwrap();
}

fn remove(folder: &Path, file: &str) {
    fs::remove_file(folder.join(file)).unwrap();
}

fn truncate(folder: &Path, file: &str, length: usize) {
    let bytes = fs::read(folder.join(file)).unwrap();
    write(folder, file, &bytes[..length]);
}

/// Puts a file of the test data in the place of another.
fn replace(folder: &Path, file: &str, source: &str) {
    fs::copy(data().join(source), folder.join(file)).unwrap();
}

fn edit(folder: &Path, file: &str, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(folder.join(file)).unwrap()).unwrap();
    change(&mut value);
    write(folder, file, value.to_string());
}

/// Sets a value of `manifest.json`, such as `/constants/hop_length`.
fn manifest(folder: &Path, pointer: &str, value: Value) {
    edit(folder, "model/manifest.json", |manifest| *manifest.pointer_mut(pointer).unwrap() = value);
}

/// Sets a value of `genai_config.json`, under `/model`.
fn genai(folder: &Path, pointer: &str, value: Value) {
    edit(folder, "model/genai_config.json", |config| *config["model"].pointer_mut(pointer).unwrap() = value);
}

/// A mono WAV file of 16-bit samples.
fn wav(samples: impl Iterator<Item = i16>, sample_rate_hz: u32) -> Vec<u8> {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: sample_rate_hz,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut bytes = std::io::Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    samples.for_each(|sample| writer.write_sample(sample).unwrap());
    writer.finalize().unwrap();
    bytes.into_inner()
}

const LFS_POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 337313\n";
const HTML_PAGE: &str = "<!DOCTYPE html>\n<html><head><title>Not found</title></head></html>\n";

#[test]
fn a_folder_that_is_no_model_folder_is_said_so() {
    check(
        &Model::Own,
        &[
            request(
                "no folder is named",
                nothing,
                "--text Hello. --out out/speech.wav",
                "no model folder is given\n\
                hint: name a model folder with --model-path or HIGGS_TTS_MODEL, such as onnx/cpu_int4",
            ),
            model(
                "the folder does not exist",
                nothing,
                "--model-path nowhere --text Hello. --out out/speech.wav",
                "the model folder nowhere does not exist",
            ),
            model(
                "the folder is a file",
                nothing,
                "--model-path voice.wav --text Hello. --out out/speech.wav",
                "the model folder voice.wav is not a folder",
            ),
            model(
                "the folder above is named",
                nothing,
                "--model-path . --text Hello. --out out/speech.wav",
                ". has no manifest.json\n\
                hint: did you mean ./model?",
            ),
            model(
                "an empty folder is named",
                |at| fs::create_dir(at.join("empty")).unwrap(),
                "--model-path empty --text Hello. --out out/speech.wav",
                "empty has no manifest.json\n\
                hint: a model folder holds manifest.json and six .onnx files, such as onnx/cpu_int4",
            ),
            model(
                "the manifest is missing",
                |at| remove(at, "model/manifest.json"),
                SPEAK,
                "model has no manifest.json\n\
                hint: a model folder holds manifest.json and six .onnx files, such as onnx/cpu_int4",
            ),
            model(
                "the manifest is a folder",
                |at| {
                    remove(at, "model/manifest.json");
                    fs::create_dir(at.join("model/manifest.json")).unwrap();
                },
                SPEAK,
                "model has no manifest.json\n\
                hint: a model folder holds manifest.json and six .onnx files, such as onnx/cpu_int4",
            ),
            again(
                "the manifest is empty",
                |at| write(at, "model/manifest.json", ""),
                SPEAK,
                "model/manifest.json is not valid JSON: EOF while parsing a value at line 1 column 0",
            ),
            again(
                "the manifest is a web page",
                |at| write(at, "model/manifest.json", HTML_PAGE),
                SPEAK,
                "model/manifest.json is not valid JSON: expected value at line 1 column 1",
            ),
            again(
                "the manifest is cut short",
                |at| truncate(at, "model/manifest.json", 1000),
                SPEAK,
                "model/manifest.json is not valid JSON: EOF while parsing a value at line 39 column 28",
            ),
            again(
                "the manifest is not UTF-8",
                |at| write(at, "model/manifest.json", b"{\"a\": \"\xff\"}"),
                SPEAK,
                "model/manifest.json is not valid JSON: invalid unicode code point at line 1 column 8",
            ),
            model(
                "the manifest is an array",
                |at| write(at, "model/manifest.json", "[]"),
                SPEAK,
                "model/manifest.json has no object `sub_models`",
            ),
            model(
                "the parts are an array",
                |at| manifest(at, "/sub_models", json!([])),
                SPEAK,
                "model/manifest.json has no object `sub_models`",
            ),
            model(
                "a part is missing",
                |at| {
                    edit(at, "model/manifest.json", |all| {
                        all["sub_models"].as_object_mut().unwrap().remove("audio_heads");
                    })
                },
                SPEAK,
                "model/manifest.json has no string `sub_models.audio_heads.filename`",
            ),
            model(
                "the encoder is not named",
                |at| {
                    edit(at, "model/manifest.json", |all| {
                        all["sub_models"].as_object_mut().unwrap().remove("audio_encoder");
                    })
                },
                CLONE,
                "model/manifest.json has no string `sub_models.audio_encoder.filename`",
            ),
            model(
                "a file name is a number",
                |at| manifest(at, "/sub_models/text_embed/filename", json!(7)),
                SPEAK,
                "model/manifest.json has no string `sub_models.text_embed.filename`",
            ),
            model(
                "a file name is empty",
                |at| manifest(at, "/sub_models/text_embed/filename", json!("")),
                SPEAK,
                "model/manifest.json: `sub_models.text_embed.filename` is ``, which is not a file inside the folder",
            ),
            model(
                "a file name leads out of the folder",
                |at| manifest(at, "/sub_models/llm_decoder/filename", json!("../voice.wav")),
                SPEAK,
                "model/manifest.json: `sub_models.llm_decoder.filename` is `../voice.wav`, which is not a file \
                inside the folder",
            ),
            model(
                "a file name is an absolute path",
                |at| manifest(at, "/sub_models/llm_decoder/filename", json!("/etc/passwd")),
                SPEAK,
                "model/manifest.json: `sub_models.llm_decoder.filename` is `/etc/passwd`, which is not a file \
                inside the folder",
            ),
            missing(
                "a file name is that of no file",
                |at| manifest(at, "/sub_models/audio_tokenizer/filename", json!("codec.onnx")),
                SELFTEST,
                "cannot open model/codec.onnx: No such file or directory (os error 2)",
            ),
            again(
                "a file name is that of a folder",
                |at| {
                    fs::create_dir(at.join("model/inner")).unwrap();
                    manifest(at, "/sub_models/audio_tokenizer/filename", json!("inner"));
                },
                SELFTEST,
                "model/inner cannot be used: it is a folder",
            ),
            again(
                "genai_config.json is not JSON",
                |at| write(at, "model/genai_config.json", "{"),
                SPEAK,
                "model/genai_config.json is not valid JSON: EOF while parsing an object at line 1 column 1",
            ),
            model(
                "the folder is made for CUDA",
                |at| manifest(at, "/execution_provider", json!("CUDAExecutionProvider")),
                SPEAK,
                "this folder is made for CUDA, and no GPU can be used: this program is built without CUDA\n\
                hint: `--device cpu` runs it on the CPU, slowly; for the GPU, build with `--features cuda`, and let \
                ORT_DYLIB_PATH name a CUDA build of ONNX Runtime",
            ),
        ],
    );
}

#[test]
fn a_number_that_contradicts_the_graphs_is_named_with_both_values() {
    check(
        &Model::Own,
        &[
            copied(
                "hidden_size",
                |at| manifest(at, "/sub_models/llm_decoder/hidden_size", json!(128)),
                SPEAK,
                "manifest.json: llm_decoder.hidden_size is 128, but model/llm_decoder.onnx has 64",
            ),
            copied(
                "num_layers",
                |at| manifest(at, "/sub_models/llm_decoder/num_layers", json!(3)),
                SPEAK,
                "manifest.json: llm_decoder.num_layers is 3, but model/llm_decoder.onnx has 2",
            ),
            copied(
                "num_kv_heads",
                |at| manifest(at, "/sub_models/llm_decoder/num_kv_heads", json!(4)),
                SPEAK,
                "manifest.json: llm_decoder.num_kv_heads is 4, but model/llm_decoder.onnx has 2",
            ),
            copied(
                "head_dim",
                |at| manifest(at, "/sub_models/llm_decoder/head_dim", json!(16)),
                SPEAK,
                "manifest.json: llm_decoder.head_dim is 16, but model/llm_decoder.onnx has 32",
            ),
            copied(
                "vocab_size of the text",
                |at| manifest(at, "/sub_models/llm_decoder/vocab_size", json!(577)),
                SPEAK,
                "manifest.json: llm_decoder.vocab_size is 577, but model/text_embed.onnx has 576",
            ),
            copied(
                "context_length",
                |at| manifest(at, "/sub_models/llm_decoder/context_length", json!(4096)),
                SPEAK,
                "manifest.json: llm_decoder.context_length is 4096, but model/llm_decoder.onnx has 2048",
            ),
            copied(
                "num_codebooks of the heads",
                |at| manifest(at, "/sub_models/audio_heads/num_codebooks", json!(9)),
                SPEAK,
                "manifest.json: audio_heads.num_codebooks is 9, but model/audio_heads.onnx has 8",
            ),
            copied(
                "vocab_size of the heads",
                |at| manifest(at, "/sub_models/audio_heads/vocab_size", json!(1024)),
                SPEAK,
                "manifest.json: audio_heads.vocab_size is 1024, but model/audio_heads.onnx has 1026",
            ),
            copied(
                "num_codebooks of the embeddings",
                |at| manifest(at, "/sub_models/audio_embed/num_codebooks", json!(7)),
                SPEAK,
                "manifest.json: audio_embed.num_codebooks is 7, but model/audio_embed.onnx has 8",
            ),
            copied(
                "vocab_size of the embeddings",
                |at| manifest(at, "/sub_models/audio_embed/vocab_size", json!(1027)),
                SPEAK,
                "manifest.json: audio_embed.vocab_size is 1027, but model/audio_embed.onnx has 1026",
            ),
            copied(
                "num_codebooks of the codec",
                |at| manifest(at, "/sub_models/audio_tokenizer/num_codebooks", json!(4)),
                SELFTEST,
                "manifest.json: audio_tokenizer.num_codebooks is 4, but model/audio_tokenizer.onnx has 8",
            ),
            copied(
                "num_codebooks of the encoder",
                |at| manifest(at, "/sub_models/audio_encoder/num_codebooks", json!(4)),
                CLONE,
                "manifest.json: audio_encoder.num_codebooks is 4, but model/audio_encoder.onnx has 8",
            ),
            copied(
                "num_codebooks of all",
                |at| manifest(at, "/constants/num_codebooks", json!(7)),
                SPEAK,
                "manifest.json: constants.num_codebooks is 7, but model/audio_heads.onnx has 8",
            ),
            copied(
                "codebook_vocab_size of all",
                |at| manifest(at, "/constants/codebook_vocab_size", json!(1025)),
                SPEAK,
                "manifest.json: constants.codebook_vocab_size is 1025, but model/audio_heads.onnx has 1026",
            ),
            copied(
                "two sample rates",
                |at| manifest(at, "/constants/sample_rate", json!(48000)),
                SELFTEST,
                "manifest.json: constants.sample_rate is 48000, but the folder elsewhere has 24000",
            ),
            copied(
                "two sample rates of the codec",
                |at| manifest(at, "/sub_models/audio_encoder/sample_rate", json!(48000)),
                CLONE,
                "manifest.json: audio_encoder.sample_rate is 48000, but the folder elsewhere has 24000",
            ),
            copied(
                "two hop lengths",
                |at| manifest(at, "/sub_models/audio_tokenizer/hop_length", json!(480)),
                SELFTEST,
                "manifest.json: constants.hop_length is 960, but the folder elsewhere has 480",
            ),
            model(
                "another hop length",
                |at| {
                    manifest(at, "/sub_models/audio_tokenizer/hop_length", json!(480));
                    manifest(at, "/constants/hop_length", json!(480));
                },
                SELFTEST,
                "the codec gave 48000 samples for 50 frames, expected 24000",
            ),
            copied(
                "a hop length of zero",
                |at| {
                    manifest(at, "/sub_models/audio_tokenizer/hop_length", json!(0));
                    manifest(at, "/constants/hop_length", json!(0));
                },
                SELFTEST,
                "model/audio_tokenizer.onnx cannot be used as audio_tokenizer: its sample rate, hop length or \
                codebook size makes no sense",
            ),
            model(
                "another codebook size",
                |at| {
                    manifest(at, "/sub_models/audio_tokenizer/codebook_size", json!(512));
                    manifest(at, "/constants/codec_codebook_size", json!(512));
                },
                SPEAK,
                "the codec has 8 codebooks of 512 codes, the language model 8 codebooks of 1024 codes\n\
                hint: the parts belong to different models",
            ),
            copied(
                "a number in quotes",
                |at| manifest(at, "/sub_models/llm_decoder/hidden_size", json!("64")),
                SPEAK,
                "manifest.json: llm_decoder.hidden_size is \"64\", but model/llm_decoder.onnx has 64",
            ),
            copied(
                "a negative number",
                |at| manifest(at, "/sub_models/llm_decoder/num_layers", json!(-2)),
                SPEAK,
                "manifest.json: llm_decoder.num_layers is -2, but model/llm_decoder.onnx has 2",
            ),
            copied(
                "a fraction",
                |at| manifest(at, "/sub_models/llm_decoder/head_dim", json!(32.5)),
                SPEAK,
                "manifest.json: llm_decoder.head_dim is 32.5, but model/llm_decoder.onnx has 32",
            ),
            copied(
                "genai_config: head_size",
                |at| genai(at, "/decoder/head_size", json!(64)),
                SPEAK,
                "genai_config.json: model.decoder.head_size is 64, but model/llm_decoder.onnx has 32",
            ),
            copied(
                "genai_config: hidden_size",
                |at| genai(at, "/decoder/hidden_size", json!(2560)),
                SPEAK,
                "genai_config.json: model.decoder.hidden_size is 2560, but model/llm_decoder.onnx has 64",
            ),
            copied(
                "genai_config: num_hidden_layers",
                |at| genai(at, "/decoder/num_hidden_layers", json!(36)),
                SPEAK,
                "genai_config.json: model.decoder.num_hidden_layers is 36, but model/llm_decoder.onnx has 2",
            ),
            copied(
                "genai_config: num_key_value_heads",
                |at| genai(at, "/decoder/num_key_value_heads", json!(8)),
                SPEAK,
                "genai_config.json: model.decoder.num_key_value_heads is 8, but model/llm_decoder.onnx has 2",
            ),
            copied(
                "genai_config: vocab_size",
                |at| genai(at, "/vocab_size", json!(151936)),
                SPEAK,
                "genai_config.json: model.vocab_size is 151936, but model/text_embed.onnx has 576",
            ),
            copied(
                "genai_config: context_length",
                |at| genai(at, "/context_length", json!(32768)),
                SPEAK,
                "genai_config.json: model.context_length is 32768, but model/llm_decoder.onnx has 2048",
            ),
        ],
    );
}

/// Makes 32 of the last 64 in a graph's description, which is the length of an axis that all parts share.
fn halve_hidden_size(folder: &Path, file: &str) {
    let mut bytes = fs::read(folder.join(file)).unwrap();
    // A field of 2 bytes, number 1 of a dimension: the length 64.
    let at = bytes.windows(4).rposition(|window| window == [0x0a, 2, 0x08, 64]).unwrap();
    bytes[at + 3] = 32;
    write(folder, file, bytes);
}

#[test]
fn a_graph_that_is_damaged_or_another_is_named() {
    check(
        &Model::Own,
        &[
            missing(
                "text_embed is missing",
                |at| remove(at, "model/text_embed.onnx"),
                SPEAK,
                "cannot open model/text_embed.onnx: No such file or directory (os error 2)",
            ),
            missing(
                "llm_decoder is missing",
                |at| remove(at, "model/llm_decoder.onnx"),
                SPEAK,
                "cannot open model/llm_decoder.onnx: No such file or directory (os error 2)",
            ),
            missing(
                "the codec is missing",
                |at| remove(at, "model/audio_tokenizer.onnx"),
                SELFTEST,
                "cannot open model/audio_tokenizer.onnx: No such file or directory (os error 2)",
            ),
            missing(
                "the encoder is missing",
                |at| remove(at, "model/audio_encoder.onnx"),
                CLONE,
                "cannot open model/audio_encoder.onnx: No such file or directory (os error 2)",
            ),
            again(
                "audio_embed is empty",
                |at| write(at, "model/audio_embed.onnx", ""),
                SPEAK,
                "model/audio_embed.onnx cannot be used: the file is empty",
            ),
            again(
                "audio_heads is cut short",
                |at| truncate(at, "model/audio_heads.onnx", 100_000),
                SPEAK,
                "model/audio_heads.onnx cannot be used: it is truncated or not an ONNX file",
            ),
            again(
                "llm_decoder is cut short",
                |at| truncate(at, "model/llm_decoder.onnx", 24_459),
                SPEAK,
                "model/llm_decoder.onnx cannot be used: it is truncated or not an ONNX file",
            ),
            again(
                "the codec is cut short",
                |at| truncate(at, "model/audio_tokenizer.onnx", 500_000),
                SPEAK,
                "model/audio_tokenizer.onnx cannot be used: it is truncated or not an ONNX file",
            ),
            again(
                "the encoder is cut short",
                |at| truncate(at, "model/audio_encoder.onnx", 500_000),
                CLONE,
                "model/audio_encoder.onnx cannot be used: it is truncated or not an ONNX file",
            ),
            again(
                "text_embed is garbage",
                |at| write(at, "model/text_embed.onnx", [0x5a; 5000]),
                SPEAK,
                "model/text_embed.onnx cannot be used: it is truncated or not an ONNX file",
            ),
            again(
                "text_embed is zeros",
                |at| write(at, "model/text_embed.onnx", [0; 5000]),
                SPEAK,
                "model/text_embed.onnx cannot be used: it is truncated or not an ONNX file",
            ),
            model(
                "audio_embed has an operator that nobody knows",
                |at| {
                    let bytes = fs::read(at.join("model/audio_embed.onnx")).unwrap();
                    let text: String = bytes.iter().map(|&byte| char::from(byte)).collect();
                    let bytes: Vec<u8> =
                        text.replace("GatherBlockQuantized", "GatherBlockQuantizes").chars().map(|c| c as u8).collect();
                    write(at, "model/audio_embed.onnx", bytes);
                },
                SPEAK,
                "cannot load model/audio_embed.onnx: Load model from model/audio_embed.onnx failed:Fatal error: \
                com.microsoft:GatherBlockQuantizes(-1) is not a registered function/op\n\
                hint: `higgs-tts doctor --model-path DIR` looks closer; downloading or exporting the folder again may help",
            ),
            again(
                "audio_embed is a git-lfs pointer",
                |at| write(at, "model/audio_embed.onnx", LFS_POINTER),
                SPEAK,
                "model/audio_embed.onnx cannot be used: it is a git-lfs pointer, not the file itself",
            ),
            again(
                "audio_heads is a web page",
                |at| write(at, "model/audio_heads.onnx", HTML_PAGE),
                SPEAK,
                "model/audio_heads.onnx cannot be used: it is truncated or not an ONNX file",
            ),
            copied(
                "audio_embed is text_embed",
                |at| replace(at, "model/audio_embed.onnx", "tiny/cpu_int4/text_embed.onnx"),
                SPEAK,
                "model/audio_embed.onnx cannot be used as audio_embed: it has no input `codes`",
            ),
            copied(
                "text_embed is audio_embed",
                |at| replace(at, "model/text_embed.onnx", "tiny/cpu_int4/audio_embed.onnx"),
                SPEAK,
                "model/text_embed.onnx cannot be used as text_embed: it has no input `input_ids`",
            ),
            copied(
                "audio_heads is llm_decoder",
                |at| replace(at, "model/audio_heads.onnx", "tiny/cpu_int4/llm_decoder.onnx"),
                SPEAK,
                "model/audio_heads.onnx cannot be used as audio_heads: it has no input `hidden_states`",
            ),
            copied(
                "llm_decoder is audio_heads",
                |at| replace(at, "model/llm_decoder.onnx", "tiny/cpu_int4/audio_heads.onnx"),
                SPEAK,
                "model/llm_decoder.onnx cannot be used as llm_decoder: it has no input `past_key_values.0.key`",
            ),
            copied(
                "the codec is the encoder",
                |at| replace(at, "model/audio_tokenizer.onnx", "tiny/cpu_fp32/audio_encoder.onnx"),
                SELFTEST,
                "model/audio_tokenizer.onnx cannot be used as audio_tokenizer: it has no input `audio_codes`",
            ),
            copied(
                "the encoder is the codec",
                |at| replace(at, "model/audio_encoder.onnx", "tiny/cpu_fp32/audio_tokenizer.onnx"),
                CLONE,
                "model/audio_encoder.onnx cannot be used as audio_encoder: it has no input `input_values`",
            ),
            again(
                "llm_decoder has another precision than its data",
                |at| replace(at, "model/llm_decoder.onnx", "tiny/cpu_fp32/llm_decoder.onnx"),
                SPEAK,
                "model/llm_decoder.onnx.data cannot be used: it has 333056 bytes, model/llm_decoder.onnx needs \
                706304",
            ),
            copied(
                "audio_heads has another size",
                |at| halve_hidden_size(at, "model/audio_heads.onnx"),
                SPEAK,
                "model/audio_heads.onnx cannot be used as audio_heads: its hidden_size is 32, the other parts have \
                64",
            ),
            copied(
                "audio_embed has another size",
                |at| halve_hidden_size(at, "model/audio_embed.onnx"),
                SPEAK,
                "model/audio_embed.onnx cannot be used as audio_embed: its hidden_size is 32, the other parts have \
                64",
            ),
        ],
    );
}

#[test]
fn a_data_file_or_tokenizer_that_does_not_fit_is_named() {
    check(
        &Model::Own,
        &[
            missing(
                "the data file is missing",
                |at| remove(at, "model/llm_decoder.onnx.data"),
                SPEAK,
                "cannot open model/llm_decoder.onnx.data: No such file or directory (os error 2)",
            ),
            again(
                "the data file is cut short",
                |at| truncate(at, "model/llm_decoder.onnx.data", 333_055),
                SPEAK,
                "model/llm_decoder.onnx.data cannot be used: it has 333055 bytes, model/llm_decoder.onnx needs \
                333056",
            ),
            again(
                "the data file is empty",
                |at| write(at, "model/llm_decoder.onnx.data", ""),
                SPEAK,
                "model/llm_decoder.onnx.data cannot be used: it has 0 bytes, model/llm_decoder.onnx needs 333056",
            ),
            again(
                "the data file is a git-lfs pointer",
                |at| write(at, "model/llm_decoder.onnx.data", LFS_POINTER),
                SPEAK,
                "model/llm_decoder.onnx.data cannot be used: it has 71 bytes, model/llm_decoder.onnx needs 333056",
            ),
            model(
                "the data file is not finite",
                |at| write(at, "model/llm_decoder.onnx.data", [0xff; 333_056]),
                SPEAK,
                "the decoder's hidden states are values that are not finite: its weights are damaged, \
                or an attention kernel is broken\n\
                hint: download or export the folder again; `higgs-tts doctor` looks closer",
            ),
            again(
                "the data file is a folder",
                |at| {
                    remove(at, "model/llm_decoder.onnx.data");
                    fs::create_dir(at.join("model/llm_decoder.onnx.data")).unwrap();
                },
                SPEAK,
                "model/llm_decoder.onnx.data cannot be used: it is a folder",
            ),
            again(
                "the tokenizer is missing",
                |at| remove(at, "model/tokenizer.json"),
                SPEAK,
                "cannot open model/tokenizer.json: No such file or directory (os error 2)",
            ),
            again(
                "the tokenizer is empty",
                |at| write(at, "model/tokenizer.json", ""),
                SPEAK,
                "model/tokenizer.json is not a tokenizer: EOF while parsing a value at line 1 column 0",
            ),
            again(
                "the tokenizer is garbage",
                |at| write(at, "model/tokenizer.json", [0x5a; 3000]),
                SPEAK,
                "model/tokenizer.json is not a tokenizer: expected value at line 1 column 1",
            ),
            again(
                "the tokenizer is cut short",
                |at| truncate(at, "model/tokenizer.json", 20_000),
                SPEAK,
                "model/tokenizer.json is not a tokenizer: EOF while parsing a value at line 989 column 16",
            ),
            again(
                "the tokenizer is another JSON file",
                |at| replace(at, "model/tokenizer.json", "tiny/cpu_int4/manifest.json"),
                SPEAK,
                "model/tokenizer.json is not a tokenizer: expected `,` or `}` at line 2 column 13",
            ),
            model(
                "the tokenizer is of a model that does not speak",
                |at| {
                    edit(at, "model/tokenizer.json", |all| {
                        all["added_tokens"].as_array_mut().unwrap().retain(|token| token["content"] != "<|tts|>");
                    })
                },
                SPEAK,
                "model/tokenizer.json has no token `<|tts|>`\n\
                hint: it belongs to another model",
            ),
            model(
                "the tokenizer has too many tokens",
                |at| {
                    edit(at, "model/tokenizer.json", |all| {
                        let vocab = all["model"]["vocab"].as_object_mut().unwrap();
                        vocab.extend((600..1000).map(|id| (format!("token{id}"), json!(id))));
                    })
                },
                SPEAK,
                "tokenizer.json has ids up to 999, text_embed has 576 rows\n\
                hint: the parts belong to different models",
            ),
        ],
    );
}

/// A recording for `--ref-audio voice.wav`.
fn voice(folder: &Path, content: impl AsRef<[u8]>) {
    write(folder, "voice.wav", content);
}

#[test]
fn a_recording_that_cannot_be_cloned_is_judged_before_the_model_loads() {
    check(
        &Model::Shared,
        &[
            request(
                "the recording is missing",
                |at| remove(at, "voice.wav"),
                CLONE,
                "cannot read `voice.wav`: there is no such file",
            ),
            request(
                "the recording is a folder",
                |at| {
                    remove(at, "voice.wav");
                    fs::create_dir(at.join("voice.wav")).unwrap();
                },
                CLONE,
                "cannot read `voice.wav`: it is a folder, and an audio file is wanted",
            ),
            request(
                "the recording is empty",
                |at| voice(at, ""),
                CLONE,
                "cannot read `voice.wav`: it is empty, and an audio file is wanted",
            ),
            request(
                "the recording is text",
                |at| voice(at, "Hello, this is my voice."),
                CLONE,
                "cannot read `voice.wav`: it is text, and an audio file is wanted",
            ),
            request(
                "the recording is a git-lfs pointer",
                |at| voice(at, LFS_POINTER),
                CLONE,
                "cannot read `voice.wav`: it is a Git LFS pointer, not the file it stands for, and an audio file \
                is wanted",
            ),
            request(
                "the recording is a web page",
                |at| voice(at, HTML_PAGE),
                CLONE,
                "cannot read `voice.wav`: it is HTML or XML, and an audio file is wanted",
            ),
            request(
                "the recording is a graph",
                |at| replace(at, "voice.wav", "tiny/cpu_fp32/audio_heads.onnx"),
                CLONE,
                "cannot read `voice.wav`: it is in no known audio format, or incomplete",
            ),
            request(
                "the recording is noise",
                |at| voice(at, (0..5000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<_>>()),
                CLONE,
                "cannot read `voice.wav`: it is in no known audio format, or incomplete",
            ),
            request(
                "the recording, its header is cut short",
                |at| truncate(at, "voice.wav", 30),
                CLONE,
                "cannot read `voice.wav`: it is incomplete",
            ),
            request(
                "the recording is a header alone",
                |at| truncate(at, "voice.wav", 44),
                CLONE,
                "cannot read `voice.wav`: it holds no sound",
            ),
            request(
                "the recording has no samples",
                |at| voice(at, wav([].into_iter(), 24_000)),
                CLONE,
                "cannot read `voice.wav`: it holds no sound",
            ),
            request(
                "the recording is silent",
                |at| voice(at, wav(std::iter::repeat_n(0, 48_000), 24_000)),
                CLONE,
                "voice.wav is silent, and a recording of a voice is wanted",
            ),
            request(
                "the recording is too long",
                |at| voice(at, wav((0..808_000).map(|n| (n % 99) as i16 * 100), 8_000)),
                CLONE,
                "cannot read `voice.wav`: it is longer than 100 s",
            ),
            request(
                "the recording, its rate is too low",
                |at| voice(at, wav((0..2000).map(|n| n as i16), 100)),
                CLONE,
                "cannot read `voice.wav`: its rate is 100 Hz, and 4000 to 384000 Hz are possible",
            ),
            request(
                "the recording, its samples are not finite",
                |at| {
                    let spec = hound::WavSpec {
                        channels: 1,
                        sample_rate: 24_000,
                        bits_per_sample: 32,
                        sample_format: hound::SampleFormat::Float,
                    };
                    let mut writer = hound::WavWriter::create(at.join("voice.wav"), spec).unwrap();
                    (0..24_000).for_each(|n| writer.write_sample(if n == 99 { f32::NAN } else { 0.1 }).unwrap());
                    writer.finalize().unwrap();
                },
                CLONE,
                "cannot read `voice.wav`: it is damaged: some samples are not finite numbers",
            ),
            request(
                "the recording has no transcript that can be used",
                nothing,
                "--model-path model --text Hello. --out out/speech.wav --ref-audio voice.wav --ref-text=...",
                "--ref-text cannot be used: the text has no letter or digit to speak",
            ),
        ],
    );
}

#[test]
fn a_flag_that_makes_no_sense_is_said_so() {
    check(
        &Model::Shared,
        &[
            flag(
                "no --out",
                "--text Hello.",
                "the following required arguments were not provided:\n\
                \x20 --out <FILE>\n\
                \n\
                Usage: higgs-tts --out <FILE> --text <TEXT>",
            ),
            flag(
                "an unknown flag",
                "--text Hello. --out out/speech.wav --sped 2",
                "unexpected argument '--sped' found\n\
                \n\
                \x20 tip: a similar argument exists: '--seed'\n\
                \n\
                Usage: higgs-tts --out <FILE> --text <TEXT> --seed <N>",
            ),
            flag(
                "an unknown command",
                "sing",
                "unrecognized subcommand 'sing'\n\
                \n\
                Usage: higgs-tts [OPTIONS] --out <FILE>\n\
                \x20      higgs-tts <COMMAND>",
            ),
            flag(
                "--temperature is not a number",
                "--text Hello. --out out/speech.wav --temperature nan",
                "invalid value 'nan' for '--temperature <T>': a number from 0 to 10 is wanted",
            ),
            flag(
                "--temperature is negative",
                "--text Hello. --out out/speech.wav --temperature=-0.1",
                "invalid value '-0.1' for '--temperature <T>': a number from 0 to 10 is wanted",
            ),
            flag(
                "--temperature is text",
                "--text Hello. --out out/speech.wav --temperature hot",
                "invalid value 'hot' for '--temperature <T>': a number from 0 to 10 is wanted",
            ),
            flag(
                "--temperature is infinite",
                "--text Hello. --out out/speech.wav --temperature inf",
                "invalid value 'inf' for '--temperature <T>': a number from 0 to 10 is wanted",
            ),
            flag(
                "--temperature with a comma",
                "--text Hello. --out out/speech.wav --temperature 0,8",
                "invalid value '0,8' for '--temperature <T>': a number from 0 to 10 is wanted",
            ),
            flag(
                "--top-p is 0",
                "--text Hello. --out out/speech.wav --top-p 0",
                "invalid value '0' for '--top-p <P>': a number above 0 and at most 1 is wanted",
            ),
            flag(
                "--top-p is 2",
                "--text Hello. --out out/speech.wav --top-p 2",
                "invalid value '2' for '--top-p <P>': a number above 0 and at most 1 is wanted",
            ),
            flag(
                "--top-k is negative",
                "--text Hello. --out out/speech.wav --top-k=-1",
                "invalid value '-1' for '--top-k <K>': a whole number from 0 to 18446744073709551615 is wanted",
            ),
            flag(
                "--seed is negative",
                "--text Hello. --out out/speech.wav --seed=-1",
                "invalid value '-1' for '--seed <N>': a whole number from 0 to 18446744073709551615 is wanted",
            ),
            flag(
                "--seed has more than 64 bits",
                "--text Hello. --out out/speech.wav --seed 18446744073709551616",
                "invalid value '18446744073709551616' for '--seed <N>': a whole number from 0 to 18446744073709551615 is wanted",
            ),
            flag(
                "--threads is 0",
                "--text Hello. --out out/speech.wav --threads 0",
                "invalid value '0' for '--threads <N>': a number from 1 to 256 is wanted",
            ),
            flag(
                "--max-frames is 0",
                "--text Hello. --out out/speech.wav --max-frames 0",
                "invalid value '0' for '--max-frames <N>': a number from 1 to 1000000 is wanted",
            ),
            flag(
                "--retries is negative",
                "--text Hello. --out out/speech.wav --retries=-1",
                "invalid value '-1' for '--retries <N>': a whole number from 0 to 18446744073709551615 is wanted",
            ),
            flag(
                "--sampler is unknown",
                "--text Hello. --out out/speech.wav --sampler greedy",
                "invalid value 'greedy' for '--sampler <RULES>'\n\
                \x20 [possible values: legal, reference]",
            ),
            flag(
                "--sample-format is unknown",
                "--text Hello. --out out/speech.wav --sample-format mp3",
                "invalid value 'mp3' for '--sample-format <FORMAT>'\n\
                \x20 [possible values: s16, f32]",
            ),
            flag(
                "--device is unknown",
                "--text Hello. --out out/speech.wav --device tpu",
                "invalid value 'tpu' for '--device <DEVICE>'\n\
                \x20 [possible values: cpu, cuda, auto]\n\
                \n\
                \x20 tip: a similar value exists: 'cpu'",
            ),
            flag(
                "--ref-text without --ref-audio",
                "--text Hello. --out out/speech.wav --ref-text Hello.",
                "the following required arguments were not provided:\n\
                \x20 --ref-audio <FILE>\n\
                \n\
                Usage: higgs-tts --out <FILE> --ref-audio <FILE> --text <TEXT> --ref-text <TEXT>",
            ),
            flag(
                "--text and --text-file",
                "--text Hello. --text-file x --out out/speech.wav",
                "the argument '--text <TEXT>' cannot be used with '--text-file <FILE>'\n\
                \n\
                Usage: higgs-tts --out <FILE> --text <TEXT>",
            ),
            flag(
                "--selftest and --text",
                "--text Hello. --selftest --out out/speech.wav",
                "the argument '--text <TEXT>' cannot be used with '--selftest'\n\
                \n\
                Usage: higgs-tts --out <FILE> --text <TEXT>",
            ),
            flag(
                "a flag twice",
                "--text Hello. --out out/speech.wav --seed 1 --seed 2",
                "the argument '--seed <N>' cannot be used multiple times\n\
                \n\
                Usage: higgs-tts [OPTIONS] --out <FILE>\n\
                \x20      higgs-tts <COMMAND>",
            ),
            request(
                "--json and the sound on one pipe",
                nothing,
                "--model-path model --text Hello. --out - --json",
                "--json and `--out -` both want standard output\n\
                hint: write the sound to a file, or leave --json out",
            ),
        ],
    );
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_gpu_that_cannot_be_used_is_an_error() {
    check(
        &Model::Shared,
        &[
            model(
                "--device cuda",
                nothing,
                "--model-path model --text Hello. --out out/speech.wav --device cuda",
                "no GPU can be used: this program is built without CUDA\n\
                hint: build with `--features cuda`, and let ORT_DYLIB_PATH name a CUDA build of ONNX Runtime",
            ),
            model(
                "--codec-device cuda",
                nothing,
                "--model-path model --text Hello. --out out/speech.wav --codec-device cuda",
                "no GPU can be used: this program is built without CUDA\n\
                hint: build with `--features cuda`, and let ORT_DYLIB_PATH name a CUDA build of ONNX Runtime",
            ),
            model(
                "--selftest with --device cuda",
                nothing,
                "--model-path model --selftest --out out/speech.wav --device cuda",
                "no GPU can be used: this program is built without CUDA\n\
                hint: build with `--features cuda`, and let ORT_DYLIB_PATH name a CUDA build of ONNX Runtime",
            ),
        ],
    );
}

#[test]
fn a_text_that_cannot_be_spoken_is_said_so() {
    check(
        &Model::Shared,
        &[
            request(
                "no text at all",
                nothing,
                "--model-path model --text= --out out/speech.wav",
                "the text has no letter or digit to speak",
            ),
            request(
                "nothing on standard input",
                nothing,
                "--model-path model --out out/speech.wav",
                "the text has no letter or digit to speak",
            ),
            request(
                "only dots",
                nothing,
                "--model-path model --text ... --out out/speech.wav",
                "the text has no letter or digit to speak",
            ),
            request(
                "only tags",
                nothing,
                "--model-path model --text <|emotion:elation|><|sfx:cough|> --out out/speech.wav",
                "the text has no letter or digit to speak",
            ),
            request(
                "only a token of the prompt",
                nothing,
                "--model-path model --text <|audio|> --out out/speech.wav",
                "the text has no letter or digit to speak",
            ),
            request(
                "only emoji",
                nothing,
                "--model-path model --text 😀🎉 --out out/speech.wav",
                "the text has no letter or digit to speak",
            ),
            request(
                "the file is missing",
                nothing,
                "--model-path model --text-file words.txt --out out/speech.wav",
                "cannot read the text from words.txt: No such file or directory (os error 2)",
            ),
            request(
                "the file is a folder",
                nothing,
                "--model-path model --text-file out --out out/speech.wav",
                "cannot read the text from out: Is a directory (os error 21)",
            ),
            request(
                "the file is empty",
                |at| write(at, "words.txt", ""),
                "--model-path model --text-file words.txt --out out/speech.wav",
                "the text has no letter or digit to speak",
            ),
            request(
                "the file is not UTF-8",
                |at| write(at, "words.txt", b"Gr\xfc\xdfe"),
                "--model-path model --text-file words.txt --out out/speech.wav",
                "the text from words.txt is not UTF-8: invalid utf-8 sequence of 1 bytes from index 2\n\
                hint: save it as UTF-8",
            ),
            request(
                "the file is UTF-16",
                |at| write(at, "words.txt", b"\xff\xfeH\0i\0"),
                "--model-path model --text-file words.txt --out out/speech.wav",
                "the text from words.txt is not UTF-8: invalid utf-8 sequence of 1 bytes from index 0\n\
                hint: save it as UTF-8",
            ),
            request(
                "the text is too long for one draw",
                |at| write(at, "words.txt", "word ".repeat(500)),
                "--model-path model --text-file words.txt --out out/speech.wav",
                "the text takes about 143 s to say, and one draw holds 75 s\n\
                hint: split it into parts of a few sentences",
            ),
            request(
                "the text never ends",
                |_| {},
                "--model-path model --text-file /dev/zero --out out/speech.wav",
                "the text has more than 16384 bytes\n\
                hint: split it into parts of a few sentences",
            ),
            request(
                "the text is too long to be looked at, whatever the length limit",
                |at| write(at, "words.txt", "x".repeat(50_000)),
                "--model-path model --text-file words.txt --out out/speech.wav --max-frames 9",
                "the text has more than 16384 bytes\n\
                hint: split it into parts of a few sentences",
            ),
            request(
                "the recording leaves no room in the context",
                |at| voice(at, wav((0..720_000).map(|n| (n % 99) as i16 * 100), 8_000)),
                "--model-path model --text Hello. --out out/speech.wav --ref-audio voice.wav --quiet",
                "warning: voice.wav lasts 90.0 s: 5 to 30 s are enough, and more makes everything slower\n\
                higgs-tts: the text and the reference take 2265 positions, the model has 2048\n\
                hint: use a shorter text or reference recording",
            ),
        ],
    );
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_model_loads() {
    check(
        &Model::Shared,
        &[
            request(
                "the output folder does not exist",
                nothing,
                "--model-path nowhere --text Hello. --out none/speech.wav",
                "cannot write `none/speech.wav`: the folder `none` does not exist",
            ),
            request(
                "it is a folder",
                nothing,
                "--model-path nowhere --text Hello. --out out",
                "cannot write `out`: it is a folder, and a file is wanted",
            ),
            request(
                "it is the folder above",
                nothing,
                "--model-path nowhere --text Hello. --out ..",
                "cannot write `..`: it is a folder, and a file is wanted",
            ),
            request(
                "it ends with a slash",
                nothing,
                "--model-path nowhere --text Hello. --out new/",
                "cannot write `new/`: it is not the name of a file",
            ),
            flag(
                "it has no name",
                "--model-path nowhere --text Hello. --out=",
                "a value is required for '--out <FILE>' but none was supplied",
            ),
            request(
                "its parent is a file",
                nothing,
                "--model-path nowhere --text Hello. --out voice.wav/speech.wav",
                "cannot write `voice.wav/speech.wav`: `voice.wav` is not a folder",
            ),
            request(
                "it is read-only",
                |at| {
                    let file = at.join("out/speech.wav");
                    let mut permissions = file.metadata().unwrap().permissions();
                    permissions.set_readonly(true);
                    fs::set_permissions(file, permissions).unwrap();
                },
                "--model-path nowhere --text Hello. --out out/speech.wav",
                "cannot write `out/speech.wav`: it is read-only",
            ),
            request(
                "it is a link that leads to itself",
                |at| symlink("loop.wav", at.join("out/loop.wav")).unwrap(),
                "--model-path nowhere --text Hello. --out out/loop.wav",
                "cannot write `out/loop.wav`: there are too many symbolic links on the way",
            ),
            request(
                "--selftest, and the folder does not exist",
                nothing,
                "--model-path nowhere --selftest --out none/speech.wav",
                "cannot write `none/speech.wav`: the folder `none` does not exist",
            ),
        ],
    );
}

#[test]
#[cfg(target_os = "linux")]
fn an_output_on_a_full_device_or_where_nothing_can_be_created_is_an_error() {
    check(
        &Model::Shared,
        &[
            failure(
                "the device is full",
                nothing,
                "--model-path model --text Hello. --out /dev/full --max-frames 9 --quiet",
                "cannot write `/dev/full`: No space left on device (os error 28)",
            ),
            failure(
                "--selftest on a full device",
                nothing,
                "--model-path model --selftest --out /dev/full --quiet",
                "cannot write `/dev/full`: No space left on device (os error 28)",
            ),
        ],
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_library_that_is_no_onnx_runtime_is_named() {
    fn library(case: &Case) -> Vec<(&'static str, &'static str)> {
        vec![("ORT_DYLIB_PATH", if case.name.contains("libm") { "libm.so.6" } else { "library.so" })]
    }
    check_with(
        &Model::Shared,
        &[
            runtime(
                "the library is missing",
                nothing,
                SPEAK,
                "cannot load ONNX Runtime from `library.so`: cannot open shared object file: No such file or \
                directory",
            ),
            runtime(
                "the library is text",
                |at| write(at, "library.so", "not a library"),
                SPEAK,
                "cannot load ONNX Runtime from `HERE/library.so`: it is not a shared library",
            ),
            runtime(
                "the library is a folder",
                |at| fs::create_dir(at.join("library.so")).unwrap(),
                SPEAK,
                "cannot load ONNX Runtime from `HERE/library.so`: it is not a file",
            ),
            runtime(
                "the library is empty",
                |at| write(at, "library.so", ""),
                SPEAK,
                "cannot load ONNX Runtime from `HERE/library.so`: it is not a shared library",
            ),
            runtime(
                "the library is libm",
                nothing,
                SPEAK,
                "cannot load ONNX Runtime from `libm.so.6`: it is a shared library, but not ONNX Runtime",
            ),
        ],
        library,
    );
}

/// The samples of a WAV file.
fn samples(wav: &[u8]) -> Vec<i16> {
    hound::WavReader::new(wav).unwrap().into_samples().map(Result::unwrap).collect()
}

#[test]
fn paths_with_spaces_and_letters_of_any_script_are_paths() {
    let folder = folder(&Model::Shared);
    let at = folder.path();
    fs::create_dir(at.join("Größe 音 🎧")).unwrap();
    for (from, to) in [("model", "модель 1"), ("voice.wav", "Größe 音 🎧/ein Klang"), ("out", "नई फ़ाइल")]
    {
        fs::rename(at.join(from), at.join(to)).unwrap();
    }
    write(at, "Größe 音 🎧/mots à dire.txt", "Hello.");
    let mut command = program();
    command.current_dir(at).args(["--model-path", "модель 1", "--text-file", "Größe 音 🎧/mots à dire.txt"]);
    command.args(["--ref-audio", "Größe 音 🎧/ein Klang", "--out", "नई फ़ाइल/ré sultat.wav", "--max-frames", "9"]);
    let Run { code, stderr, .. } = run(command, b"");
    assert_eq!(code, Some(4), "{stderr}");
    let expected = "voice of Größe 音 🎧/ein Klang (wave/pcm_s16le, 24000 Hz, mono, 1.20 s): 31 frames without";
    assert!(stderr.starts_with(expected), "{stderr}");
    assert!(stderr.contains("\nwrote नई फ़ाइल/ré sultat.wav: 0.36 s of audio in "), "{stderr}");
    assert_eq!(samples(&fs::read(at.join("नई फ़ाइल/ré sultat.wav")).unwrap()).len(), 9 * 960);
}

#[test]
fn a_recording_of_one_sample_without_an_extension_is_filled_with_silence() {
    let folder = folder(&Model::Shared);
    write(folder.path(), "click", wav([9000].into_iter(), 24_000));
    let mut command = program();
    command.current_dir(&folder).args(SPEAK.split(' ')).args(["--ref-audio", "click", "--quiet"]);
    let Run { code, stderr, .. } = run(command, b"");
    assert_eq!(
        stderr,
        "higgs-tts: warning: click lasts only 0.00 s: 5 to 30 s are best\n\
                        higgs-tts: warning: the sound is cut off: length cap\n"
    );
    assert_eq!(code, Some(4));
    assert_eq!(samples(&fs::read(folder.path().join("out/speech.wav")).unwrap()).len(), 9 * 960);
}

#[test]
fn a_reader_that_has_had_enough_ends_the_program_without_a_word() {
    for args in [
        "--model-path model --selftest --out -",
        "--model-path model --text Hello. --out - --max-frames 99 --retries 0",
    ] {
        let folder = folder(&Model::Shared);
        let mut command = program();
        command.current_dir(&folder).args(args.split(' '));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = [0];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        assert_eq!(&first, b"R");
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{args}");
        assert_eq!(output.status.code(), Some(0), "{args}");
    }
}

#[test]
fn without_a_reader_on_stderr_the_work_is_done_all_the_same() {
    for (text, code, length) in [("Hello 😀", 4, Some(9 * 960)), ("...", 2, None)] {
        let folder = folder(&Model::Shared);
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut command = program();
        command.current_dir(&folder).args(["--model-path", "model", "--out", "new.wav", "--max-frames", "9"]);
        let status = command.args(["--text", text]).stdin(Stdio::null()).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(code), "{text}");
        let written = fs::read(folder.path().join("new.wav")).ok();
        assert_eq!(written.map(|wav| samples(&wav).len()), length, "{text}");
    }
}
