//! The codec: codes → sound and sound → codes.

use anyhow::{Result, ensure};

use super::{
    Device, Interrupt, Runtime,
    contract::{CodecContract, check_codec_decoder, check_codec_encoder},
    session::{OpenGraph, float_tensor, int_tensor},
};
use crate::{
    codes::Codes,
    error::UserError,
    manifest::{Manifest, Part},
    onnx::ElementType,
};

/// Frames on each side that the sound of a frame depends on: the receptive field of the codec's decoder, by interval
/// arithmetic over its layers. A window with so much context gives the samples of the whole, up to rounding.
const CONTEXT_FRAMES: usize = 10;

/// Frames decoded at once. Memory grows with the window (about 2 MB a frame for the real codec), speed does not.
const WINDOW_FRAMES: usize = 250;

/// The codec's two graphs; the encoder is opened when it is first needed.
#[derive(Debug)]
pub struct Codec {
    decoder: OpenGraph,
    encoder: Option<OpenGraph>,
    contract: CodecContract,
    runtime: &'static Runtime,
    interrupt: Interrupt,
    manifest: Manifest,
    device: Device,
}

impl Codec {
    /// Opens the decoder of a model folder's codec.
    ///
    /// # Errors
    /// A [`UserError`] when the part cannot be used.
    pub fn open(runtime: &'static Runtime, interrupt: &Interrupt, manifest: &Manifest, device: Device) -> Result<Self> {
        let contract = check_codec_decoder(manifest)?;
        let path = manifest.file(Part::AudioTokenizer)?;
        let decoder = OpenGraph::open(runtime, interrupt, Part::AudioTokenizer, &path, device)?;
        Ok(Self {
            decoder,
            encoder: None,
            contract,
            runtime,
            interrupt: interrupt.clone(),
            manifest: manifest.clone(),
            device,
        })
    }

    /// Sizes of the codec.
    pub fn contract(&self) -> CodecContract {
        self.contract
    }

    /// Decodes frames to samples, `hop_length` a frame.
    ///
    /// # Errors
    /// When the graph fails, or gives another number of samples, or samples that are not finite.
    pub fn decode(&mut self, codes: &Codes) -> Result<Vec<f32>> {
        let frames: Vec<&[u16]> = codes.frames().collect();
        let hop = self.contract.hop_length;
        let mut samples = Vec::with_capacity(frames.len() * hop);
        for begin in (0..frames.len()).step_by(WINDOW_FRAMES) {
            let end = (begin + WINDOW_FRAMES).min(frames.len());
            let from = begin.saturating_sub(CONTEXT_FRAMES);
            let to = (end + CONTEXT_FRAMES).min(frames.len());
            let window = self.decode_window(&frames[from..to])?;
            samples.extend_from_slice(&window[(begin - from) * hop..(end - from) * hop]);
        }
        if let Some(position) = samples.iter().position(|sample| !sample.is_finite()) {
            let message = format!("the codec gave {} for sample {position}", samples[position]);
            let hint = "a broken kernel is likely: try `--codec-device cpu`, and see `higgs-tts doctor`";
            return Err(UserError::model(message).with_hint(hint).into());
        }
        if !samples.is_empty() && samples.iter().all(|&sample| sample == 0.0) {
            let message = format!("the codec gave nothing but zeros for {} frames", frames.len());
            let hint = "a broken kernel is likely: try `--codec-device cpu`, and see `higgs-tts doctor`";
            return Err(UserError::model(message).with_hint(hint).into());
        }
        Ok(samples)
    }

    fn decode_window(&mut self, frames: &[&[u16]]) -> Result<Vec<f32>> {
        let count = self.contract.codebooks.count;
        // The graph wants [1, codebooks, frames].
        let codes = (0..count).flat_map(|k| frames.iter().map(move |frame| i64::from(frame[k]))).collect();
        let input = int_tensor(&[1, count, frames.len()], codes)?;
        let (_, samples) = self.decoder.run(vec![("audio_codes", input)], "waveform")?;
        let expected = frames.len() * self.contract.hop_length;
        ensure!(
            samples.len() == expected,
            UserError::model(format!(
                "the codec gave {} samples for {} frames, expected {expected}",
                samples.len(),
                frames.len()
            ))
        );
        Ok(samples)
    }

    /// Encodes samples at the codec's own rate. The exported graph takes whole frames, so the end is filled with
    /// silence.
    ///
    /// # Errors
    /// When the encoder is missing or fails.
    pub fn encode(&mut self, samples: &[f32]) -> Result<Codes> {
        let encoder = match &mut self.encoder {
            Some(encoder) => encoder,
            none => {
                check_codec_encoder(&self.manifest, &self.contract)?;
                let path = self.manifest.file(Part::AudioEncoder)?;
                none.insert(OpenGraph::open(self.runtime, &self.interrupt, Part::AudioEncoder, &path, self.device)?)
            }
        };
        let CodecContract { hop_length, codebooks, .. } = self.contract;
        let length = samples.len().next_multiple_of(hop_length).max(hop_length);
        let mut padded = samples.to_vec();
        padded.resize(length, 0.0);
        let input = float_tensor(&[1, 1, length], &padded, ElementType::Float32)?;
        let output = encoder.run_raw(vec![("input_values", input)], "audio_codes")?;
        let (shape, codes) = output.try_extract_tensor::<i64>()?;
        let frames = codes.len() / codebooks.count;
        let expected = [1, codebooks.count as i64, frames as i64];
        ensure!(shape[..] == expected, "the encoder gave codes {shape:?}, expected {expected:?}");
        // [1, codebooks, frames] to frames in order.
        let entries = (0..frames)
            .flat_map(|frame| (0..codebooks.count).map(move |k| codes[k * frames + frame]))
            .map(|code| u16::try_from(code).unwrap_or(u16::MAX))
            .collect();
        Codes::new(codebooks, entries)
    }
}
