//! From the published checkpoint to a model folder.

pub mod architecture;
pub mod codec;
mod decoder;
mod embeds;
mod folder;
mod importance;
mod linear;
mod matrix;
mod new_file;
pub mod onnx;
mod options;
pub mod quantize;
pub mod weights;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

pub use self::new_file::Claim;
use self::{
    architecture::Architecture,
    codec::CodecConfig,
    onnx::{Bytes, ModelWriter, Watch},
    quantize::QuantizationError,
    weights::Weights,
};
pub use self::{
    importance::Importance,
    options::{AudioPrecision, Options, Target},
};
use crate::{error::UserError, manifest::Part, onnx::Graph};

/// Where the weights come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// The folder of the published checkpoint.
    Checkpoint(PathBuf),
    /// Made up from a seed, in the sizes of a checkpoint's config.json or else those of the published model.
    Random {
        /// The same seed makes the same weights.
        seed: u64,
        /// Folder with config.json and the tokenizer.
        sizes: Option<PathBuf>,
    },
}

/// A checkpoint on its way to a model folder.
pub struct Export {
    architecture: Architecture,
    codec: CodecConfig,
    weights: Weights,
    options: Options,
    /// Folder with the tokenizer.
    checkpoint: Option<PathBuf>,
    parts: Vec<Part>,
    folder: PathBuf,
}

/// One part, as it will be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Which.
    pub part: Part,
    /// Bytes on the disk.
    pub bytes: Bytes,
    /// Whether an earlier export with the same settings has made it already.
    pub is_done: bool,
}

/// What became of the matrices that were quantised.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// Each matrix with what was lost.
    pub matrices: Vec<(String, QuantizationError)>,
}

impl Report {
    fn add(&mut self, weight: &str, error: QuantizationError) {
        self.matrices.push((weight.to_owned(), error));
    }

    /// What was lost altogether; `None` if nothing was quantised.
    pub fn total(&self) -> Option<QuantizationError> {
        let mut total = QuantizationError::default();
        self.matrices.iter().for_each(|(_, error)| total.add(error));
        (!self.matrices.is_empty()).then_some(total)
    }
}

/// What a file says of its making, under this key.
const SETTINGS: &str = "higgs_tts.settings";
/// Relative RMS error of what was quantised in a file, under this key.
const LOSS: &str = "higgs_tts.quantization_error";

impl Export {
    /// Opens the checkpoint and checks that every weight that these parts need is there; writes nothing.
    ///
    /// # Errors
    /// A [`UserError`] that says what is wrong with the checkpoint or the options.
    pub fn open(source: &Source, options: Options, parts: &[Part], folder: &Path) -> Result<Self> {
        let checkpoint = match source {
            Source::Checkpoint(path) => Some(path.clone()),
            Source::Random { sizes, .. } => sizes.clone(),
        };
        let (architecture, codec) = match &checkpoint {
            Some(path) => (Architecture::read(&path.join("config.json"))?, CodecConfig::read(path)?),
            None => (Architecture::published(), CodecConfig::published()),
        };
        architecture.check_codec(&codec)?;
        let mut needed = architecture.weights();
        if parts.contains(&Part::AudioTokenizer) {
            needed.extend(codec::decoder_tensors(&codec)?);
        }
        if parts.contains(&Part::AudioEncoder) {
            needed.extend(codec::encoder_tensors(&codec)?);
        }
        let weights = match source {
            Source::Checkpoint(path) => Weights::open(path)?,
            Source::Random { seed, .. } => Weights::random(*seed, needed.clone()),
        };
        weights.check(&needed)?;
        options.check(&architecture)?;
        let (parts, folder) = (parts.to_vec(), folder.to_owned());
        let export = Self { architecture, codec, weights, options, checkpoint, parts, folder };
        // An export takes minutes, and would end with this.
        folder::Tokenizer::read(&export)?;
        Ok(export)
    }

    /// What will be written, and how large it will be.
    ///
    /// # Errors
    /// When a graph cannot be described.
    pub fn plan(&self) -> Result<Vec<Planned>> {
        let plan = |&part: &Part| {
            let path = self.path(part);
            let mut model = ModelWriter::measure(&path);
            self.describe(part, &mut model, &mut Report::default())?;
            let done = Graph::read(&path).ok().and_then(|graph| graph.metadata.get(SETTINGS).cloned());
            Ok(Planned { part, bytes: model.finish()?, is_done: done == Some(self.settings(part)) })
        };
        self.parts.iter().map(plan).collect()
    }

