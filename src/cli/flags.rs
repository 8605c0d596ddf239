//! Flags and values of flags that several commands share.

use std::{env, num::NonZeroUsize, path::PathBuf};

use anyhow::Result;
use higgs_tts::{
    error::UserError,
    graphs::{Device, DeviceChoice},
    model::LoadOptions,
};

/// Declares a flag's value that stands for a value of the library.
macro_rules! flag_value {
    ($name:ident($of:ty): $($text:literal => $value:expr, $help:literal;)+) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(crate) $of);

        impl clap::ValueEnum for $name {
            fn value_variants<'a>() -> &'a [Self] {
                &[$(Self($value)),+]
            }

            fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
                let all = [$(($value, $text, $help)),+];
                let (_, text, help) = all.into_iter().find(|(value, ..)| *value == self.0)?;
                Some(clap::builder::PossibleValue::new(text).help(help))
            }
        }
    };
}

pub(crate) use flag_value;

flag_value! { DeviceArg(DeviceChoice):
    "cpu" => DeviceChoice::Only(Device::Cpu), "the processor";
    "cuda" => DeviceChoice::Only(Device::Cuda), "an NVIDIA GPU, or an error";
    "auto" => DeviceChoice::Auto, "an NVIDIA GPU if one can be used, else the processor";
}
/// Which model, and what runs it.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// Model folder, such as onnx/cpu_int4 [env: HIGGS_TTS_MODEL]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    model_path: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}

/// What runs a model.
#[derive(clap::Args)]
pub(crate) struct DeviceArgs {
    /// Device of the model; without it the folder decides
    #[arg(long, value_name = "DEVICE", help_heading = "Model")]
    device: Option<DeviceArg>,
    /// Device of the codec, if another one
    #[arg(long, value_name = "DEVICE", help_heading = "Model")]
    codec_device: Option<DeviceArg>,
    /// Threads; without it as many as this process may use
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Model")]
    threads: Option<NonZeroUsize>,
}

impl DeviceArgs {
    pub(crate) fn load_options(&self) -> LoadOptions {
        LoadOptions {
            device: self.device.map(|device| device.0),
            codec_device: self.codec_device.map(|device| device.0),
            threads: self.threads,
        }
    }
}

impl ModelArgs {
    pub(crate) fn load_options(&self) -> LoadOptions {
        self.devices.load_options()
    }

    /// The folder from the flag or else the environment, if there is one.
    pub(crate) fn named_folder(&self) -> Option<PathBuf> {
        let named = || env::var_os("HIGGS_TTS_MODEL").filter(|folder| !folder.is_empty()).map(PathBuf::from);
        self.model_path.clone().or_else(named)
    }

    pub(crate) fn folder(&self) -> Result<PathBuf> {
        self.named_folder().ok_or_else(|| {
            let hint = "name a model folder with --model-path or HIGGS_TTS_MODEL, such as onnx/cpu_int4";
            UserError::request("no model folder is given").with_hint(hint).into()
        })
    }
}

/// A thousand threads take a quarter of a minute to start, and no machine has so many cores to spare.
fn threads(text: &str) -> Result<NonZeroUsize, String> {
    let threads = text.parse().ok().filter(|threads| (1..=256).contains(threads)).and_then(NonZeroUsize::new);
    threads.ok_or_else(|| "a number from 1 to 256 is wanted".into())
}
