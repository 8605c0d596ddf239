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

    /// Whether the folder names an encoder that is there.
    pub fn has_encoder(&self) -> bool {
        self.manifest.has(Part::AudioEncoder)
    }

    /// Decodes frames to samples, `hop_length` a frame.
    ///
    /// # Errors
    /// When the graph fails, or gives another number of samples, or samples that are not finite.
    pub fn decode(&mut self, codes: &Codes) -> Result<Vec<f32>> {
        let frames: Vec<&[u16]> = codes.frames().collect();
        let samples = self.decode_in_windows(&frames, WINDOW_FRAMES, CONTEXT_FRAMES)?;
        let broken = |what: String| {
            let hint = "a broken kernel is likely: try `--codec-device cpu`, and see `higgs-tts doctor`";
            UserError::model(format!("the codec gave {what}")).with_hint(hint)
        };
        if let Some(position) = samples.iter().position(|sample| !sample.is_finite()) {
            return Err(broken(format!("{} for sample {position}", samples[position])).into());
        }
        if !samples.is_empty() && samples.iter().all(|&sample| sample == 0.0) {
            return Err(broken(format!("nothing but zeros for {} frames", frames.len())).into());
        }
        Ok(samples)
    }

    fn decode_in_windows(&mut self, frames: &[&[u16]], window: usize, context: usize) -> Result<Vec<f32>> {
        let hop = self.contract.hop_length;
        let mut samples = Vec::with_capacity(frames.len() * hop);
        for begin in (0..frames.len()).step_by(window) {
            let end = (begin + window).min(frames.len());
            let (from, to) = (begin.saturating_sub(context), (end + context).min(frames.len()));
            let decoded = self.decode_window(&frames[from..to])?;
            samples.extend_from_slice(&decoded[(begin - from) * hop..(end - from) * hop]);
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

    /// Encodes samples at the codec's own rate. An encoder that takes whole frames only gets silence at the end.
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
        let length = match self.manifest.encoder_takes_any_length() {
            true => samples.len(),
            false => samples.len().next_multiple_of(hop_length).max(hop_length),
        };
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

#[cfg(test)]
mod tests {
    use std::{num::NonZeroUsize, path::Path};

    use super::*;

    #[test]
    fn windows_with_ten_frames_of_context_are_the_whole_and_nine_are_not() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/cpu_fp32");
        let runtime = Runtime::start(NonZeroUsize::MIN).unwrap();
        let manifest = Manifest::read(&folder).unwrap();
        let mut codec = Codec::open(runtime, &Interrupt::new(runtime).unwrap(), &manifest, Device::Cpu).unwrap();
        let frames: Vec<[u16; 8]> =
            (0..70u32).map(|t| std::array::from_fn(|k| ((t * t * 31 + k as u32 * 7) % 1024) as u16)).collect();
        let frames: Vec<&[u16]> = frames.iter().map(<[u16; 8]>::as_slice).collect();
        let whole = codec.decode_in_windows(&frames, 100, 0).unwrap();
        assert_eq!(whole.len(), 70 * 960);
        let mut differs_by = |context| {
            let windows = codec.decode_in_windows(&frames, 25, context).unwrap();
            whole.iter().zip(windows).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        assert!(differs_by(10) < 1e-5);
        assert!(differs_by(9) > 1e-4);
    }
}
