//! The model: where prompt, sampler and graphs meet.

use std::{num::NonZeroUsize, path::Path, thread};

use anyhow::{Context, Result, ensure};
use ndarray::{Array2, Array3, Axis, concatenate, s, stack};

use crate::{
    audio::{Audio, resample},
    codes::{Codes, DelayedCodes},
    error::UserError,
    graphs::{
        Device, DeviceChoice, Interrupt, Runtime,
        codec::Codec,
        contract::{LanguageContract, check_language},
        decoder::{Decoder, KvCache},
        embeds::{AudioEmbed, AudioHeads, TextEmbed},
        open_language, resolve_devices,
    },
    manifest::Manifest,
    prompt::{PromptBuilder, Segment, Voice},
    sampler::Sampling,
    utterance::Utterance,
};

/// How a model is loaded. What a request asks for is in [`crate::draw::Request`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Where the language model runs; the folder decides if nothing is chosen.
    pub device: Option<DeviceChoice>,
    /// Where the codec runs; with the language model if nothing is chosen.
    pub codec_device: Option<DeviceChoice>,
    /// Threads of the one pool that all graphs share; as many as the process may use if nothing is chosen.
    pub threads: Option<NonZeroUsize>,
}

impl LoadOptions {
    /// Starts ONNX Runtime with these options.
    ///
    /// # Errors
    /// A [`UserError`] when the library cannot be used.
    pub fn start_runtime(&self) -> Result<&'static Runtime> {
        // On Linux this respects affinity and the quota of the control group.
        let default = || thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Runtime::start(self.threads.unwrap_or_else(default))
    }
}

/// A loaded model folder.
#[derive(Debug)]
pub struct Model {
    prompt: PromptBuilder,
    text_embed: TextEmbed,
    audio_embed: AudioEmbed,
    decoder: Decoder,
    audio_heads: AudioHeads,
    codec: Codec,
    contract: LanguageContract,
    interrupt: Interrupt,
    devices: (Device, Device),
    notes: Vec<String>,
}

/// What the model makes of rows that it did not draw itself.
#[derive(Debug, Clone)]
pub struct Followed {
    /// Hidden states `[L, H]` of the prompt.
    pub prompt: Array2<f32>,
    /// Hidden states `[rows, H]` from which the rows would be drawn.
    pub drawn_from: Array2<f32>,
    /// Logits `[rows, codebooks, vocabulary]`.
    pub logits: Array3<f32>,
}

impl Model {
    /// Seconds of reference recording that the model takes at most.
    pub const LONGEST_REFERENCE_S: f64 = 100.0;

    /// Opens the codec of a folder alone.
    ///
    /// # Errors
    /// A [`UserError`] when the folder or the runtime cannot be used.
    pub fn load_codec(folder: &Path, options: &LoadOptions) -> Result<Codec> {
        let manifest = Manifest::read(folder)?;
        let runtime = options.start_runtime()?;
        let devices = resolve_devices(runtime, &manifest, options.device, options.codec_device)?;
        Codec::open(runtime, &Interrupt::new(runtime)?, &manifest, devices.codec)
    }

    /// Loads a model folder. Every file is checked before the first session is made; the encoder is opened when a
    /// voice is first encoded.
    ///
    /// # Errors
    /// A [`UserError`] when the folder or the runtime cannot be used.
    pub fn load(folder: &Path, options: &LoadOptions) -> Result<Self> {
        let manifest = Manifest::read(folder)?;
        let contract = check_language(&manifest)?;
        let runtime = options.start_runtime()?;
        let devices = resolve_devices(runtime, &manifest, options.device, options.codec_device)?;
        let interrupt = Interrupt::new(runtime)?;
        let codec = Codec::open(runtime, &interrupt, &manifest, devices.codec)?;
        if codec.contract().codebooks != contract.codebooks {
            let (codec, heads) = (codec.contract().codebooks, contract.codebooks);
            let message = format!("the codec has {codec}, the language model {heads}");
            return Err(UserError::model(message).with_hint("the parts belong to different models").into());
        }
        // The tokenizer takes a third of a second to parse, the sessions take longer: side by side.
        let (prompt, language) = thread::scope(|scope| {
            let prompt = scope.spawn(|| PromptBuilder::of_folder(&manifest, contract.text_vocab_size));
            let language = open_language(runtime, &interrupt, &manifest, &contract, devices.language);
            (prompt.join(), language)
        });
        let prompt = prompt.map_err(|_| anyhow::anyhow!("the tokenizer panicked"))??;
        let (text_embed, audio_embed, decoder, audio_heads) = language?;
        Ok(Self {
            prompt,
            text_embed,
            audio_embed,
            decoder,
            audio_heads,
            codec,
            contract,
            interrupt,
            devices: (devices.language, devices.codec),
            notes: devices.notes,
        })
    }

    /// Sizes of the language model.
    pub fn contract(&self) -> &LanguageContract {
        &self.contract
    }

