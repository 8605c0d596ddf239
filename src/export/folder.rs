//! The files around the six graphs: manifest.json, genai_config.json and the tokenizer, as older tools expect them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use super::{Export, LOSS, SETTINGS, new_file};
use crate::{error::UserError, manifest::Part, onnx::Graph};

pub(super) fn write(export: &Export) -> Result<()> {
    let Tokenizer { bytes: tokenizer, ids } = Tokenizer::read(export)?;
    let file = |name: &str| export.folder.join(name);
    new_file::write(&file("tokenizer.json"), &tokenizer)?;
    if let Some(config) = companion(export, "tokenizer_config.json").filter(|path| path.is_file()) {
        let bytes = std::fs::read(&config).with_context(|| format!("cannot read {}", config.display()))?;
        new_file::write(&file("tokenizer_config.json"), &bytes)?;
    }
    new_file::write(&file("genai_config.json"), pretty(&genai_config(export, &ids)).as_bytes())?;
    new_file::write(&file("manifest.json"), pretty(&manifest(export, &ids)).as_bytes())
}

/// Checks that nothing in the folder would be mixed up: its model must be of the same target, and parts that stay must be
/// of the same weights. `anew` allows a model of another target if none of its parts stays.
pub(super) fn check(export: &Export, anew: bool) -> Result<()> {
    let (shown, target) = (export.folder.display(), export.options.target);
    let file = |name: &str| export.folder.join(name);
    let canonical = |path: &Path| path.canonicalize().ok();
    if let Some(checkpoint) = &export.checkpoint {
        let same = canonical(checkpoint).is_some_and(|path| Some(path) == canonical(&export.folder));
        ensure!(!same, UserError::request(format!("{shown} is the folder of the checkpoint: name another one")));
    }
    let refuse = |found: &str, wanted: &str| {
        let hint = "name another folder, or make all parts anew with --force";
        Err(UserError::request(format!("{shown} holds a model of {found}, not of {wanted}")).with_hint(hint).into())
    };
    let wanted = format!("{} {}", target.device(), target.precision());
    let stays = |part: Part| !anew || !export.parts.contains(&part);
    let manifest = std::fs::read(file("manifest.json")).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let manifest: Value = manifest.unwrap_or_default();
    if let (Some(device), Some(precision)) = (manifest["device"].as_str(), manifest["precision"].as_str()) {
        let found = format!("{device} {precision}");
        if found != wanted && Part::ALL.into_iter().any(stays) {
            return refuse(&found, &wanted);
        }
    }
    for part in Part::ALL {
        let settings = made(&file(&format!("{}.onnx", part.name()))).map(|made| made["settings"].clone());
        let Some(settings) = settings.filter(Value::is_object) else { continue };
        match settings["target"].as_str() {
            Some(found) if found != wanted && stays(part) => return refuse(found, &wanted),
            _ => {}
        }
        let (found, origin) = (&settings["weights"], export.weights.origin());
        if found != origin && !export.parts.contains(&part) {
            bail!(
                UserError::request(format!("{} in {shown} is of {found}, not of {origin}", part.name()))
                    .with_hint("name another folder, or make all parts anew")
            );
        }
    }
    Ok(())
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn companion(export: &Export, name: &str) -> Option<PathBuf> {
    export.checkpoint.as_deref().map(|folder| folder.join(name))
}

pub(super) struct Tokenizer {
    bytes: Vec<u8>,
    /// Of added tokens.
    ids: BTreeMap<String, u64>,
}

impl Tokenizer {
    /// The checkpoint's tokenizer; for made-up weights without one, a made-up one.
    pub(super) fn read(export: &Export) -> Result<Self> {
        let Some(path) = companion(export, "tokenizer.json") else {
            return Self::parse(bytes_as_tokens().to_string().into_bytes(), export.architecture.text_vocab_size);
        };
        let hint = "the checkpoint's own tokenizer.json belongs beside its config.json";
        let wrong = |what: String| move || UserError::request(what).with_hint(hint);
        let bytes = std::fs::read(&path).with_context(wrong(format!("cannot open {}", path.display())))?;
        Self::parse(bytes, export.architecture.text_vocab_size)
            .with_context(wrong(format!("{} cannot be used", path.display())))
    }

    fn parse(bytes: Vec<u8>, rows: usize) -> Result<Self> {
        let json: Value = serde_json::from_slice(&bytes).context("it is not valid JSON")?;
        let ids = added_tokens(&json).context("it has no list of added tokens")?;
        for name in SPECIAL {
            ensure!(ids.contains_key(name), "it has no token {name}");
        }
        ensure!(json["model"].is_object(), "it has no `model`");
        for (name, id) in &ids {
            ensure!(*id < rows as u64, "the id {id} of {name} is outside the {rows} rows of the text embeddings");
        }
        Ok(Self { bytes, ids })
    }
}

fn added_tokens(tokenizer: &Value) -> Option<BTreeMap<String, u64>> {
    let tokens = tokenizer["added_tokens"].as_array()?.iter();
    Some(tokens.filter_map(|token| Some((token["content"].as_str()?.to_owned(), token["id"].as_u64()?))).collect())
}

/// Tokens that structure prompts.
const SPECIAL: [&str; 6] = ["<|endoftext|>", "<|tts|>", "<|text|>", "<|audio|>", "<|ref_audio|>", "<|ref_text|>"];

/// A tokenizer for which every byte is a token.
fn bytes_as_tokens() -> Value {
    // The alphabet of byte-level tokenizers: printable bytes stand for themselves, others for characters above them.
    let prints = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut others = 256..;
    let letters = (0..256u32).filter_map(|byte| if prints(byte) { Some(byte) } else { others.next() });
    let vocab: Map<String, Value> =
        letters.filter_map(char::from_u32).zip(0..).map(|(letter, id)| (letter.to_string(), json!(id))).collect();
    let added: Vec<Value> = SPECIAL
        .iter()
        .zip(256..)
        .map(|(content, id)| {
            json!({"id": id, "content": content, "special": true, "normalized": false,
                   "single_word": false, "lstrip": false, "rstrip": false})
        })
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// What onnxruntime-genai writes beside its decoders.
fn genai_config(export: &Export, ids: &BTreeMap<String, u64>) -> Value {
    let architecture = &export.architecture;
    let end = ids.get("<|endoftext|>");
    let cuda = json!([{"cuda": {"enable_cuda_graph": "0"}}]);
    let mut model = json!({
        "type": "qwen3",
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "context_length": architecture.positions,
        "vocab_size": architecture.text_vocab_size,
        "decoder": {
            "session_options": {
                "log_id": "onnxruntime-genai",
                "provider_options": if export.options.target.is_cpu() { json!([]) } else { cuda },
            },
            "filename": "llm_decoder.onnx",
            "head_size": architecture.head_dim,
            "hidden_size": architecture.hidden_size,
            "inputs": {
                "inputs_embeds": "inputs_embeds",
                "attention_mask": "attention_mask",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {"present_key_names": "present.%d.key", "present_value_names": "present.%d.value"},
            "num_attention_heads": architecture.heads,
            "num_hidden_layers": architecture.layers,
            "num_key_value_heads": architecture.kv_heads,
        },
    });
    for (key, token) in [("bot_token_id", "<tool_call>"), ("eot_token_id", "</tool_call>")] {
        if let Some(id) = ids.get(token) {
            model[key] = json!(id);
        }
    }
    json!({
        "model": model,
        "search": {
            "diversity_penalty": 0.0,
            "do_sample": false,
            "early_stopping": true,
            "length_penalty": 1.0,
            "max_length": architecture.positions,
            "min_length": 0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": true,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
    })
}

fn manifest(export: &Export, ids: &BTreeMap<String, u64>) -> Value {
    let (architecture, target) = (&export.architecture, export.options.target);
    let parts: Map<String, Value> =
        Part::ALL.iter().map(|&part| (part.name().to_owned(), describe(export, part))).collect();
    let tokens: Map<String, Value> =
        SPECIAL.iter().filter_map(|&name| Some((name.to_owned(), json!(ids.get(name)?)))).collect();
    json!({
        "model_id": if export.weights.is_random() { "random weights" } else { "bosonai/higgs-audio-v3-tts-4b" },
        "device": target.device(),
        "precision": target.precision(),
        "execution_provider": if target.is_cpu() { "CPUExecutionProvider" } else { "CUDAExecutionProvider" },
        "made_by": {"program": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION"), "weights": export.weights.origin()},
        "sub_models": parts,
        "constants": {
            "sample_rate": export.codec.sample_rate_hz,
            "hop_length": export.codec.hop_length(),
            "frame_rate": export.codec.sample_rate_hz / export.codec.hop_length(),
            "num_codebooks": architecture.codebooks,
            "codebook_vocab_size": architecture.codebook_entries,
            "codec_codebook_size": architecture.codebook_entries - 2,
            "boc_id": architecture.codebook_entries - 2,
            "eoc_id": architecture.codebook_entries - 1,
        },
        "special_tokens": tokens,
    })
}

/// A part's entry: what older tools expect, and what the file says of its making.
fn describe(export: &Export, part: Part) -> Value {
    let architecture = &export.architecture;
    let (hidden, codebooks, entries) =
        (architecture.hidden_size, architecture.codebooks, architecture.codebook_entries);
    let filename = format!("{}.onnx", part.name());
    let (inputs, outputs) = match part {
        Part::TextEmbed => (vec!["input_ids[B,L] int64".to_owned()], vec![format!("inputs_embeds[B,L,{hidden}]")]),
        Part::AudioEmbed => {
            (vec![format!("codes[B,L,{codebooks}] int64")], vec![format!("audio_embeds[B,L,{hidden}]")])
        }
        Part::LlmDecoder => (
            ["inputs_embeds", "attention_mask", "past_key_values.*"].map(str::to_owned).to_vec(),
            ["hidden_states", "present.*"].map(str::to_owned).to_vec(),
        ),
        Part::AudioHeads => {
            (vec![format!("hidden_states[B,L,{hidden}]")], vec![format!("audio_logits[B,L,{codebooks},{entries}]")])
        }
        Part::AudioTokenizer => {
            (vec![format!("audio_codes[B,{codebooks},T] int64")], vec!["waveform[B,1,L] f32".to_owned()])
        }
        Part::AudioEncoder => {
            (vec!["input_values[B,1,T] f32 @24k".to_owned()], vec![format!("audio_codes[B,{codebooks},frames] int64")])
        }
    };
    let mut entry = json!({"filename": filename, "io": {"inputs": inputs, "outputs": outputs}});
    let sizes = match part {
        Part::TextEmbed => json!({"vocab_size": architecture.text_vocab_size, "hidden_size": hidden}),
        Part::AudioEmbed | Part::AudioHeads => json!({"num_codebooks": codebooks, "vocab_size": entries}),
        Part::LlmDecoder => json!({
            "runtime": "onnxruntime-genai",
            "genai_config": "genai_config.json",
            "hidden_size": hidden,
            "num_layers": architecture.layers,
            "num_attention_heads": architecture.heads,
            "num_kv_heads": architecture.kv_heads,
            "head_dim": architecture.head_dim,
            "intermediate_size": architecture.intermediate_size,
            "vocab_size": architecture.text_vocab_size,
            "context_length": architecture.positions,
            "rope_theta": architecture.rope_theta,
            "rms_norm_eps": architecture.rms_norm_eps,
            "tie_word_embeddings": true,
        }),
        Part::AudioTokenizer | Part::AudioEncoder => json!({
            "sample_rate": export.codec.sample_rate_hz,
            "hop_length": export.codec.hop_length(),
            "num_codebooks": codebooks,
            "codebook_size": entries - 2,
        }),
    };
    merge(&mut entry, sizes);
    if part == Part::AudioEncoder {
        entry["any_length"] = true.into();
    }
    if let Some(made) = made(&export.folder.join(&filename)) {
        merge(&mut entry, made);
    }
    entry
}

/// What a file says of its size and making; nothing if it is not there.
fn made(path: &Path) -> Option<Value> {
    let graph = Graph::read(path).ok()?;
    let json = |key: &str| graph.metadata.get(key).and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut made = json!({"bytes": graph.bytes});
    for (key, value) in [("settings", json(SETTINGS)), ("quantization_error", json(LOSS))] {
        if let Some(value) = value {
            made[key] = value;
        }
    }
    Some(made)
}

fn merge(into: &mut Value, from: Value) {
    if let (Value::Object(into), Value::Object(from)) = (into, from) {
        into.extend(from);
    }
}
