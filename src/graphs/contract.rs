//! What each part must look like, checked on the file before a session is made.
//!
//! The graphs have the last word: names, ranks, element types and sizes are read from them, sizes must agree between
//! the parts, and every number that the folder's manifests claim must be the one found.

use std::path::Path;

use anyhow::Result;

use crate::{
    codes::Codebooks,
    error::UserError,
    manifest::{Manifest, Part},
    onnx::{Axis, ElementType, Graph, Port},
};

/// Sizes and element types of the language model's five parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LanguageContract {
    /// Length H of embeddings and hidden states.
    pub hidden_size: usize,
    /// Transformer layers, each with a key and a value cache.
    pub layers: usize,
    /// Heads of the KV cache.
    pub kv_heads: usize,
    /// Length of one head.
    pub head_dim: usize,
    /// Positions that the rotary tables cover: prompt and rows together must fit.
    pub positions: usize,
    /// Rows of the text embedding table.
    pub text_vocab_size: usize,
    /// Codebooks of the embeddings and heads.
    pub codebooks: Codebooks,
    /// Element type of the decoder's embeddings.
    pub embeds_type: ElementType,
    /// Element type of the KV cache.
    pub cache_type: ElementType,
    /// Element type of what the heads take.
    pub heads_type: ElementType,
    /// Whether the decoder normalises queries and keys inside its attention operator, which only GPU providers can.
    pub fused_norms: bool,
}

/// Sizes of the codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodecContract {
    /// Samples per second of sound.
    pub sample_rate_hz: u32,
    /// Samples per frame.
    pub hop_length: usize,
    /// Codebooks that it decodes.
    pub codebooks: Codebooks,
}

/// Reads the description of one part.
///
/// # Errors
/// A [`UserError`] when the file is missing or damaged.
pub fn read(manifest: &Manifest, part: Part) -> Result<Graph> {
    Graph::read(&manifest.file(part)?)
}

/// Checks the parts of the language model against each other and against the claims of the folder.
///
/// # Errors
/// A [`UserError`] that names the part and what was found and expected.
pub fn check_language(manifest: &Manifest) -> Result<LanguageContract> {
    let decoder = check_decoder(manifest, &read(manifest, Part::LlmDecoder)?)?;
    let hidden_size = decoder.hidden_size;

    let text = Checked::new(manifest, Part::TextEmbed, read(manifest, Part::TextEmbed)?);
    text.ports(&["input_ids"], &["inputs_embeds"])?;
    text.input("input_ids", &[ElementType::Int64], 2)?;
    let embeds = text.output("inputs_embeds", &FLOATS, 3)?;
    text.expect("hidden_size", text.fixed(embeds, 2), hidden_size)?;
    let table = text.graph.weights.iter().find(|weight| weight.shape.len() == 2);
    let text_vocab_size =
        table.map(|table| table.shape[0]).ok_or_else(|| text.unusable("it has no embedding table"))?;
    text.claims("hidden_size", hidden_size)?;
    text.claims("vocab_size", text_vocab_size)?;
    check_claims(manifest, Part::LlmDecoder, "vocab_size", text_vocab_size, &text.source())?;

    let heads = Checked::new(manifest, Part::AudioHeads, read(manifest, Part::AudioHeads)?);
    heads.ports(&["hidden_states"], &["audio_logits"])?;
    let hidden = heads.input("hidden_states", &FLOATS, 3)?;
    heads.expect("hidden_size", heads.fixed(hidden, 2), hidden_size)?;
    let logits = heads.output("audio_logits", &FLOATS, 4)?;
    let (Some(count), Some(vocab_size)) = (logits.fixed(2), logits.fixed(3)) else {
        return Err(heads.unusable(&format!("its output is {logits}, without a fixed number of codebooks and codes")));
    };
    let size = vocab_size.checked_sub(2).filter(|&size| size > 0).and_then(|size| u16::try_from(size).ok());
    let size = size.filter(|&size| count > 0 && size < u16::MAX - 2);
    let size =
        size.ok_or_else(|| heads.unusable(&format!("{count} codebooks of {vocab_size} entries make no sense")))?;
    let codebooks = Codebooks { count, size };
    let heads_type = hidden.element_type;
    heads.claims("num_codebooks", count)?;
    heads.claims("vocab_size", vocab_size)?;
    heads.claims("boc_id", usize::from(codebooks.boc()))?;
    heads.claims("eoc_id", usize::from(codebooks.eoc()))?;

    let audio = Checked::new(manifest, Part::AudioEmbed, read(manifest, Part::AudioEmbed)?);
    audio.ports(&["codes"], &["audio_embeds"])?;
    let codes = audio.input("codes", &[ElementType::Int64], 3)?;
    audio.expect("num_codebooks", audio.fixed(codes, 2), count)?;
    let embeds = audio.output("audio_embeds", &FLOATS, 3)?;
    audio.expect("hidden_size", audio.fixed(embeds, 2), hidden_size)?;
    let rows = count * vocab_size;
    if !audio.graph.weights.iter().any(|weight| weight.shape.first() == Some(&rows)) {
        return Err(audio.unusable(&format!("it has no table of {rows} rows ({count} codebooks of {vocab_size})")));
    }
    audio.claims("num_codebooks", count)?;
    audio.claims("vocab_size", vocab_size)?;
    Ok(LanguageContract { text_vocab_size, codebooks, heads_type, ..decoder })
}

