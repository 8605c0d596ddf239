//! A numeric check of each part on fixed inputs, to find the kernel that is broken.

use anyhow::Result;
use ort::value::DynValue;

use super::{
    Device, Interrupt, Runtime, contract,
    session::{OpenGraph, float_tensor, floats, int_tensor},
};
use crate::{
    manifest::{Manifest, Part},
    onnx::{ElementType, Graph},
};

/// Positions of the decoder's probe.
const POSITIONS: usize = 16;

/// Below this cosine to the CPU's result a part is wrong; 16-bit arithmetic stays above 0.999.
const LEAST_COSINE: f64 = 0.99;

/// What a part answers to its fixed inputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// Whether every output is finite.
    pub is_finite: bool,
    /// Whether every output is zero.
    pub is_zero: bool,
    /// Cosine to what the CPU answers, when the part runs elsewhere.
    pub cosine_to_cpu: Option<f64>,
    /// The same for a single position, for the decoder: attention has nothing to do there.
    pub cosine_of_one_position: Option<f64>,
}

impl Probe {
    /// What is wrong, in words, or nothing.
    pub fn verdict(&self) -> Option<&'static str> {
        let is_far = |cosine: Option<f64>| cosine.is_some_and(|cosine| cosine < LEAST_COSINE);
        if is_far(self.cosine_to_cpu) && !is_far(self.cosine_of_one_position) && self.cosine_of_one_position.is_some() {
            Some("its attention (GroupQueryAttention) is at fault: one position alone is right")
        } else if is_far(self.cosine_of_one_position) {
            Some("its matrix products (MatMulNBits or MatMul) are at fault: one position alone is wrong already")
        } else if is_far(self.cosine_to_cpu) {
            Some("it differs from the CPU")
        } else if !self.is_finite {
            Some("it gives values that are not finite")
        } else if self.is_zero {
            Some("it gives nothing but zeros")
        } else {
            None
        }
    }
}

/// Opens a part on a device and compares it with the CPU if that is another one.
///
/// # Errors
/// When the part cannot be used.
pub fn probe(runtime: &Runtime, manifest: &Manifest, part: Part, device: Device) -> Result<Probe> {
    let graph = contract::read(manifest, part)?;
    let run = |device: Device, positions: usize| -> Result<Vec<f32>> {
        let mut open = OpenGraph::open(runtime, &Interrupt::new(runtime)?, part, &graph.path, device)?;
        let (inputs, output) = fixed_inputs(manifest, part, &graph, positions)?;
        let value = open.run_raw(inputs, output)?;
        match part {
            Part::AudioEncoder => Ok(value.try_extract_tensor::<i64>()?.1.iter().map(|&code| code as f32).collect()),
            _ => floats(&value),
        }
    };
    let found = run(device, POSITIONS)?;
    let against_cpu = |found: &[f32], positions| -> Result<Option<f64>> {
        Ok(if device == Device::Cpu { None } else { Some(cosine(found, &run(Device::Cpu, positions)?)) })
    };
    let is_decoder = part == Part::LlmDecoder && device != Device::Cpu;
    Ok(Probe {
        is_finite: found.iter().all(|value| value.is_finite()),
        is_zero: found.iter().all(|&value| value == 0.0),
        cosine_to_cpu: against_cpu(&found, POSITIONS)?,
        cosine_of_one_position: if is_decoder { against_cpu(&run(device, 1)?, 1)? } else { None },
    })
}

