//! What several tests need: model folders put together from `tests/data`, and the reference's numbers.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod language;
pub(crate) mod onnx;

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use higgs_tts::codes::{Codebooks, DelayedCodes};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use tempfile::TempDir;

/// The codebooks of the model.
pub(crate) const BOOKS: Codebooks = Codebooks { count: 8, size: 1024 };

/// Where the test data lies.
pub(crate) fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

/// A model folder of the tiny model, such as `cpu_int4`. What is the same in all folders comes from `cpu_fp32`, what
/// only the folders of lower precision share from `cpu_int4`.
/// The folder goes when the value does; what a test changes in it, it changes in its own copy.
pub(crate) fn tiny(name: &str) -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let sources: &[&str] = if name == "cpu_fp32" { &[name] } else { &["cpu_fp32", "cpu_int4", name] };
    for source in sources {
        for entry in fs::read_dir(data().join("tiny").join(source)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    folder
}

/// What a run of the program left.
#[derive(Debug)]
pub(crate) struct Run {
    /// The exit code; none when a signal ended it, as the watchdog's does.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// The program, ready for arguments. It unpacks ONNX Runtime once for all tests, and knows no model folder.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_higgs-tts"));
    command.env("HIGGS_TTS_CACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("cache")).env_remove("HIGGS_TTS_MODEL");
    command
}

/// Runs it to the end, with these bytes on standard input. A run that hangs is ended, and has no exit code.
pub(crate) fn run(command: Command, stdin: &[u8]) -> Run {
    let output =
        assert_cmd::Command::from_std(command).timeout(Duration::from_secs(30)).write_stdin(stdin).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    Run { code: output.status.code(), stdout: output.stdout, stderr }
}

/// A file of reference values.
pub(crate) fn reference_json(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(data().join(name)).unwrap()).unwrap()
}

/// Tensors of the PyTorch implementation.
pub(crate) struct Tensors(HashMap<String, (Vec<usize>, Vec<f64>)>);

impl Tensors {
    /// Reads all of them; there are few.
    pub(crate) fn read() -> Self {
        Self::read_file("reference/torch_fp32.safetensors")
    }

    /// Reads all tensors of a file.
    pub(crate) fn read_file(name: &str) -> Self {
        let bytes = fs::read(data().join(name)).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let values = |view: &safetensors::tensor::TensorView<'_>| match view.dtype() {
            Dtype::F32 => {
                view.data().chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
            }
            Dtype::I64 => {
                view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect()
            }
            other => panic!("{other:?}"),
        };
        Self(
            tensors
                .tensors()
                .iter()
                .map(|(name, view)| (name.clone(), (view.shape().to_vec(), values(view))))
                .collect(),
        )
    }

    /// Shape of a tensor.
    pub(crate) fn shape(&self, name: &str) -> &[usize] {
        &self.0[name].0
    }

    /// Values of a float tensor.
    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.0[name].1.iter().map(|&value| value as f32).collect()
    }

    /// Values of a tensor of codes.
    pub(crate) fn codes(&self, name: &str) -> Vec<u16> {
        self.0[name].1.iter().map(|&value| value as u16).collect()
    }

    /// A tensor `[rows, codebooks]` of rows.
    pub(crate) fn rows(&self, name: &str) -> DelayedCodes {
        let mut rows = DelayedCodes::new(BOOKS);
        self.codes(name).chunks_exact(BOOKS.count).for_each(|row| rows.push(row));
        rows
    }

    /// Codes `[1, codebooks, frames]` in the order of frames.
    pub(crate) fn frames(&self, name: &str) -> Vec<u16> {
        let codes = self.codes(name);
        let frames = codes.len() / BOOKS.count;
        (0..frames).flat_map(|frame| (0..BOOKS.count).map(move |k| k * frames + frame)).map(|at| codes[at]).collect()
    }
}

/// Greatest difference of two sequences of the same length.
pub(crate) fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Cosine of the angle between two sequences of the same length.
pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
