//! What the codec is made of: the config of the Higgs Audio v2 tokenizer, which the checkpoint relies on but does not
//! hold.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::lengths::HalfFrameRule;
use crate::error::UserError;

/// Name of the config in a checkpoint folder that has one.
pub(in crate::export) const FILE: &str = "higgs_audio_v2_tokenizer_config.json";

/// Shape of the codec.
#[derive(Debug, Clone, PartialEq)]
pub struct CodecConfig {
    /// Rate of the sound that goes in and comes out.
    pub sample_rate_hz: usize,
    /// Codes of a frame.
    pub codebooks: usize,
    /// Entries of a codebook.
    pub codebook_size: usize,
    /// Width of an entry.
    pub codebook_dim: usize,
    /// The autoencoder of the waveform.
    pub acoustic: AcousticConfig,
    /// The model that hears what is said.
    pub semantic: SemanticConfig,
}

/// Shape of the acoustic autoencoder (DAC).
#[derive(Debug, Clone, PartialEq)]
pub struct AcousticConfig {
    /// Channels of the encoder's first layer; they double with each block.
    pub encoder_hidden: usize,
    /// Channels of the decoder's first layer; they halve with each block.
    pub decoder_hidden: usize,
    /// Channels between encoder and decoder.
    pub hidden: usize,
    /// Strides of the encoder's blocks.
    pub downsampling_ratios: Vec<usize>,
    /// Strides of the decoder's blocks.
    pub upsampling_ratios: Vec<usize>,
}

/// Shape of the semantic model (HuBERT) and of the few convolutions after it.
#[derive(Debug, Clone, PartialEq)]
pub struct SemanticConfig {
    /// Rate of the sound that it hears.
    pub sample_rate_hz: usize,
    /// Samples of a step, at that rate.
    pub downsample_factor: usize,
    /// Channels of each convolution before the transformer.
    pub conv_channels: Vec<usize>,
    /// Kernels of these convolutions.
    pub conv_kernels: Vec<usize>,
    /// Strides of these convolutions.
    pub conv_strides: Vec<usize>,
    /// Kernel of the convolution that stands for positions.
    pub position_kernel: usize,
    /// Groups of that convolution.
    pub position_groups: usize,
    /// Width of the transformer.
    pub hidden: usize,
    /// Layers of the transformer.
    pub layers: usize,
    /// Attention heads of a layer.
    pub heads: usize,
    /// Inner width of a layer's feed-forward part.
    pub intermediate: usize,
    /// Epsilon of its norms.
    pub norm_epsilon: f32,
    /// Blocks of convolutions after the transformer.
    pub blocks: usize,
    /// Dilations of the residual units in each of these blocks.
    pub block_dilations: Vec<usize>,
    /// Kernel of these residual units.
    pub unit_kernel: usize,
    /// Kernel of the convolution before these blocks.
    pub kernel: usize,
}

impl CodecConfig {
    /// The codec of the published checkpoint: 24 kHz, 25 frames a second, 8 codes a frame.
    pub fn published() -> Self {
        Self {
            sample_rate_hz: 24_000,
            codebooks: 8,
            codebook_size: 1024,
            codebook_dim: 64,
            acoustic: AcousticConfig {
                encoder_hidden: 64,
                decoder_hidden: 1024,
                hidden: 256,
                downsampling_ratios: vec![8, 5, 4, 2, 3],
                upsampling_ratios: vec![8, 5, 4, 2, 3],
            },
            semantic: SemanticConfig {
                sample_rate_hz: 16_000,
                downsample_factor: 320,
                conv_channels: vec![512; 7],
                conv_kernels: vec![10, 3, 3, 3, 3, 2, 2],
                conv_strides: vec![5, 2, 2, 2, 2, 2, 2],
                position_kernel: 128,
                position_groups: 16,
                hidden: 768,
                layers: 12,
                heads: 12,
                intermediate: 3072,
                norm_epsilon: 1e-5,
                blocks: 2,
                block_dilations: vec![1, 1],
                unit_kernel: 3,
                kernel: 3,
            },
        }
    }

