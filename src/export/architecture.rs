//! `config.json` of a checkpoint → the sizes of the language model.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::codec::CodecConfig;
use crate::error::UserError;

/// Sizes and constants of the language model.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// Length H of embeddings and hidden states.
    pub hidden_size: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values.
    pub kv_heads: usize,
    /// Length of one head; not hidden size ÷ heads in this model.
    pub head_dim: usize,
    /// Length inside the feed-forward network.
    pub intermediate_size: usize,
    /// Rows of the text embedding table.
    pub text_vocab_size: usize,
    /// Positions that the rotary tables cover.
    pub positions: usize,
    /// Base θ of the rotary frequencies.
    pub rope_theta: f64,
    /// What is added to the mean square before its root is taken.
    pub rms_norm_eps: f64,
    /// Codebooks.
    pub codebooks: usize,
    /// Entries of a codebook in the language model, BOC and EOC included.
    pub codebook_entries: usize,
}

/// Name of the text embedding table.
pub(super) const TEXT_EMBEDDING: &str = "tied.embedding.text_embedding.weight";
/// Name of the audio embedding table, which is the audio head as well.
pub(super) const AUDIO_EMBEDDING: &str = "tied.embedding.modality_embeddings.0.embedding.weight";
/// Name of the last norm.
pub(super) const FINAL_NORM: &str = "body.norm.weight";

/// Name of a weight of a layer, such as `mlp.gate_proj`.
pub(super) fn layer_weight(layer: usize, weight: &str) -> String {
    format!("body.layers.{layer}.{weight}.weight")
}

/// No length is larger; the limit keeps products of them in range.
const LARGEST: usize = 1 << 20;
/// Far more than any model has; each takes memory before a weight of it is missed.
const MOST_LAYERS: usize = 1000;

impl Architecture {
    /// The published model of 4 billion parameters.
    pub fn published() -> Self {
        Self {
            hidden_size: 2560,
            layers: 36,
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            intermediate_size: 9728,
            text_vocab_size: 151_936,
            positions: 32_768,
            rope_theta: 1e6,
            rms_norm_eps: 1e-6,
            codebooks: 8,
            codebook_entries: 1026,
        }
    }