    /// Seconds of sound in one frame.
    pub fn frame_s(&self) -> f64 {
        let codec = self.codec.contract();
        codec.hop_length as f64 / f64::from(codec.sample_rate_hz)
    }

    /// Where the language model and the codec run.
    pub fn devices(&self) -> (Device, Device) {
        self.devices
    }

    /// What the person should know about how the folder was loaded.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// A handle that stops the model from another thread.
    pub fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }

    /// The prompt builder.
    pub fn prompt(&self) -> &PromptBuilder {
        &self.prompt
    }

    /// Whether the folder has an encoder, so that voices can be cloned.
    pub fn has_encoder(&self) -> bool {
        self.codec.has_encoder()
    }

    /// Encodes a reference recording of any sample rate. It is filled with silence to one second, the shortest that
    /// the reference implementation encodes.
    ///
    /// # Errors
    /// A [`UserError`] when the recording is longer than [`Self::LONGEST_REFERENCE_S`] or the encoder cannot be used.
    pub fn encode_voice(&mut self, audio: &Audio, transcript: Option<String>) -> Result<Voice> {
        if audio.duration_s() > Self::LONGEST_REFERENCE_S {
            let message = format!(
                "the reference recording lasts {:.1} s, at most {:.0} s can be used",
                audio.duration_s(),
                Self::LONGEST_REFERENCE_S
            );
            return Err(UserError::request(message).with_hint("5 to 30 s of clean speech are enough").into());
        }
        let sample_rate_hz = self.codec.contract().sample_rate_hz;
        let mut samples = resample(audio, sample_rate_hz)?.samples;
        samples.resize(samples.len().max(sample_rate_hz as usize), 0.0);
        Ok(Voice { codes: self.codec.encode(&samples)?, transcript })
    }

    /// A KV cache for so many utterances at once, with room for so many positions each.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn allocate(&self, slots: usize, capacity: usize) -> Result<KvCache> {
        self.decoder.allocate(slots, capacity)
    }

    /// Gives a KV cache room for more positions, keeping what is in it.
    ///
    /// # Errors
    /// When the memory cannot be had, or the cache lies on a GPU. It is unchanged then.
    pub fn grow(&self, cache: &mut KvCache, capacity: usize) -> Result<()> {
        self.decoder.grow(cache, capacity)
    }

    /// How many rows may follow a prompt, of those wanted.
    ///
    /// # Errors
    /// A [`UserError`] when the prompt leaves no room in the context.
    pub fn room_for(&self, prompt: &[Segment], rows: usize) -> Result<usize> {
        let positions: usize = prompt.iter().map(Segment::len).sum();
        let room = self.contract.positions.saturating_sub(positions);
        if room < 2 * self.contract.codebooks.count {
            let message = format!(
                "the text and the reference take {positions} positions, the model has {}",
                self.contract.positions
            );
            return Err(UserError::request(message).with_hint("use a shorter text or reference recording").into());
        }
        Ok(rows.min(room))
    }

    /// Runs a prompt through the decoder into a slot and gives the utterance that begins after it, with at most
    /// `max_rows` rows. What was in the slot is forgotten.
    ///
    /// # Errors
    /// When the slot has no room for prompt and rows; a [`UserError`] when the hidden states show that a kernel is
    /// broken.
    pub fn prefill(
        &mut self,
        cache: &mut KvCache,
        slot: usize,
        prompt: &[Segment],
        sampling: Sampling,
        max_rows: usize,
    ) -> Result<Utterance> {
        let embeds = self.embed(prompt)?;
        let (positions, capacity) = (embeds.nrows() + max_rows, cache.capacity());
        ensure!(positions <= capacity, "a slot of {capacity} positions has no room for {positions}");
        cache.truncate(slot, 0);
        let hidden = self.decoder.prefill(embeds.view(), cache, slot).context("prefill failed")?;
        check_hidden(&hidden, self.devices.0)?;
        let last = hidden.row(hidden.nrows() - 1).to_owned();
        Ok(Utterance::new(embeds.nrows(), last, sampling, self.contract.codebooks, max_rows))
    }

    /// Draws the next row of each utterance, the n-th of which has the n-th slot of the cache, and runs the rows
    /// through the decoder together. Each utterance gets the row that it would get alone.
    ///
    /// # Errors
    /// When an utterance has ended, a graph fails or is interrupted, or a logit is not finite.
    pub fn decode_step(&mut self, cache: &mut KvCache, utterances: &mut [&mut Utterance]) -> Result<()> {
        ensure!(utterances.iter().all(|utterance| utterance.stop_reason().is_none()), "an utterance has ended");
        let hidden: Vec<_> = utterances.iter().map(|utterance| utterance.hidden.view()).collect();
        let logits = self.audio_heads.logits(stack(Axis(0), &hidden)?.view())?;
        let mut rows = Vec::with_capacity(utterances.len());
        for (utterance, logits) in utterances.iter_mut().zip(logits.outer_iter()) {
            let row = utterance.sampler.next_row(logits)?;
            utterance.push(&row);
            rows.push(row);
        }
        // The row of an utterance that has just ended goes along unless all have: its slot is free afterwards.
        if utterances.iter().any(|utterance| utterance.stop_reason().is_none()) {
            let embeds = self.audio_embed.embed(rows.iter().map(Vec::as_slice))?;
            let hidden = self.decoder.step(embeds.view(), cache)?;
            for (utterance, hidden) in utterances.iter_mut().zip(hidden.outer_iter()) {
                utterance.hidden.assign(&hidden);
            }
        }
        Ok(())
    }

    /// Draws an utterance alone and to its end.
    ///
    /// # Errors
    /// As [`Self::prefill`] and [`Self::decode_step`].
    pub fn draw(&mut self, prompt: &[Segment], sampling: Sampling, max_rows: usize) -> Result<Utterance> {
        let max_rows = self.room_for(prompt, max_rows)?;
        let mut cache = self.allocate(1, prompt.iter().map(Segment::len).sum::<usize>() + max_rows)?;
        let mut utterance = self.prefill(&mut cache, 0, prompt, sampling, max_rows)?;
        while utterance.stop_reason().is_none() {
            self.decode_step(&mut cache, &mut [&mut utterance])?;
        }
        Ok(utterance)
    }

    /// Runs a prompt and the rows after it through the decoder as if the model had drawn them (teacher forcing).
    ///
    /// # Errors
    /// As [`Self::prefill`].
    pub fn follow(&mut self, prompt: &[Segment], rows: &DelayedCodes) -> Result<Followed> {
        let embeds = self.embed(prompt)?;
        let mut cache = self.decoder.allocate(1, embeds.nrows() + rows.len())?;
        let prompt = self.decoder.prefill(embeds.view(), &mut cache, 0)?;
        let mut drawn_from = prompt.slice(s![prompt.nrows() - 1.., ..]).to_owned();
        for row in rows.rows().take(rows.len().saturating_sub(1)) {
            let embeds = self.audio_embed.embed(std::iter::once(row))?;
            drawn_from.append(Axis(0), self.decoder.step(embeds.view(), &mut cache)?.view())?;
        }
        let logits = self.audio_heads.logits(drawn_from.view())?;
        Ok(Followed { prompt, drawn_from, logits })
    }

    /// Decodes codes to sound.
    ///
    /// # Errors
    /// When the codec fails, or gives samples that are not finite or all zero.
    pub fn decode(&mut self, codes: &Codes) -> Result<Audio> {
        let samples = self.codec.decode(codes)?;
        Ok(Audio { samples, sample_rate_hz: self.codec.contract().sample_rate_hz })
    }

    /// Embeddings `[L, H]` of a prompt.
    ///
    /// # Errors
    /// When a graph fails.
    pub fn embed(&mut self, prompt: &[Segment]) -> Result<Array2<f32>> {
        let embeds = prompt
            .iter()
            .filter(|segment| !segment.is_empty())
            .map(|segment| match segment {
                Segment::Tokens(ids) => self.text_embed.embed(ids),
                Segment::Codes(rows) => self.audio_embed.embed(rows.rows()),
            })
            .collect::<Result<Vec<_>>>()?;
        let views: Vec<_> = embeds.iter().map(|embeds| embeds.view()).collect();
        Ok(concatenate(Axis(0), &views)?)
    }
}