    /// Reads the config in a checkpoint folder that has one; without it, and for keys that it leaves out, the published
    /// codec is meant.
    ///
    /// # Errors
    /// A [`UserError`] when the file is not JSON, contradicts itself, or describes another kind of codec.
    pub fn read(checkpoint: &Path) -> Result<Self> {
        let path = checkpoint.join(FILE);
        if !path.is_file() {
            return Ok(Self::published());
        }
        let refused = || UserError::request(format!("cannot use the codec config {}", path.display()));
        let text = fs::read(&path).with_context(refused)?;
        serde_json::from_slice(&text).map_err(Into::into).and_then(|file| Self::parse(&file)).with_context(refused)
    }

    /// The acoustic part has leftovers with tempting names, which nothing uses: `n_codebooks`, `codebook_dim` and
    /// `sampling_rate`. The number of codebooks follows from the bandwidth, and the other two stand at the top.
    fn parse(file: &Value) -> Result<Self> {
        let known = Self::published();
        let (acoustic, semantic) = (&file["acoustic_model_config"], &file["semantic_model_config"]);
        let blocks = numbers(file, "strides", &vec![1; known.semantic.blocks])?.len();
        for (section, key, supported) in [
            (file, "strides", json!(vec![1; blocks])),
            (file, "channel_ratios", json!(vec![1; blocks])),
            (semantic, "conv_bias", json!(false)),
            (semantic, "do_stable_layer_norm", json!(false)),
            (semantic, "feat_extract_activation", json!("gelu")),
            (semantic, "feat_extract_norm", json!("group")),
            (semantic, "feat_proj_layer_norm", json!(true)),
            (semantic, "hidden_act", json!("gelu")),
        ] {
            let value = &section[key];
            ensure!(value.is_null() || *value == supported, "`{key}` is {value}, only {supported} is supported");
        }
        let mut config = Self {
            sample_rate_hz: number(file, "sample_rate", known.sample_rate_hz)?,
            codebooks: known.codebooks,
            codebook_size: number(file, "codebook_size", known.codebook_size)?,
            codebook_dim: number(file, "codebook_dim", known.codebook_dim)?,
            acoustic: AcousticConfig {
                encoder_hidden: number(acoustic, "encoder_hidden_size", known.acoustic.encoder_hidden)?,
                decoder_hidden: number(acoustic, "decoder_hidden_size", known.acoustic.decoder_hidden)?,
                hidden: number(acoustic, "hidden_size", known.acoustic.hidden)?,
                downsampling_ratios: numbers(acoustic, "downsampling_ratios", &known.acoustic.downsampling_ratios)?,
                upsampling_ratios: numbers(acoustic, "upsampling_ratios", &known.acoustic.upsampling_ratios)?,
            },
            semantic: SemanticConfig {
                sample_rate_hz: number(file, "semantic_sample_rate", known.semantic.sample_rate_hz)?,
                downsample_factor: number(file, "downsample_factor", known.semantic.downsample_factor)?,
                conv_channels: numbers(semantic, "conv_dim", &known.semantic.conv_channels)?,
                conv_kernels: numbers(semantic, "conv_kernel", &known.semantic.conv_kernels)?,
                conv_strides: numbers(semantic, "conv_stride", &known.semantic.conv_strides)?,
                position_kernel: number(semantic, "num_conv_pos_embeddings", known.semantic.position_kernel)?,
                position_groups: number(semantic, "num_conv_pos_embedding_groups", known.semantic.position_groups)?,
                hidden: number(semantic, "hidden_size", known.semantic.hidden)?,
                layers: number(semantic, "num_hidden_layers", known.semantic.layers)?,
                heads: number(semantic, "num_attention_heads", known.semantic.heads)?,
                intermediate: number(semantic, "intermediate_size", known.semantic.intermediate)?,
                norm_epsilon: known.semantic.norm_epsilon,
                blocks,
                block_dilations: numbers(file, "block_dilations", &known.semantic.block_dilations)?,
                unit_kernel: number(file, "unit_kernel_size", known.semantic.unit_kernel)?,
                kernel: number(file, "kernel_size", known.semantic.kernel)?,
            },
        };
        if !semantic["layer_norm_eps"].is_null() {
            let epsilon = semantic["layer_norm_eps"].as_f64().filter(|&epsilon| epsilon > 0.0 && epsilon < 1.0);
            config.semantic.norm_epsilon = epsilon.context("it has no `layer_norm_eps` between 0 and 1")? as f32;
        }
        config.check()?;
        let bandwidths = &file["target_bandwidths"];
        if !bandwidths.is_null() {
            let kbps = bandwidths.as_array().and_then(|all| all.last()?.as_f64());
            let kbps = kbps.with_context(|| format!("`target_bandwidths` is {bandwidths}"))?;
            let frames_per_second = config.sample_rate_hz.div_ceil(config.hop_length());
            let bits_per_code = config.codebook_size.next_power_of_two().ilog2() as usize;
            ensure!(bits_per_code > 0, "a codebook of one entry says nothing");
            config.codebooks = (1000.0 * kbps / (frames_per_second * bits_per_code) as f64) as usize;
            ensure!(config.codebooks > 0, "the bandwidth does not suffice for one code a frame");
        }
        Ok(config)
    }