/// Checks the decoder of the codec. The language model is not needed for it.
///
/// # Errors
/// A [`UserError`] that names what was found and expected.
pub fn check_codec_decoder(manifest: &Manifest) -> Result<CodecContract> {
    let part = Checked::named(manifest, Part::AudioTokenizer)?;
    part.ports(&["audio_codes"], &["waveform"])?;
    let codes = part.input("audio_codes", &[ElementType::Int64], 3)?;
    part.output("waveform", &[ElementType::Float32], 3)?;
    let count = part.fixed(codes, 1).or_else(|| part.claimed("num_codebooks")).unwrap_or(8);
    part.claims("num_codebooks", count)?;
    // The graph does not carry these three numbers, so the folder's word stands; the model's own are the default.
    let size = part.claimed("codebook_size").unwrap_or(1024);
    let hop_length = part.claimed("hop_length").unwrap_or(960);
    let sample_rate = part.claimed("sample_rate").unwrap_or(24_000);
    for (key, value) in [("codebook_size", size), ("hop_length", hop_length), ("sample_rate", sample_rate)] {
        check_claims(manifest, Part::AudioTokenizer, key, value, "the folder elsewhere")?;
    }
    let sample_rate_hz = u32::try_from(sample_rate).ok().filter(|&rate| rate >= 1000);
    let size = u16::try_from(size).ok().filter(|&size| size > 0 && size < u16::MAX - 2);
    match (sample_rate_hz, size) {
        (Some(sample_rate_hz), Some(size)) if hop_length > 0 && count > 0 => {
            Ok(CodecContract { sample_rate_hz, hop_length, codebooks: Codebooks { count, size } })
        }
        _ => Err(part.unusable("its sample rate, hop length or codebook size makes no sense")),
    }
}

/// Checks the encoder of the codec against the decoder.
///
/// # Errors
/// A [`UserError`] that names what was found and expected.
pub fn check_codec_encoder(manifest: &Manifest, codec: &CodecContract) -> Result<()> {
    let part = Checked::named(manifest, Part::AudioEncoder)?;
    part.ports(&["input_values"], &["audio_codes"])?;
    part.input("input_values", &[ElementType::Float32], 3)?;
    let codes = part.output("audio_codes", &[ElementType::Int64], 3)?;
    part.expect("num_codebooks", part.fixed(codes, 1), codec.codebooks.count)?;
    part.claims("num_codebooks", codec.codebooks.count)?;
    let sample_rate = codec.sample_rate_hz as usize;
    check_claims(manifest, Part::AudioEncoder, "sample_rate", sample_rate, "the folder elsewhere")
}

const FLOATS: [ElementType; 2] = [ElementType::Float32, ElementType::Float16];

