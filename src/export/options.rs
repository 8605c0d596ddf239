//! What is exported, and how.

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    architecture::Architecture,
    importance::Importance,
    quantize::{BlockSize, Quantizer},
};
use crate::{error::UserError, manifest::Part, onnx::ElementType};

/// Device and precision of the language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Processors, weights of 4 bits, everything else in single precision.
    CpuInt4,
    /// Processors, single precision.
    CpuFp32,
    /// NVIDIA GPUs, half precision.
    CudaFp16,
    /// NVIDIA GPUs, weights of 4 bits, everything else in half precision.
    CudaInt4,
}

impl Target {
    /// The device as manifests name it.
    pub fn device(self) -> &'static str {
        if self.is_cpu() { "cpu" } else { "cuda" }
    }

    /// The precision as manifests name it.
    pub fn precision(self) -> &'static str {
        match self {
            Self::CpuInt4 | Self::CudaInt4 => "int4",
            Self::CpuFp32 => "fp32",
            Self::CudaFp16 => "fp16",
        }
    }

    pub(super) fn is_cpu(self) -> bool {
        matches!(self, Self::CpuInt4 | Self::CpuFp32)
    }

    pub(super) fn is_quantized(self) -> bool {
        matches!(self, Self::CpuInt4 | Self::CudaInt4)
    }

    /// Element type of hidden states and caches.
    pub(super) fn float(self) -> ElementType {
        if self.is_cpu() { ElementType::Float32 } else { ElementType::Float16 }
    }

    /// Element type of the text embeddings: half precision has more digits than the bfloat16 of the checkpoint.
    pub(super) fn text_float(self) -> ElementType {
        if self == Self::CpuFp32 { ElementType::Float32 } else { ElementType::Float16 }
    }
}

/// How the table of audio embeddings and heads is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AudioPrecision {
    /// Half precision: more digits than the bfloat16 of the checkpoint, which only values below 2^-14 lose.
    Fp16,
    /// Single precision.
    Fp32,
    /// 4 bits in blocks of 32, as older folders have it: two rows in three come out changed.
    Int4,
}

/// Everything that can be chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Device and precision.
    pub target: Target,
    /// How weights of 4 bits are made.
    pub quantizer: Quantizer,
    /// How many of them share a scale.
    pub block_size: BlockSize,
    /// How the audio table is stored.
    pub audio_precision: AudioPrecision,
    /// Whether the rotary tables are rounded to bfloat16, as they were in training.
    pub rope_bf16: bool,
    /// Layers that are not quantised: parts of their names, such as `layers.0.` or `mlp.down_proj`, where `*` stands for
    /// anything.
    pub keep: Vec<String>,
    /// How much inputs matter to the searching quantizers; without it, evenly.
    pub importance: Option<Importance>,
}

impl Options {
    /// The defaults of a target.
    pub fn new(target: Target) -> Self {
        Self {
            target,
            quantizer: Quantizer::Search,
            block_size: BlockSize::B32,
            audio_precision: if target == Target::CpuFp32 { AudioPrecision::Fp32 } else { AudioPrecision::Fp16 },
            rope_bf16: false,
            keep: Vec::new(),
            importance: None,
        }
    }

    /// Everything that was chosen must mean something.
    pub(super) fn check(&self, architecture: &Architecture) -> Result<()> {
        if !self.target.is_quantized() && (!self.keep.is_empty() || self.importance.is_some()) {
            let message = format!("nothing is quantised in {}", self.target.precision());
            let hint = "layers to keep and the importance of inputs belong to int4";
            bail!(UserError::request(message).with_hint(hint));
        }
        if let Some(importance) = &self.importance {
            let message = format!("the quantizer {} does not weigh inputs", self.quantizer.name());
            ensure!(self.quantizer.searches(), UserError::request(message));
            importance.check(architecture)?;
        }
        let names: Vec<String> = architecture.products().into_iter().map(|(name, _)| name).collect();
        for pattern in &self.keep {
            if pattern.is_empty() || !names.iter().any(|name| matches(pattern, name)) {
                let hint = format!("layers are called {} to {}", names[0], names[names.len() - 1]);
                bail!(UserError::request(format!("no layer is called `{pattern}`")).with_hint(hint));
            }
        }
        Ok(())
    }