    /// Samples of a frame.
    pub fn hop_length(&self) -> usize {
        self.acoustic.downsampling_ratios.iter().product()
    }

    /// Width of what is quantised: the acoustic and the semantic channels.
    pub fn width(&self) -> usize {
        self.acoustic.hidden + self.semantic.hidden
    }

    /// Steps of the semantic model in a frame, of which only the first is used.
    pub(super) fn semantic_steps(&self) -> usize {
        let SemanticConfig { sample_rate_hz, downsample_factor, .. } = self.semantic;
        self.hop_length() * sample_rate_hz / self.sample_rate_hz / downsample_factor
    }

    fn check(&self) -> Result<()> {
        let (acoustic, semantic) = (&self.acoustic, &self.semantic);
        for ratios in [&acoustic.downsampling_ratios, &acoustic.upsampling_ratios] {
            let plausible = ratios.len() <= 8 && ratios.iter().all(|&ratio| ratio <= 32);
            ensure!(plausible, "no codec has the ratios {ratios:?}");
        }
        let (down, up) = (self.hop_length(), acoustic.upsampling_ratios.iter().product::<usize>());
        ensure!(down <= 1 << 20, "no codec has frames of {down} samples");
        ensure!(down == up, "the encoder takes {down} samples for a frame, the decoder makes {up}");
        let halves = acoustic.upsampling_ratios.len();
        ensure!(
            acoustic.decoder_hidden.trailing_zeros() as usize >= halves,
            "{} channels cannot be halved {halves} times",
            acoustic.decoder_hidden
        );
        ensure!(semantic.layers <= MOST_LAYERS, "no codec has {} layers", semantic.layers);
        for sizes in [&semantic.conv_kernels, &semantic.conv_strides, &semantic.block_dilations] {
            let plausible = sizes.len() <= 8 && sizes.iter().all(|&size| size <= 32);
            ensure!(plausible, "no codec has kernels, strides or dilations of {sizes:?}");
        }
        let (stride, steps) = (semantic.conv_strides.iter().product::<usize>(), self.semantic_steps());
        ensure!(stride <= 1 << 20 && steps <= 1000, "no codec hears {steps} steps of {stride} samples in a frame");
        let (channels, kernels) = (semantic.conv_channels.len(), semantic.conv_kernels.len());
        ensure!(
            channels == kernels && kernels == semantic.conv_strides.len(),
            "`conv_dim`, `conv_kernel` and `conv_stride` have different lengths"
        );
        ensure!(semantic.kernel % 2 == 1 && semantic.unit_kernel % 2 == 1, "an even kernel would change the length");
        for parts in [semantic.heads, semantic.position_groups] {
            ensure!(semantic.hidden.is_multiple_of(parts), "{} channels in {parts} parts", semantic.hidden);
        }
        HalfFrameRule::new(self)?;
        Ok(())
    }
}