/// Checks the decoder by itself. What only the other parts know, the vocabularies and what the heads take, is not filled
/// in.
pub(super) fn check_decoder(manifest: &Manifest, graph: &Graph) -> Result<LanguageContract> {
    let part = Checked::new(manifest, Part::LlmDecoder, graph.clone());
    let layers = (0..).take_while(|layer| graph.input(&format!("past_key_values.{layer}.key")).is_some()).count();
    if layers == 0 {
        return Err(part.unusable("it has no input `past_key_values.0.key`"));
    }
    let cache = |side: &'static str| {
        (0..layers).flat_map(move |layer| ["key", "value"].map(|half| format!("{side}.{layer}.{half}")))
    };
    let (past, present): (Vec<_>, Vec<_>) = (cache("past_key_values").collect(), cache("present").collect());
    let names =
        |own: &[&str], cache: &[String]| own.iter().map(|&name| name.to_owned()).chain(cache.to_vec()).collect();
    let (inputs, outputs): (Vec<String>, Vec<String>) =
        (names(&["inputs_embeds", "attention_mask"], &past), names(&["hidden_states"], &present));
    part.ports(
        &inputs.iter().map(String::as_str).collect::<Vec<_>>(),
        &outputs.iter().map(String::as_str).collect::<Vec<_>>(),
    )?;
    part.input("attention_mask", &[ElementType::Int64], 2)?;
    let embeds = part.input("inputs_embeds", &FLOATS, 3)?;
    let hidden = part.output("hidden_states", &FLOATS, 3)?;
    let hidden_size = part.fixed(embeds, 2).or_else(|| part.claimed("hidden_size"));
    let hidden_size = hidden_size.ok_or_else(|| part.unusable(&format!("the last axis of {embeds} is not fixed")))?;
    part.expect("hidden_size", part.fixed(hidden, 2), hidden_size)?;

    let key = part.input(&past[0], &FLOATS, 4)?;
    let attention = graph.nodes.iter().find(|node| node.operator == "GroupQueryAttention");
    let kv_heads = attention.and_then(|node| node.integers.get("kv_num_heads")).map(|&n| n.unsigned_abs() as usize);
    let kv_heads = part.fixed(key, 1).or(kv_heads).or_else(|| part.claimed("num_kv_heads"));
    let kv_heads = kv_heads.ok_or_else(|| part.unusable("its number of key and value heads is not known"))?;
    // The rotary tables are [positions, half a head]; the cache's own last axis is usually left free.
    let tables = attention.and_then(|node| node.inputs.get(7)).and_then(|name| graph.weight(name));
    let (rows, half) = tables.map_or((None, None), |table| (table.shape.first(), table.shape.get(1)));
    let head_dim = part.fixed(key, 3).or(half.map(|half| 2 * half)).or_else(|| part.claimed("head_dim"));
    let head_dim = head_dim.ok_or_else(|| part.unusable("its head size is not known"))?;
    let positions = rows.copied().or_else(|| part.claimed("context_length"));
    let positions = positions.ok_or_else(|| part.unusable("its context length is not known"))?;
    for (side, names) in [("input", &past), ("output", &present)] {
        for name in names {
            let port = if side == "input" { graph.input(name) } else { graph.output(name) };
            let port = port.ok_or_else(|| part.unusable(&format!("it has no {side} `{name}`")))?;
            let fits = port.axes.len() == 4
                && port.element_type == key.element_type
                && port.fixed(1).is_none_or(|heads| heads == kv_heads)
                && port.fixed(3).is_none_or(|dim| dim == head_dim);
            if !fits {
                let expected = format!("[B,{kv_heads},length,{head_dim}] {}", key.element_type);
                return Err(part.unusable(&format!("its {side} {port} is not {expected}")));
            }
        }
    }
    for (key, found) in [
        ("hidden_size", hidden_size),
        ("num_layers", layers),
        ("num_kv_heads", kv_heads),
        ("head_dim", head_dim),
        ("context_length", positions),
    ] {
        part.claims(key, found)?;
    }
    if let Some(&heads) = attention.and_then(|node| node.integers.get("num_heads")) {
        part.claims("num_attention_heads", heads.unsigned_abs() as usize)?;
    }
    let fused = |name: &String| !name.is_empty();
    Ok(LanguageContract {
        hidden_size,
        layers,
        kv_heads,
        head_dim,
        positions,
        text_vocab_size: 0,
        codebooks: Codebooks { count: 1, size: 1 },
        embeds_type: embeds.element_type,
        cache_type: key.element_type,
        heads_type: ElementType::Float32,
        fused_norms: attention.is_some_and(|node| node.inputs.get(14).is_some_and(fused)),
    })
}

