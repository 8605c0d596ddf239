//! From the codec's sample rate to the semantic model's, by the windowed sinc of torchaudio's `resample` with its
//! defaults (the method that Julius O. Smith describes in "Digital Audio Resampling").

use std::f64::consts::PI;

use anyhow::Result;

use super::{
    config::CodecConfig,
    layers::{Conv, Layers},
};

/// Zero crossings of the sinc on each side.
const CROSSINGS: f64 = 6.0;
/// Cut-off frequency as a share of the lower Nyquist frequency.
const ROLLOFF: f64 = 0.99;

/// A ratio of sample rates in lowest terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ratio {
    /// Samples that go in.
    pub(super) inputs: usize,
    /// Samples that come out of them.
    pub(super) outputs: usize,
}

impl Ratio {
    pub(super) fn new(config: &CodecConfig) -> Self {
        let (from, to) = (config.sample_rate_hz, config.semantic.sample_rate_hz);
        let (mut divisor, mut rest) = (from, to);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        Self { inputs: from / divisor, outputs: to / divisor }
    }

    fn cutoff(self) -> f64 {
        self.inputs.min(self.outputs) as f64 * ROLLOFF
    }

    /// Samples on each side that the sinc reaches.
    fn reach(self) -> usize {
        (CROSSINGS * self.inputs as f64 / self.cutoff()).ceil() as usize
    }

    /// A row of weights for each sample that comes out.
    fn kernels(self) -> Vec<f32> {
        let (inputs, reach) = (self.inputs as f64, self.reach() as isize);
        let weight = |output: usize, at: isize| {
            let time = at as f64 / inputs - output as f64 / self.outputs as f64;
            let time = (time * self.cutoff()).clamp(-CROSSINGS, CROSSINGS);
            let window = (time * PI / CROSSINGS / 2.0).cos().powi(2);
            let sinc = if time == 0.0 { 1.0 } else { (time * PI).sin() / (time * PI) };
            (sinc * window * self.cutoff() / inputs) as f32
        };
        (0..self.outputs)
            .flat_map(|output| (-reach..reach + self.inputs as isize).map(move |at| weight(output, at)))
            .collect()
    }
}

/// `[B, 1, samples]`, of which there are `length` → `[B, 1, ⌈samples · outputs ÷ inputs⌉]`.
pub(super) fn resample(
    layers: &mut Layers<'_, '_>,
    config: &CodecConfig,
    samples: &str,
    length: &str,
) -> Result<String> {
    let ratio @ Ratio { inputs, outputs } = Ratio::new(config);
    let name = |value: &str| format!("resample.{value}");
    let kernel = 2 * ratio.reach() + inputs;
    layers.weight(&name("phases.weight"), &[outputs, 1, kernel], |_| Ok(ratio.kernels()))?;
    // A channel for each sample that comes out of a stride, then the channels in turn.
    let phases = name("phases");
    let pads = [ratio.reach(), ratio.reach() + inputs];
    let conv = Conv { stride: inputs, pads, bias: false, ..Conv::new(&phases, 1, outputs, kernel, 1) };
    let phases = layers.convolve(samples, &conv);
    let turns = layers.transpose(&phases, &[0, 2, 1], &name("turns"));
    let shape = layers.ints(&name("shape"), &[0, 1, -1]);
    let all = layers.apply("Reshape", &[&turns, &shape], &name("all"));
    // The last stride is begun but not filled: what is left of it is cut.
    let [times, plus, by] = [("times", outputs), ("plus", inputs - 1), ("by", inputs)]
        .map(|(value, number)| layers.ints(&name(value), &[number as i64]));
    let end = layers.apply("Mul", &[length, &times], &name("multiplied"));
    let end = layers.apply("Add", &[&end, &plus], &name("added"));
    let end = layers.apply("Div", &[&end, &by], &name("length"));
    let [begin, axis] = [("begin", 0), ("axis", 2)].map(|(value, number)| layers.ints(&name(value), &[number]));
    Ok(layers.apply("Slice", &[&all, &begin, &end, &axis], "resample"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_samples_come_out_of_three() {
        let ratio = Ratio::new(&CodecConfig::published());
        assert_eq!(ratio, Ratio { inputs: 3, outputs: 2 });
        assert_eq!((ratio.reach(), ratio.kernels().len()), (10, 2 * 23));
    }

    #[test]
    fn a_constant_stays_what_it_is() {
        let ratio = Ratio::new(&CodecConfig::published());
        for kernel in ratio.kernels().chunks_exact(23) {
            let sum: f32 = kernel.iter().sum();
            assert!((sum - 1.0).abs() < 2e-3, "{sum}");
        }
    }
}
