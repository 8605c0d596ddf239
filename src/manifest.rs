//! `manifest.json` of a model folder: which files the six parts are, and what the folder claims about them.
//!
//! Folders in the wild have few keys, so every number is optional here; the graphs themselves have the last word when
//! they are opened, and a number that contradicts them is an error there.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde_json::Value;

use crate::error::UserError;

/// The six graphs of a model folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Text token ids → embeddings.
    TextEmbed,
    /// Rows of codes → embeddings.
    AudioEmbed,
    /// Embeddings → hidden states, with the KV cache.
    LlmDecoder,
    /// Hidden states → logits.
    AudioHeads,
    /// Codes → sound: the decoder of the codec.
    AudioTokenizer,
    /// Sound → codes: the encoder of the codec, needed for cloning only.
    AudioEncoder,
}

impl Part {
    /// All parts, in the order in which data passes them.
    pub const ALL: [Self; 6] = [
        Self::AudioEncoder,
        Self::TextEmbed,
        Self::AudioEmbed,
        Self::LlmDecoder,
        Self::AudioHeads,
        Self::AudioTokenizer,
    ];

    /// The name of the part in the manifest.
    pub fn name(self) -> &'static str {
        match self {
            Self::TextEmbed => "text_embed",
            Self::AudioEmbed => "audio_embed",
            Self::LlmDecoder => "llm_decoder",
            Self::AudioHeads => "audio_heads",
            Self::AudioTokenizer => "audio_tokenizer",
            Self::AudioEncoder => "audio_encoder",
        }
    }
}

/// A validated manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    folder: PathBuf,
    manifest: Value,
    genai_config: Value,
}

impl Manifest {
    /// Reads `manifest.json`, and `genai_config.json` beside it if there is one.
    ///
    /// # Errors
    /// A [`UserError`] when the folder is no model folder, or a file in it is not JSON.
    pub fn read(folder: &Path) -> Result<Self> {
        let shown = folder.display();
        if !folder.is_dir() {
            let what = if folder.exists() { "is not a folder" } else { "does not exist" };
            return Err(UserError::model(format!("the model folder {shown} {what}")).into());
        }
        let path = folder.join("manifest.json");
        if !path.is_file() {
            let hint = match model_folder_inside(folder) {
                Some(inner) => format!("did you mean {}?", inner.display()),
                None => "a model folder holds manifest.json and six .onnx files, such as onnx/cpu_int4".into(),
            };
            return Err(UserError::model(format!("{shown} has no manifest.json")).with_hint(hint).into());
        }
        let manifest = read_json(&path)?;
        if !manifest.get("sub_models").is_some_and(Value::is_object) {
            return Err(UserError::model(format!("{} has no object `sub_models`", path.display())).into());
        }
        let genai_config = folder.join("genai_config.json");
        let genai_config = if genai_config.is_file() { read_json(&genai_config)? } else { Value::Null };
        Ok(Self { folder: folder.to_owned(), manifest, genai_config })
    }

    /// The model folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a part. It is not opened here.
    ///
    /// # Errors
    /// A [`UserError`] when the manifest does not name one, or names one outside the folder.
    pub fn file(&self, part: Part) -> Result<PathBuf> {
        let key = format!("sub_models.{}.filename", part.name());
        let shown = self.folder.join("manifest.json");
        let Some(name) = self.manifest["sub_models"][part.name()]["filename"].as_str() else {
            return Err(UserError::model(format!("{} has no string `{key}`", shown.display())).into());
        };
        let inside = !name.is_empty()
            && Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if !inside {
            let message = format!("{}: `{key}` is `{name}`, which is not a file inside the folder", shown.display());
            return Err(UserError::model(message).into());
        }
        Ok(self.folder.join(name))
    }

    /// Whether the manifest names a part and something is there under that name.
    pub fn has(&self, part: Part) -> bool {
        self.file(part).is_ok_and(|path| path.exists())
    }

    /// The tokenizer's file.
    pub fn tokenizer(&self) -> PathBuf {
        self.folder.join("tokenizer.json")
    }

    /// The execution provider that the folder was made for, such as `CUDAExecutionProvider`.
    pub fn execution_provider(&self) -> Option<&str> {
        self.manifest["execution_provider"].as_str()
    }

    /// Which model this is and in which precision, for reports.
    pub fn description(&self) -> String {
        let text = |key: &str| self.manifest[key].as_str().unwrap_or("unknown");
        format!("{}, {} {}", text("model_id"), text("device"), text("precision"))
    }

    /// What the folder claims of a part, each number with the place where it stands: the part's own entry in the
    /// manifest, its general constants, and for the decoder `genai_config.json`.
    pub fn claims(&self, part: Part, key: &str) -> Vec<Claim> {
        let own = (format!("manifest.json: {}.{key}", part.name()), &self.manifest["sub_models"][part.name()][key]);
        let constant = match key {
            "vocab_size" if matches!(part, Part::AudioEmbed | Part::AudioHeads) => "codebook_vocab_size",
            "codebook_size" => "codec_codebook_size",
            other => other,
        };
        let general = (format!("manifest.json: constants.{constant}"), &self.manifest["constants"][constant]);
        let decoder = &self.genai_config["model"]["decoder"];
        let model = &self.genai_config["model"];
        let (place, value) = match key {
            _ if part != Part::LlmDecoder => ("", &Value::Null),
            "head_dim" => ("decoder.head_size", &decoder["head_size"]),
            "hidden_size" => ("decoder.hidden_size", &decoder["hidden_size"]),
            "num_layers" => ("decoder.num_hidden_layers", &decoder["num_hidden_layers"]),
            "num_attention_heads" => ("decoder.num_attention_heads", &decoder["num_attention_heads"]),
            "num_kv_heads" => ("decoder.num_key_value_heads", &decoder["num_key_value_heads"]),
            "vocab_size" => ("vocab_size", &model["vocab_size"]),
            "context_length" => ("context_length", &model["context_length"]),
            _ => ("", &Value::Null),
        };
        let genai = (format!("genai_config.json: model.{place}"), value);
        [own, general, genai].into_iter().filter(|(_, value)| !value.is_null()).map(Claim::new).collect()
    }