/// Inputs that are the same everywhere, by name, and the output to look at.
fn fixed_inputs(
    manifest: &Manifest,
    part: Part,
    graph: &Graph,
    positions: usize,
) -> Result<(Vec<(String, DynValue)>, &'static str)> {
    let fixed =
        |input: &str, axis, otherwise| graph.input(input).and_then(|port| port.fixed(axis)).unwrap_or(otherwise);
    let element_type = |input: &str| graph.input(input).map_or(ElementType::Float32, |port| port.element_type);
    let wave = |length: usize| (0..length).map(|n| (n as f32 * 0.37).sin() * 0.5).collect::<Vec<_>>();
    let codes = |length: usize| (0..length).map(|n| (n * 37 % 1024) as i64).collect::<Vec<_>>();
    let one = |name: &str, value| vec![(name.to_owned(), value)];
    Ok(match part {
        Part::TextEmbed => (one("input_ids", int_tensor(&[1, 8], (0..8).collect())?), "inputs_embeds"),
        Part::AudioEmbed => {
            let books = fixed("codes", 2, 8);
            (one("codes", int_tensor(&[1, 4, books], codes(4 * books))?), "audio_embeds")
        }
        Part::AudioHeads => {
            let (name, hidden) = ("hidden_states", fixed("hidden_states", 2, 2560));
            let value = float_tensor(&[1, 1, hidden], &wave(hidden), element_type(name))?;
            (one(name, value), "audio_logits")
        }
        Part::AudioTokenizer => {
            let books = fixed("audio_codes", 1, 8);
            (one("audio_codes", int_tensor(&[1, books, 10], codes(10 * books))?), "waveform")
        }
        Part::AudioEncoder => {
            let value = float_tensor(&[1, 1, 24_000], &wave(24_000), ElementType::Float32)?;
            (one("input_values", value), "audio_codes")
        }
        Part::LlmDecoder => {
            let sizes = contract::check_decoder(manifest, graph)?;
            let embeds = wave(positions * sizes.hidden_size);
            let mut inputs = vec![
                (
                    "inputs_embeds".to_owned(),
                    float_tensor(&[1, positions, sizes.hidden_size], &embeds, sizes.embeds_type)?,
                ),
                ("attention_mask".to_owned(), int_tensor(&[1, positions], vec![1; positions])?),
            ];
            for port in graph.inputs.iter().filter(|port| port.name.starts_with("past_key_values.")) {
                let shape = [1, sizes.kv_heads, 0, sizes.head_dim];
                inputs.push((port.name.clone(), float_tensor(&shape, &[], sizes.cache_type)?));
            }
            (inputs, "hidden_states")
        }
    })
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    // Zeros and NaN are as far away as can be.
    if cosine.is_finite() && a.len() == b.len() { cosine } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_names_the_kernel() {
        let healthy =
            Probe { is_finite: true, is_zero: false, cosine_to_cpu: Some(0.9999), cosine_of_one_position: Some(1.0) };
        assert_eq!(healthy.verdict(), None);
        let attention = Probe { cosine_to_cpu: Some(0.3), ..healthy.clone() };
        assert!(attention.verdict().unwrap().contains("GroupQueryAttention"));
        let products = Probe { cosine_of_one_position: Some(0.0), ..attention };
        assert!(products.verdict().unwrap().contains("MatMulNBits"));
        let on_cpu = Probe { cosine_to_cpu: None, cosine_of_one_position: None, ..healthy };
        assert_eq!(on_cpu.verdict(), None);
        assert_eq!(Probe { is_zero: true, ..on_cpu.clone() }.verdict(), Some("it gives nothing but zeros"));
        assert_eq!(Probe { is_finite: false, ..on_cpu.clone() }.verdict(), Some("it gives values that are not finite"));
        assert_eq!(Probe { cosine_to_cpu: Some(0.5), ..on_cpu }.verdict(), Some("it differs from the CPU"));
    }

    #[test]
    fn a_cosine_with_zeros_or_nan_is_zero() {
        assert_eq!(cosine(&[1.0, 2.0], &[0.0, 0.0]), 0.0);
        assert_eq!(cosine(&[1.0, f32::NAN], &[1.0, 1.0]), 0.0);
        assert!((cosine(&[1.0, 2.0], &[2.0, 4.0]) - 1.0).abs() < 1e-12);
    }
}
