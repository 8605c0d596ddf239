//! One graph opened in ONNX Runtime, and the tensors that go in and out.

use std::{borrow::Cow, path::Path, sync::Arc};

use anyhow::{Context, Result};
use half::f16;
use ort::{
    session::{NoSelectedOutputs, RunOptions, Session, SessionInputValue, builder::SessionBuilder},
    value::{DynValue, Tensor, TensorElementType},
};

use super::{Device, Runtime};
use crate::{error::UserError, manifest::Part, onnx::ElementType};

/// Stops the graphs from another thread, at the next operator.
#[derive(Clone)]
pub struct Interrupt(Arc<RunOptions<NoSelectedOutputs>>);

impl Interrupt {
    /// Nothing is interrupted yet.
    ///
    /// # Errors
    /// When ONNX Runtime is out of memory.
    pub fn new(_: &Runtime) -> Result<Self> {
        Ok(Self(Arc::new(RunOptions::new()?)))
    }

    /// Makes the run in progress, and every later one, end with an error.
    pub fn trigger(&self) {
        // Setting a flag does not fail; if it did, the run would end by itself later.
        let _ = self.0.terminate();
    }

    pub(super) fn options(&self) -> &RunOptions<NoSelectedOutputs> {
        &self.0
    }
}

impl std::fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupt")
    }
}

/// A part with its session.
#[derive(Debug)]
pub(super) struct OpenGraph {
    part: Part,
    pub(super) session: Session,
    pub(super) interrupt: Interrupt,
}

impl OpenGraph {
    /// Opens a file on a device.
    pub(super) fn open(
        runtime: &Runtime,
        interrupt: &Interrupt,
        part: Part,
        path: &Path,
        device: Device,
    ) -> Result<Self> {
        let session = open_session(runtime, path, device).map_err(|error| {
            let hint =
                "`higgs-tts doctor --model-path DIR` looks closer; downloading or exporting the folder again may help";
            let message = format!("cannot load {}", path.display());
            anyhow::anyhow!(reason(&error)).context(UserError::model(message).with_hint(hint))
        })?;
        Ok(Self { part, session, interrupt: interrupt.clone() })
    }

    /// Feeds the inputs by name and takes one output as `f32`, with its shape.
    pub(super) fn run(&mut self, inputs: Vec<(&str, DynValue)>, output: &str) -> Result<(Vec<usize>, Vec<f32>)> {
        let value = self.run_raw(inputs, output)?;
        Ok((shape(&value), floats(&value)?))
    }

    /// Feeds the inputs by name and takes one output as it is.
    pub(super) fn run_raw<'n, N: Into<Cow<'n, str>>>(
        &mut self,
        inputs: Vec<(N, DynValue)>,
        output: &str,
    ) -> Result<DynValue> {
        let inputs: Vec<(Cow<'_, str>, SessionInputValue<'_>)> =
            inputs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        let part = self.part.name();
        let mut outputs = self
            .session
            .run_with_options(inputs, self.interrupt.options())
            .with_context(|| format!("{part} failed"))?;
        outputs.remove(output).with_context(|| format!("{part} gave no `{output}`"))
    }
}

fn open_session(runtime: &Runtime, path: &Path, device: Device) -> ort::Result<Session> {
    let builder = Session::builder(runtime.environment())?;
    // Lengths change from run to run, so a remembered memory pattern is of no use.
    let builder = builder.with_memory_pattern(false)?;
    let mut builder = match device {
        Device::Cpu => builder,
        Device::Cuda => with_cuda(builder)?,
    };
    builder.commit_from_file(path)
}

/// Registers the CUDA provider, and fails if it cannot start: by default ort would fall back to the CPU without a word.
#[cfg(feature = "cuda")]
fn with_cuda(builder: SessionBuilder) -> ort::Result<SessionBuilder> {
    Ok(builder.with_execution_providers([ort::ep::CUDA::default().build().error_on_failure()])?)
}

#[cfg(not(feature = "cuda"))]
fn with_cuda(_: SessionBuilder) -> ort::Result<SessionBuilder> {
    Err(ort::Error::new("this program is built without CUDA"))
}

/// Whether CUDA can be used: the program is built for it, the library has it, and the provider starts.
///
/// # Errors
/// A [`UserError`] that says what is missing.
pub(crate) fn check_cuda(runtime: &Runtime) -> Result<()> {
    if !cfg!(feature = "cuda") {
        let hint = "build with `--features cuda`, and let ORT_DYLIB_PATH name a CUDA build of ONNX Runtime";
        return Err(UserError::model("this program is built without CUDA").with_hint(hint).into());
    }
    let hint = "let ORT_DYLIB_PATH name the library of the Python package onnxruntime-gpu";
    if !runtime.providers().iter().any(|provider| provider == "CUDAExecutionProvider") {
        let message = format!("this ONNX Runtime has no CUDA ({})", runtime.library());
        return Err(UserError::model(message).with_hint(hint).into());
    }
    let start = || -> ort::Result<()> {
        with_cuda(Session::builder(runtime.environment())?)?;
        Ok(())
    };
    start().map_err(|error| UserError::model(reason(&error)).with_hint("check the driver, CUDA and cuDNN").into())
}

/// What an error of ONNX Runtime says, without the places in its sources: the lines after the first, and in the first
/// all before the name of the kind of error, as in `/a/b.cc:1 F() [ONNXRuntimeError] : 1 : FAIL : what it says`.
fn reason(error: &ort::Error) -> String {
    let line = error.message().lines().next().unwrap_or_default();
    let after_kind = line.rsplit_once("[ONNXRuntimeError] : ").and_then(|(_, rest)| rest.splitn(3, " : ").nth(2));
    after_kind.unwrap_or(line).trim().to_owned()
}

/// A tensor of floats in the type that a graph takes.
pub(super) fn float_tensor(shape: &[usize], values: &[f32], element_type: ElementType) -> Result<DynValue> {
    Ok(match element_type {
        ElementType::Float16 => {
            let values: Vec<f16> = values.iter().copied().map(f16::from_f32).collect();
            Tensor::from_array((shape, values))?.into_dyn()
        }
        _ => Tensor::from_array((shape, values.to_vec()))?.into_dyn(),
    })
}

/// A tensor of 64-bit integers.
pub(super) fn int_tensor(shape: &[usize], values: Vec<i64>) -> Result<DynValue> {
    Ok(Tensor::from_array((shape, values))?.into_dyn())
}

/// The values of a float tensor, whatever its precision.
pub(super) fn floats(value: &DynValue) -> Result<Vec<f32>> {
    Ok(match value.dtype().tensor_type() {
        Some(TensorElementType::Float16) => {
            value.try_extract_tensor::<f16>()?.1.iter().map(|value| value.to_f32()).collect()
        }
        _ => value.try_extract_tensor::<f32>()?.1.to_vec(),
    })
}

/// The shape of a tensor.
pub(super) fn shape(value: &DynValue) -> Vec<usize> {
    let shape = value.dtype().tensor_shape();
    shape.map_or_else(Vec::new, |shape| shape.iter().map(|&length| length.max(0).unsigned_abs() as usize).collect())
}