/// Far more than any has; each takes memory before a tensor of it is missed.
const MOST_LAYERS: usize = 1000;

fn number(section: &Value, key: &str, known: usize) -> Result<usize> {
    if section[key].is_null() { Ok(known) } else { positive(&section[key], key) }
}

fn numbers(section: &Value, key: &str, known: &[usize]) -> Result<Vec<usize>> {
    match &section[key] {
        Value::Null => Ok(known.to_vec()),
        value => {
            let all = value.as_array().filter(|all| !all.is_empty()).with_context(|| format!("`{key}` is {value}"))?;
            all.iter().map(|value| positive(value, key)).collect()
        }
    }
}

/// No number of this config is larger than a sample rate; the limit keeps products of them in range.
fn positive(value: &Value, key: &str) -> Result<usize> {
    let number = value.as_u64().filter(|number| (1..1 << 20).contains(number));
    Ok(number.with_context(|| format!("`{key}` is {value}"))? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_the_file_are_not_taken_for_its_numbers() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/checkpoint");
        let config = CodecConfig::read(&tiny).unwrap();
        assert_eq!((config.sample_rate_hz, config.codebooks, config.codebook_dim), (24_000, 8, 8));
        assert_eq!((config.hop_length(), config.width(), config.semantic_steps()), (960, 48, 2));
    }

    #[test]
    fn a_folder_without_the_file_means_the_published_codec() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(CodecConfig::read(folder.path()).unwrap(), CodecConfig::published());
        assert_eq!(CodecConfig::parse(&json!({})).unwrap(), CodecConfig::published());
        CodecConfig::published().check().unwrap();
    }

    #[test]
    fn other_kinds_of_codecs_are_refused() {
        let refused = |file| format!("{:#}", CodecConfig::parse(&file).unwrap_err());
        assert_eq!(refused(json!({"sample_rate": "24k"})), "`sample_rate` is \"24k\"");
        assert_eq!(refused(json!({"strides": [1, 2]})), "`strides` is [1,2], only [1,1] is supported");
        let stable = json!({"semantic_model_config": {"do_stable_layer_norm": true}});
        assert_eq!(refused(stable), "`do_stable_layer_norm` is true, only false is supported");
        let ratios = json!({"acoustic_model_config": {"upsampling_ratios": [8, 5, 4, 2]}});
        assert_eq!(refused(ratios), "the encoder takes 960 samples for a frame, the decoder makes 320");
        assert_eq!(refused(json!({"target_bandwidths": []})), "`target_bandwidths` is []");
        let stride = json!({"semantic_model_config": {"conv_stride": vec![1 << 19; 7]}});
        assert!(refused(stride).starts_with("no codec has kernels, strides or dilations of [524288, "));
        let ratios = vec![1 << 19; 8];
        let ratios = json!({"acoustic_model_config": {"upsampling_ratios": ratios, "downsampling_ratios": ratios}});
        assert!(refused(ratios).starts_with("no codec has the ratios [524288, "));
        let layers = json!({"semantic_model_config": {"num_hidden_layers": 1 << 19}});
        assert_eq!(refused(layers), "no codec has 524288 layers");
        let epsilon = json!({"semantic_model_config": {"layer_norm_eps": -1}});
        assert_eq!(refused(epsilon), "it has no `layer_norm_eps` between 0 and 1");
        let steps = "a frame of 960 samples is no whole number of steps of the semantic model";
        assert_eq!(refused(json!({"downsample_factor": 1})), steps);
        assert_eq!(refused(json!({"target_bandwidths": [0.1]})), "the bandwidth does not suffice for one code a frame");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(FILE), "{").unwrap();
        let error = CodecConfig::read(folder.path()).unwrap_err();
        assert!(error.downcast_ref::<UserError>().is_some());
        assert!(error.to_string().ends_with(FILE));
    }
}
