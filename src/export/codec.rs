//! The codec: codes to sound (`audio_tokenizer`) and sound to codes (`audio_encoder`).
//!
//! Only standard operators are used, and everything is in single precision: a code is the nearest entry of a codebook,
//! and half precision would often take another.

mod acoustic;
mod config;
mod layers;
mod lengths;
mod quantizer;
mod resampler;
mod semantic;

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, bail};

pub(super) use self::config::FILE as CONFIG_FILE;
pub use self::config::{AcousticConfig, CodecConfig, SemanticConfig};
use self::{layers::Layers, lengths::HalfFrameRule};
use crate::{
    export::onnx::{ModelWriter, Node},
    onnx::ElementType,
};

/// What the names of the codec's tensors begin with in a checkpoint.
const PREFIX: &str = "tied.embedding.modality_embeddings.0.model.";

/// Finds the values of a tensor of the checkpoint by its name and the shape that it must have.
pub type Lookup<'l> = dyn Fn(&str, &[usize]) -> Result<Vec<f32>> + 'l;

/// Names and shapes of tensors of the checkpoint.
pub type Shapes = BTreeMap<String, Vec<usize>>;

/// Describes the decoder: `audio_codes` `[B, codebooks, T]` int64 → `waveform` `[B, 1, hop · T]` float32, unbounded.
///
/// Tensors are looked up one after another when they are written, and not at all if the model is only measured.
///
/// # Errors
/// When a tensor is not found or not finite, or the disk fails.
pub fn decoder(config: &CodecConfig, lookup: &Lookup<'_>, model: &mut ModelWriter<'_>) -> Result<()> {
    describe_decoder(config, &mut Layers::new(model, lookup))
}

/// Describes the encoder: `input_values` `[B, 1, n]` float32 → `audio_codes` `[B, codebooks, T]` int64.
///
/// It gives the reference's codes for every n, which needs a rule: where the acoustic half would give fewer frames than
/// the semantic one, it hears the sound with half a frame of silence on both sides. A sound too short for one frame is
/// filled up with silence.
///
/// Tensors are looked up one after another when they are written, and not at all if the model is only measured.
///
/// # Errors
/// When the parts of the codec do not fit together, a tensor is not found or not finite, or the disk fails.
pub fn encoder(config: &CodecConfig, lookup: &Lookup<'_>, model: &mut ModelWriter<'_>) -> Result<()> {
    describe_encoder(config, &mut Layers::new(model, lookup))
}

/// The tensors that [`decoder`] looks up.
///
/// # Errors
/// As there, but for tensors and disk.
pub fn decoder_tensors(config: &CodecConfig) -> Result<Shapes> {
    tensors(|layers| describe_decoder(config, layers))
}

/// The tensors that [`encoder`] looks up.
///
/// # Errors
/// As there, but for tensors and disk.
pub fn encoder_tensors(config: &CodecConfig) -> Result<Shapes> {
    tensors(|layers| describe_encoder(config, layers))
}

fn tensors(describe: impl FnOnce(&mut Layers<'_, '_>) -> Result<()>) -> Result<Shapes> {
    let unread = |name: &str, _: &[usize]| bail!("{name} is not there");
    let mut model = ModelWriter::measure(Path::new("codec.onnx"));
    let mut layers = Layers::new(&mut model, &unread);
    describe(&mut layers)?;
    Ok(layers.into_tensors())
}

fn describe_decoder(config: &CodecConfig, layers: &mut Layers<'_, '_>) -> Result<()> {
    let [codes, sound] = ["audio_codes", "waveform"];
    layers.input(codes, ElementType::Int64, config.codebooks, "frames");
    layers.output(sound, ElementType::Float32, 1, "samples");
    let features = quantizer::decoder(layers, config, codes)?;
    acoustic::decoder(layers, &config.acoustic, &features, sound)
}

fn describe_encoder(config: &CodecConfig, layers: &mut Layers<'_, '_>) -> Result<()> {
    let rule = HalfFrameRule::new(config)?;
    let [sound, codes] = ["input_values", "audio_codes"];
    layers.input(sound, ElementType::Float32, 1, "samples");
    layers.output(codes, ElementType::Int64, config.codebooks, "frames");
    let samples = lengths::fill(layers, sound, rule.shortest());
    let length = lengths::length(layers, &samples, "length");
    let semantic = semantic::encoder(layers, config, &samples, &length)?;
    let padded = rule.apply(layers, &samples, &length);
    let acoustic = acoustic::encoder(layers, &config.acoustic, &padded)?;
    layers.node(Node::new("Concat", &[&acoustic, &semantic], &["features"]).int("axis", 1));
    let features = layers.transpose("features", &[0, 2, 1], "features.frames");
    let mixed = layers.linear(&features, "fc", config.width(), config.width())?;
    quantizer::encoder(layers, config, &mixed, codes)
}