    /// Whether a layer, such as `model.layers.0.mlp.down_proj`, is not quantised.
    pub(super) fn keeps(&self, layer: &str) -> bool {
        self.keep.iter().any(|pattern| matches(pattern, layer))
    }

    /// Element type in which audio embeddings and heads speak with the other parts.
    pub(super) fn audio_float(&self) -> ElementType {
        match (self.target, self.audio_precision) {
            (Target::CudaFp16, AudioPrecision::Fp16) => ElementType::Float16,
            _ => ElementType::Float32,
        }
    }

    /// Element type of the audio table's values; of 4 bits, before they are quantised.
    pub(super) fn audio_stored(&self) -> ElementType {
        match self.audio_precision {
            AudioPrecision::Fp16 => ElementType::Float16,
            AudioPrecision::Fp32 => ElementType::Float32,
            AudioPrecision::Int4 => self.audio_float(),
        }
    }

    /// The choices that a part depends on.
    pub(super) fn relevant(&self, part: Part) -> Vec<(&'static str, Value)> {
        let target = ("target", json!(format!("{} {}", self.target.device(), self.target.precision())));
        match part {
            Part::LlmDecoder if self.target.is_quantized() => {
                let mut settings = vec![
                    target,
                    ("rope_bf16", self.rope_bf16.into()),
                    ("quantizer", self.quantizer.name().into()),
                    ("block_size", self.block_size.weights().into()),
                    ("keep_fp16", self.keep.clone().into()),
                ];
                settings.extend(self.importance.iter().map(|of_inputs| ("importance", of_inputs.digest().into())));
                settings
            }
            Part::LlmDecoder => vec![target, ("rope_bf16", self.rope_bf16.into())],
            Part::AudioEmbed | Part::AudioHeads => {
                vec![target, ("audio_precision", self.audio_precision.name().into())]
            }
            Part::TextEmbed => vec![target],
            Part::AudioTokenizer | Part::AudioEncoder => Vec::new(),
        }
    }
}

impl AudioPrecision {
    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp16 => "fp16",
            Self::Fp32 => "fp32",
            Self::Int4 => "int4",
        }
    }
}

/// Whether the pieces of a pattern between its stars stand in a name, one after the other.
fn matches(pattern: &str, name: &str) -> bool {
    let rest = pattern.split('*').try_fold(name, |rest, piece| rest.find(piece).map(|at| &rest[at + piece.len()..]));
    rest.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_kept_by_parts_of_their_names() {
        let options = |pattern: &str| Options { keep: vec![pattern.into()], ..Options::new(Target::CpuInt4) };
        let name = "model.layers.10.mlp.down_proj";
        assert!(["down_proj", "layers.10.", "layers.1*down", "*"].iter().all(|pattern| options(pattern).keeps(name)));
        assert!(!["up_proj", "layers.1.", "down*layers"].iter().any(|pattern| options(pattern).keeps(name)));
        options("layers.35.").check(&Architecture::published()).unwrap();
        let error = options("layers.36.").check(&Architecture::published()).unwrap_err();
        assert_eq!(error.to_string(), "no layer is called `layers.36.`");
        let error = options("").check(&Architecture::published()).unwrap_err();
        assert_eq!(error.to_string(), "no layer is called ``");
        let dense = Options { target: Target::CpuFp32, ..options("down_proj") };
        let error = dense.check(&Architecture::published()).unwrap_err();
        assert_eq!(error.to_string(), "nothing is quantised in fp32");
    }
}