/// Broken attention kernels, seen on some ARM builds of CUDA, give hidden states of zeros or NaN and then minutes of
/// noise; so do weights that belong to another graph.
fn check_hidden(hidden: &Array2<f32>, device: Device) -> Result<()> {
    let what = if hidden.iter().any(|value| !value.is_finite()) {
        "values that are not finite"
    } else if hidden.iter().all(|&value| value == 0.0) {
        "nothing but zeros"
    } else {
        return Ok(());
    };
    let (cause, hint) = match device {
        Device::Cpu => (
            "its weights are damaged, or an attention kernel is broken",
            "download or export the folder again; `higgs-tts doctor` looks closer",
        ),
        Device::Cuda => (
            "an attention kernel of this runtime is broken, or its weights are damaged",
            "try `--device cpu` or another ONNX Runtime (ORT_DYLIB_PATH); `higgs-tts doctor` looks closer",
        ),
    };
    let message = format!("the decoder's hidden states are {what}: {cause}");
    Err(UserError::model(message).with_hint(hint).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_states_of_a_broken_kernel_are_an_error() {
        assert!(check_hidden(&Array2::from_elem((3, 4), 0.5), Device::Cpu).is_ok());
        let zeros = check_hidden(&Array2::zeros((3, 4)), Device::Cuda).unwrap_err().to_string();
        assert!(zeros.starts_with("the decoder's hidden states are nothing but zeros: an attention kernel"));
        let mut one_nan = Array2::ones((3, 4));
        one_nan[(1, 2)] = f32::NAN;
        let nan = check_hidden(&one_nan, Device::Cpu).unwrap_err().to_string();
        assert!(nan.starts_with("the decoder's hidden states are values that are not finite: its weights are damaged"));
    }
}