/// A part's description together with what the folder claims of it.
struct Checked<'a> {
    manifest: &'a Manifest,
    part: Part,
    graph: Graph,
}

impl<'a> Checked<'a> {
    fn new(manifest: &'a Manifest, part: Part, graph: Graph) -> Self {
        Self { manifest, part, graph }
    }

    fn named(manifest: &'a Manifest, part: Part) -> Result<Self> {
        Ok(Self::new(manifest, part, read(manifest, part)?))
    }

    fn path(&self) -> &Path {
        &self.graph.path
    }

    fn unusable(&self, what: &str) -> anyhow::Error {
        let message = format!("{} cannot be used as {}: {what}", self.path().display(), self.part.name());
        UserError::model(message).with_hint("a file of another folder or model may have been copied in").into()
    }

    /// All of these inputs and outputs, and no further input.
    fn ports(&self, inputs: &[&str], outputs: &[&str]) -> Result<()> {
        for name in inputs {
            self.graph.input(name).ok_or_else(|| self.unusable(&format!("it has no input `{name}`")))?;
        }
        for name in outputs {
            self.graph.output(name).ok_or_else(|| self.unusable(&format!("it has no output `{name}`")))?;
        }
        // Files of old IR versions list their weights among the inputs.
        let unknown = |port: &&Port| !inputs.contains(&port.name.as_str()) && self.graph.weight(&port.name).is_none();
        match self.graph.inputs.iter().find(unknown) {
            Some(port) => Err(self.unusable(&format!("it has an unknown input `{}`", port.name))),
            None => Ok(()),
        }
    }

    fn input(&self, name: &str, types: &[ElementType], rank: usize) -> Result<&Port> {
        let port = self.graph.input(name).ok_or_else(|| self.unusable(&format!("it has no input `{name}`")))?;
        self.port(port, types, rank)
    }

    fn output(&self, name: &str, types: &[ElementType], rank: usize) -> Result<&Port> {
        let port = self.graph.output(name).ok_or_else(|| self.unusable(&format!("it has no output `{name}`")))?;
        self.port(port, types, rank)
    }

    fn port<'p>(&self, port: &'p Port, types: &[ElementType], rank: usize) -> Result<&'p Port> {
        if !types.contains(&port.element_type) {
            let expected: Vec<String> = types.iter().map(ElementType::to_string).collect();
            return Err(self.unusable(&format!("{port} is not {}", expected.join(" or "))));
        }
        if port.axes.len() != rank {
            return Err(self.unusable(&format!("{port} has {} axes, expected {rank}", port.axes.len())));
        }
        Ok(port)
    }

    fn fixed(&self, port: &Port, axis: usize) -> Option<usize> {
        port.axes.get(axis).and_then(|axis| match axis {
            Axis::Fixed(length) => Some(*length),
            Axis::Free(_) => None,
        })
    }

    fn expect(&self, what: &str, found: Option<usize>, expected: usize) -> Result<()> {
        match found {
            Some(found) if found != expected => {
                Err(self.unusable(&format!("its {what} is {found}, the other parts have {expected}")))
            }
            _ => Ok(()),
        }
    }

    fn claimed(&self, key: &str) -> Option<usize> {
        self.manifest.claims(self.part, key).into_iter().find_map(|claim| claim.value)
    }

    fn source(&self) -> String {
        self.path().display().to_string()
    }

    /// Every claim that the folder makes of this part must be the number found in its graph.
    fn claims(&self, key: &str, found: usize) -> Result<()> {
        check_claims(self.manifest, self.part, key, found, &self.source())
    }
}

/// Every claim that the folder makes of a part must be the number that the source has.
fn check_claims(manifest: &Manifest, part: Part, key: &str, found: usize, source: &str) -> Result<()> {
    for claim in manifest.claims(part, key) {
        if claim.value != Some(found) {
            let message = format!("{} is {}, but {source} has {found}", claim.place, claim.text);
            let hint = "a file of another folder or model may have been copied in";
            return Err(UserError::model(message).with_hint(hint).into());
        }
    }
    Ok(())
}
