//! The six graphs in ONNX Runtime: the only home of `ort`.
//!
//! Between the parts everything is `f32`; each graph says which float type it takes and gives, and values are cast at
//! its door, so that folders of any precision run alike.

pub mod codec;
pub mod contract;
pub mod decoder;
pub mod device;
pub mod embeds;
pub mod probe;
pub mod runtime;
mod session;

use anyhow::Result;

use self::{
    contract::LanguageContract,
    decoder::Decoder,
    embeds::{AudioEmbed, AudioHeads, TextEmbed},
    session::OpenGraph,
};
use crate::{
    error::UserError,
    manifest::{Manifest, Part},
};

pub use self::{
    device::{Device, DeviceChoice},
    runtime::Runtime,
    session::Interrupt,
};

/// Where the language model and the codec run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devices {
    /// Device of the language model's parts.
    pub language: Device,
    /// Device of the codec's parts.
    pub codec: Device,
    /// What the person should know about the choice.
    pub notes: Vec<String>,
}

/// Decides on devices. The codec follows the language model unless a device is chosen for it: cuDNN, which only its
/// convolutions need, may be broken while the rest of CUDA works.
///
/// # Errors
/// A [`UserError`] when a device that was asked for cannot be used.
pub fn resolve_devices(
    runtime: &Runtime,
    manifest: &Manifest,
    language: Option<DeviceChoice>,
    codec: Option<DeviceChoice>,
) -> Result<Devices> {
    let cuda = || session::check_cuda(runtime);
    let (language, note) = device::choose(language, manifest.execution_provider(), cuda)?;
    let mut notes: Vec<String> = note.into_iter().collect();
    let codec = match codec {
        None => language,
        Some(_) => {
            let (device, note) = device::choose(codec, None, cuda)?;
            notes.extend(note.map(|note| format!("codec: {note}")));
            device
        }
    };
    Ok(Devices { language, codec, notes })
}

/// Opens the language model's four graphs.
///
/// # Errors
/// A [`UserError`] when one cannot be used.
pub fn open_language(
    runtime: &Runtime,
    interrupt: &Interrupt,
    manifest: &Manifest,
    contract: &LanguageContract,
    device: Device,
) -> Result<(TextEmbed, AudioEmbed, Decoder, AudioHeads)> {
    if contract.fused_norms && device == Device::Cpu {
        let message = "this decoder normalises queries and keys inside GroupQueryAttention, which no CPU kernel does";
        let hint = "use a folder whose norms stand outside, as `higgs-tts export` makes them";
        return Err(UserError::model(message).with_hint(hint).into());
    }
    let open = |part: Part| OpenGraph::open(runtime, interrupt, part, &manifest.file(part)?, device);
    let LanguageContract { hidden_size, text_vocab_size, .. } = *contract;
    Ok((
        TextEmbed { graph: open(Part::TextEmbed)?, vocab_size: text_vocab_size, hidden_size },
        AudioEmbed { graph: open(Part::AudioEmbed)?, hidden_size },
        Decoder { graph: open(Part::LlmDecoder)?, contract: contract.clone(), device },
        AudioHeads { graph: open(Part::AudioHeads)?, contract: contract.clone() },
    ))
}