    /// Checks that what the folder holds already goes together with what will be written; writes nothing. `anew` allows a
    /// model of another target whose parts will all be replaced.
    ///
    /// # Errors
    /// A [`UserError`] when it does not, or when the folder is that of the checkpoint.
    pub fn check_folder(&self, anew: bool) -> Result<()> {
        folder::check(self, anew)
    }

    /// Makes the folder, checks that so many bytes will fit on its disk, and begins: until [`Self::finish`] the folder is
    /// no model, and until the claim is dropped no other export may write to it.
    ///
    /// # Errors
    /// A [`UserError`] when the folder cannot be made or written to, another export writes to it, or the disk is too full.
    pub fn prepare(&self, bytes: u64) -> Result<Claim> {
        let shown = self.folder.display();
        let failed = || UserError::request(format!("the folder {shown} cannot be made"));
        std::fs::create_dir_all(&self.folder).with_context(failed)?;
        let claim = Claim::take(&self.folder)?;
        // A file without a name leaves nothing behind.
        let closed = || UserError::request(format!("the folder {shown} cannot be written to"));
        tempfile::tempfile_in(&self.folder).with_context(closed)?;
        if let Some(free) = new_file::free_bytes(&self.folder).filter(|&free| free < bytes) {
            let [free, needed] = [free, bytes].map(|bytes| bytes as f64 / 1e9);
            let message = format!("the disk of {shown} has {free:.2} GB free, and {needed:.2} GB are needed");
            return Err(UserError::request(message).into());
        }
        // Old and new parts must not pass for a model if this export is broken off.
        if bytes > 0 {
            new_file::remove(&self.folder.join("manifest.json"))?;
        }
        Ok(claim)
    }

    /// Writes one part. The folder must exist.
    ///
    /// # Errors
    /// When the disk fails, a weight is not a finite number, or the watcher stops.
    pub fn write(&self, part: Part, watch: &mut Watch<'_>) -> Result<Report> {
        let path = self.path(part);
        let mut report = Report::default();
        let mut model = ModelWriter::create(&path, watch);
        self.describe(part, &mut model, &mut report)?;
        model.finish()?;
        Ok(report)
    }

    /// Writes the files around the parts: manifest, genai_config and tokenizer.
    ///
    /// # Errors
    /// When the disk fails or the tokenizer cannot be read.
    pub fn finish(&self) -> Result<()> {
        folder::write(self)
    }

    fn path(&self, part: Part) -> PathBuf {
        self.folder.join(part.name()).with_added_extension("onnx")
    }

    fn describe(&self, part: Part, model: &mut ModelWriter<'_>, report: &mut Report) -> Result<()> {
        let Self { weights, architecture, codec, options, .. } = self;
        let lookup = |name: &str, _: &[usize]| Ok(weights.tensor(name)?.to_vec());
        model.metadata(SETTINGS, &self.settings(part));
        match part {
            Part::LlmDecoder => decoder::write(model, weights, architecture, options, report),
            Part::TextEmbed => embeds::write_text_embed(model, weights, architecture, options),
            Part::AudioEmbed => embeds::write_audio_embed(model, weights, architecture, options, report),
            Part::AudioHeads => embeds::write_audio_heads(model, weights, architecture, options, report),
            Part::AudioTokenizer => codec::decoder(codec, &lookup, model),
            Part::AudioEncoder => codec::encoder(codec, &lookup, model),
        }
        .with_context(|| format!("cannot export {}", part.name()))?;
        // Where nothing is written the loss is zero, which is as many bytes long.
        if let Some(total) = report.total() {
            model.metadata(LOSS, &format!("{:.5}", total.relative_rms()));
        }
        Ok(())
    }

    /// Everything that a part depends on, in a word.
    fn settings(&self, part: Part) -> String {
        let mut settings = json!({
            "higgs_tts": env!("CARGO_PKG_VERSION"),
            "weights": self.weights.origin(),
        });
        self.options.relevant(part).into_iter().for_each(|(key, value)| settings[key] = value);
        settings.to_string()
    }
}
