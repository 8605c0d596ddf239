//! On which device a part runs.

use anyhow::{Context, Result};

use crate::error::UserError;

/// What runs a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    Cpu,
    /// The first NVIDIA GPU.
    Cuda,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cpu => "the CPU",
            Self::Cuda => "CUDA",
        })
    }
}

/// What the caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if one can be used, else the processor.
    Auto,
    /// This device or none.
    Only(Device),
}

/// The device to use, and a note for the person when it is not the obvious one.
///
/// Without a choice the folder decides by the provider that it was made for. `cuda` tells whether CUDA can be used, or
/// why not; it is asked only when that matters.
///
/// # Errors
/// A [`UserError`] when CUDA is wanted and cannot be used.
pub fn choose(
    choice: Option<DeviceChoice>,
    provider: Option<&str>,
    cuda: impl FnOnce() -> Result<()>,
) -> Result<(Device, Option<String>)> {
    match (choice, provider) {
        (Some(DeviceChoice::Only(Device::Cpu)), _) => Ok((Device::Cpu, None)),
        (Some(DeviceChoice::Only(Device::Cuda)), _) => {
            cuda().context("no GPU can be used")?;
            Ok((Device::Cuda, None))
        }
        (Some(DeviceChoice::Auto), _) => match cuda() {
            Ok(()) => Ok((Device::Cuda, None)),
            Err(error) => Ok((Device::Cpu, Some(format!("running on the CPU, since no GPU can be used: {error:#}")))),
        },
        (None, Some("CUDAExecutionProvider")) => {
            cuda().map_err(|error| {
                let inner = error.downcast_ref::<UserError>().and_then(UserError::hint);
                let inner = inner.map_or_else(String::new, |hint| format!("; for the GPU, {hint}"));
                let hint = format!("`--device cpu` runs it on the CPU, slowly{inner}");
                error.context(UserError::model("this folder is made for CUDA, and no GPU can be used").with_hint(hint))
            })?;
            Ok((Device::Cuda, None))
        }
        (None, None | Some("CPUExecutionProvider")) => Ok((Device::Cpu, None)),
        (None, Some(other)) => {
            let note = format!("running on the CPU: this folder is made for {other}, which this program does not have");
            Ok((Device::Cpu, Some(note)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUDA: Option<&str> = Some("CUDAExecutionProvider");

    fn works() -> Result<()> {
        Ok(())
    }

    fn fails() -> Result<()> {
        Err(UserError::model("no driver").into())
    }

    #[test]
    fn without_a_choice_the_folder_decides() {
        assert_eq!(choose(None, Some("CPUExecutionProvider"), fails).unwrap(), (Device::Cpu, None));
        assert_eq!(choose(None, None, fails).unwrap(), (Device::Cpu, None));
        assert_eq!(choose(None, CUDA, works).unwrap(), (Device::Cuda, None));
        let error = choose(None, CUDA, fails).unwrap_err();
        assert_eq!(format!("{error:#}"), "this folder is made for CUDA, and no GPU can be used: no driver");
        let (device, note) = choose(None, Some("OpenVINOExecutionProvider"), fails).unwrap();
        assert_eq!(device, Device::Cpu);
        assert!(note.unwrap().contains("made for OpenVINOExecutionProvider"));
    }

    #[test]
    fn a_gpu_that_is_asked_for_and_not_there_is_an_error() {
        let error = choose(Some(DeviceChoice::Only(Device::Cuda)), None, fails).unwrap_err();
        assert_eq!(format!("{error:#}"), "no GPU can be used: no driver");
    }

    #[test]
    fn auto_takes_the_gpu_or_says_why_not() {
        assert_eq!(choose(Some(DeviceChoice::Auto), None, works).unwrap(), (Device::Cuda, None));
        let (device, note) = choose(Some(DeviceChoice::Auto), CUDA, fails).unwrap();
        assert_eq!(device, Device::Cpu);
        assert_eq!(note.unwrap(), "running on the CPU, since no GPU can be used: no driver");
    }

    #[test]
    fn the_cpu_is_always_there() {
        assert_eq!(choose(Some(DeviceChoice::Only(Device::Cpu)), CUDA, fails).unwrap(), (Device::Cpu, None));
    }
}