    /// Whether the encoder takes sounds of any length. Those that the older tools export take whole frames only.
    pub fn encoder_takes_any_length(&self) -> bool {
        self.manifest["sub_models"][Part::AudioEncoder.name()]["any_length"] == true
    }

    /// Tokens whose ids the folder claims.
    pub fn special_tokens(&self) -> Vec<(String, Claim)> {
        let tokens = self.manifest["special_tokens"].as_object();
        let claim = |token: &String, id| Claim::new((format!("manifest.json: special_tokens.{token}"), id));
        tokens.map_or_else(Vec::new, |tokens| {
            tokens.iter().map(|(token, id)| (token.clone(), claim(token, id))).collect()
        })
    }
}

/// A number that the folder claims, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// File and key.
    pub place: String,
    /// The number, if it is one.
    pub value: Option<usize>,
    /// What stands there.
    pub text: String,
}

impl Claim {
    fn new((place, value): (String, &Value)) -> Self {
        Self { place, value: value.as_u64().map(|value| value as usize), text: value.to_string() }
    }
}

fn read_json(path: &Path) -> Result<Value> {
    let unusable = |message: String| UserError::model(message).with_hint("download or export it again");
    let bytes = std::fs::read(path)
        .map_err(|error| anyhow!(error).context(unusable(format!("cannot open {}", path.display()))))?;
    serde_json::from_slice(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes))
        .map_err(|error| anyhow!(error).context(unusable(format!("{} is not valid JSON", path.display()))))
}

/// A model folder one level down, for people who name the folder above.
fn model_folder_inside(folder: &Path) -> Option<PathBuf> {
    let mut inner: Vec<PathBuf> = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).collect();
    inner.sort();
    inner.into_iter().find(|path| path.join("manifest.json").is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(manifest: &str) -> Result<Manifest> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("manifest.json"), manifest).unwrap();
        Manifest::read(folder.path())
    }

    #[test]
    fn the_keys_of_folders_in_the_wild_are_enough() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/cpu_int4");
        let plain = std::fs::read_to_string(path.join("manifest.plain.json")).unwrap();
        let manifest = read(&plain).unwrap();
        assert_eq!(manifest.execution_provider(), Some("CPUExecutionProvider"));
        assert_eq!(manifest.description(), "bosonai/higgs-audio-v3-tts-4b, cpu int4");
        for part in Part::ALL {
            let expected = format!("{}.onnx", part.name());
            assert_eq!(manifest.file(part).unwrap().file_name().unwrap().to_str(), Some(expected.as_str()));
        }
        let claims = manifest.claims(Part::LlmDecoder, "hidden_size");
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0].value, Some(64));
    }

    #[test]
    fn claims_come_from_every_file_that_makes_them() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/cpu_int4");
        let manifest = Manifest::read(&path).unwrap();
        let places = |part, key| manifest.claims(part, key).into_iter().map(|claim| claim.place).collect::<Vec<_>>();
        let expected = ["manifest.json: llm_decoder.head_dim", "genai_config.json: model.decoder.head_size"];
        assert_eq!(places(Part::LlmDecoder, "head_dim"), expected);
        let expected = ["manifest.json: audio_heads.vocab_size", "manifest.json: constants.codebook_vocab_size"];
        assert_eq!(places(Part::AudioHeads, "vocab_size"), expected);
    }

    #[test]
    fn what_is_no_model_folder_is_said_so() {
        let folder = tempfile::tempdir().unwrap();
        let shown = folder.path().display().to_string();
        let error = Manifest::read(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), format!("{shown} has no manifest.json"));
        let inner = folder.path().join("cpu_int4");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("manifest.json"), "{}").unwrap();
        let error = Manifest::read(folder.path()).unwrap_err();
        let hint = error.downcast_ref::<UserError>().unwrap().hint().unwrap();
        assert_eq!(hint, format!("did you mean {}?", inner.display()));
        let error = Manifest::read(&folder.path().join("nowhere")).unwrap_err();
        assert_eq!(error.to_string(), format!("the model folder {shown}/nowhere does not exist"));
    }

    #[test]
    fn a_manifest_must_be_json_with_parts_inside_the_folder() {
        assert!(read("{").unwrap_err().to_string().ends_with("manifest.json is not valid JSON"));
        assert!(read("[]").unwrap_err().to_string().ends_with("manifest.json has no object `sub_models`"));
        let manifest = read(r#"{"sub_models": {"text_embed": {"filename": "../x.onnx"}}}"#).unwrap();
        let error = manifest.file(Part::TextEmbed).unwrap_err().to_string();
        assert!(
            error.ends_with("`sub_models.text_embed.filename` is `../x.onnx`, which is not a file inside the folder")
        );
        let error = manifest.file(Part::AudioHeads).unwrap_err().to_string();
        assert!(error.ends_with("manifest.json has no string `sub_models.audio_heads.filename`"));
    }
}