    /// Reads `config.json` of a checkpoint.
    ///
    /// # Errors
    /// A [`UserError`] when the file is missing, describes another kind of model, or leaves a number out. Nothing is
    /// ever assumed: a reader that falls back to θ = 10000 makes a model that speaks nonsense.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let hint = "name the folder that the published checkpoint was downloaded to";
        let bytes =
            std::fs::read(path).with_context(|| UserError::request(format!("cannot open {shown}")).with_hint(hint))?;
        let config: Value = serde_json::from_slice(&bytes)
            .with_context(|| UserError::request(format!("{shown} is not valid JSON")).with_hint(hint))?;
        Self::parse(&config).with_context(|| UserError::request(format!("{shown} cannot be used")).with_hint(hint))
    }

    fn parse(config: &Value) -> Result<Self> {
        let text = &config["text_config"];
        let audio = &config["audio_encoder_config"];
        ensure!(text.is_object() && audio.is_object(), "it has no `text_config` and `audio_encoder_config`");
        let size = |of: &Value, key: &str| {
            let value = of[key].as_u64().filter(|&value| value > 0).and_then(|value| usize::try_from(value).ok());
            let value = value.with_context(|| format!("it has no positive number `{key}`"))?;
            ensure!(value <= LARGEST, "`{key}` is {value}, and no model is as large");
            Ok(value)
        };
        let expect = |of: &Value, key: &str, wanted: Value| {
            let found = &of[key];
            ensure!(found.is_null() || *found == wanted, "`{key}` is {found}, and only {wanted} is known");
            Ok(())
        };
        expect(text, "hidden_act", "silu".into())?;
        expect(text, "attention_bias", false.into())?;
        expect(text, "use_sliding_window", false.into())?;
        expect(audio, "tie_word_embeddings", true.into())?;
        // Newer writers say `rope_parameters`, older ones `rope_scaling` or a bare key.
        let rope = [&text["rope_parameters"], &text["rope_scaling"], text];
        rope.iter().try_for_each(|rope| expect(rope, "rope_type", "default".into()))?;
        let rope_theta =
            rope.iter().find_map(|rope| rope["rope_theta"].as_f64()).filter(|&theta| theta > 1.0 && theta < 1e12);
        let rms_norm_eps = text["rms_norm_eps"].as_f64().filter(|&epsilon| epsilon > 0.0 && epsilon < 1.0);
        let architecture = Self {
            hidden_size: size(text, "hidden_size")?,
            layers: size(text, "num_hidden_layers")?,
            heads: size(text, "num_attention_heads")?,
            kv_heads: size(text, "num_key_value_heads")?,
            head_dim: size(text, "head_dim")?,
            intermediate_size: size(text, "intermediate_size")?,
            text_vocab_size: size(text, "vocab_size")?,
            positions: size(text, "max_position_embeddings")?,
            rope_theta: rope_theta.context("it has no `rope_theta`")?,
            rms_norm_eps: rms_norm_eps.context("it has no `rms_norm_eps` between 0 and 1")?,
            codebooks: size(audio, "num_codebooks")?,
            codebook_entries: size(audio, "vocab_size")?,
        };
        let Self { heads, kv_heads, head_dim, layers, .. } = architecture;
        ensure!(layers <= MOST_LAYERS, "no model has {layers} layers");
        ensure!(architecture.query_size() <= LARGEST, "no model has {heads} heads of length {head_dim}");
        ensure!(heads.is_multiple_of(kv_heads), "{heads} heads cannot share {kv_heads} heads of keys and values");
        ensure!(head_dim.is_multiple_of(2), "heads of odd length {head_dim} cannot be rotated");
        Ok(architecture)
    }

    /// Length of all queries side by side.
    pub fn query_size(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Length of all keys, or values, side by side.
    pub fn kv_size(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Rows of the audio embedding table.
    pub fn audio_rows(&self) -> usize {
        self.codebooks * self.codebook_entries
    }

    /// Checks that the codec has the codes that the language model speaks.
    pub(super) fn check_codec(&self, codec: &CodecConfig) -> Result<()> {
        // Two entries are BOC and EOC.
        let (found, expected) = ((codec.codebooks, codec.codebook_size + 2), (self.codebooks, self.codebook_entries));
        let message =
            || UserError::request(format!("the codec has codebooks {found:?}, the language model {expected:?}"));
        ensure!(found == expected, message());
        Ok(())
    }

    /// The products with weight matrices in the decoder: each one's name, such as `model.layers.0.mlp.down_proj`, and
    /// its number of inputs.
    pub(super) fn products(&self) -> Vec<(String, usize)> {
        let of_a_layer = [
            ("attn.qkv_proj", self.hidden_size),
            ("attn.o_proj", self.query_size()),
            ("mlp.gate_proj", self.hidden_size),
            ("mlp.up_proj", self.hidden_size),
            ("mlp.down_proj", self.intermediate_size),
        ];
        let of = |layer| of_a_layer.map(|(name, inputs)| (format!("model.layers.{layer}.{name}"), inputs));
        (0..self.layers).flat_map(of).collect()
    }

    /// Names and shapes of the language model's weights in a checkpoint.
    pub fn weights(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, intermediate) = (self.hidden_size, self.intermediate_size);
        let mut weights = vec![
            (TEXT_EMBEDDING.to_owned(), vec![self.text_vocab_size, hidden]),
            (AUDIO_EMBEDDING.to_owned(), vec![self.audio_rows(), hidden]),
            (FINAL_NORM.to_owned(), vec![hidden]),
        ];
        let of_a_layer = [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![self.query_size(), hidden]),
            ("self_attn.k_proj", vec![self.kv_size(), hidden]),
            ("self_attn.v_proj", vec![self.kv_size(), hidden]),
            ("self_attn.o_proj", vec![hidden, self.query_size()]),
            ("self_attn.q_norm", vec![self.head_dim]),
            ("self_attn.k_norm", vec![self.head_dim]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![intermediate, hidden]),
            ("mlp.up_proj", vec![intermediate, hidden]),
            ("mlp.down_proj", vec![hidden, intermediate]),
        ];
        for layer in 0..self.layers {
            weights.extend(of_a_layer.iter().map(|(name, shape)| (layer_weight(layer, name), shape.clone())));
        }
        weights
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Value {
        json!({
            "text_config": {
                "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 32, "intermediate_size": 160, "vocab_size": 576, "max_position_embeddings": 2048,
                "rms_norm_eps": 1e-6, "rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"},
                "hidden_act": "silu", "attention_bias": false,
            },
            "audio_encoder_config": {"num_codebooks": 8, "vocab_size": 1026, "tie_word_embeddings": true},
        })
    }

    #[test]
    fn the_base_of_the_frequencies_is_found_in_every_place_and_never_assumed() {
        assert_eq!(Architecture::parse(&config()).unwrap().rope_theta, 1e6);
        for place in ["rope_scaling", ""] {
            let mut config = config();
            let text = config["text_config"].as_object_mut().unwrap();
            text.remove("rope_parameters");
            assert_eq!(
                Architecture::parse(&json!({"text_config": text, "audio_encoder_config": {}})).unwrap_err().to_string(),
                "it has no `rope_theta`"
            );
            let theta = json!({"rope_theta": 5e5});
            if place.is_empty() {
                text.insert("rope_theta".into(), 5e5.into());
            } else {
                text.insert(place.into(), theta);
            }
            assert_eq!(Architecture::parse(&config).unwrap().rope_theta, 5e5);
        }
    }

    #[test]
    fn what_would_be_exported_wrongly_is_refused() {
        let refused = |part: &str, key: &str, value: Value| {
            let mut config = config();
            config[part][key] = value;
            Architecture::parse(&config).unwrap_err().to_string()
        };
        assert_eq!(refused("text_config", "head_dim", Value::Null), "it has no positive number `head_dim`");
        assert_eq!(refused("text_config", "num_hidden_layers", 1001.into()), "no model has 1001 layers");
        assert_eq!(refused("text_config", "head_dim", (1 << 20).into()), "no model has 4 heads of length 1048576");
        for wrong in [0.0, -1.0, 1.0, 1e300] {
            let epsilon = refused("text_config", "rms_norm_eps", wrong.into());
            assert_eq!(epsilon, "it has no `rms_norm_eps` between 0 and 1");
            let rope = refused("text_config", "rope_parameters", json!({ "rope_theta": wrong }));
            assert_eq!(rope, "it has no `rope_theta`");
        }
        let huge = refused("text_config", "hidden_size", u64::MAX.into());
        assert_eq!(huge, "`hidden_size` is 18446744073709551615, and no model is as large");
        assert_eq!(
            refused("text_config", "attention_bias", true.into()),
            "`attention_bias` is true, and only false is known"
        );
        let untied = refused("audio_encoder_config", "tie_word_embeddings", false.into());
        assert_eq!(untied, "`tie_word_embeddings` is false, and only true is known");
        let rope = refused("text_config", "rope_parameters", json!({"rope_theta": 1e6, "rope_type": "yarn"}));
        assert_eq!(rope, "`rope_type` is \"yarn\", and only \"default\" is known");
        assert_eq!(
            refused("text_config", "num_attention_heads", 3.into()),
            "3 heads cannot share 2 heads of keys and values"
        );
    }

    #[test]
    fn the_published_model_has_its_number_of_parameters() {
        let parameters: usize =
            Architecture::published().weights().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        assert_eq!(parameters, 4_043_480_576);
    }
}
