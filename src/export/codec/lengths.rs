//! How many frames a sound has, which the two halves of the encoder see differently.

use anyhow::{Result, ensure};

use super::{
    config::{CodecConfig, SemanticConfig},
    layers::Layers,
    resampler::Ratio,
};
use crate::export::onnx::Node;

/// `⌊(x + plus) ÷ by⌋`: what strided layers make of a length. One after another they are again one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Quotient {
    plus: i64,
    by: i64,
}

impl Quotient {
    const IDENTITY: Self = Self { plus: 0, by: 1 };

    /// `⌊(⌊(x + a) ÷ b⌋ + c) ÷ d⌋ = ⌊(x + a + b c) ÷ (b d)⌋`
    fn then(self, plus: i64, by: usize) -> Self {
        Self { plus: self.plus + self.by * plus, by: self.by * by as i64 }
    }

    fn then_conv(self, kernel: usize, stride: usize, pads: usize) -> Self {
        self.then(pads as i64 + stride as i64 - kernel as i64, stride)
    }
}

/// The half-frame rule: the acoustic encoder sees the sound with half a frame of zeros on both sides if it would give
/// fewer frames than the semantic model otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HalfFrameRule {
    hop: i64,
    /// Frames of n samples are `⌊(n + semantic) ÷ hop⌋`.
    semantic: i64,
    /// Without zeros, the acoustic encoder gives `⌊(n + acoustic) ÷ hop⌋`.
    acoustic: i64,
}

impl HalfFrameRule {
    /// # Errors
    /// When half a frame does not always make up for the difference.
    pub(super) fn new(config: &CodecConfig) -> Result<Self> {
        let hop = config.hop_length() as i64;
        let ratios = &config.acoustic.downsampling_ratios;
        let acoustic = ratios
            .iter()
            .fold(Quotient::IDENTITY, |length, &stride| length.then_conv(2 * stride, stride, 2 * stride.div_ceil(2)));

        // In units of an input sample divided by `outputs`.
        let Ratio { inputs, outputs } = Ratio::new(config);
        let SemanticConfig { downsample_factor, conv_kernels, conv_strides, .. } = &config.semantic;
        let heard = Quotient::IDENTITY.then(inputs as i64 - 1, inputs).then(2 * (*downsample_factor as i64 / 2), 1);
        let shapes = conv_kernels.iter().zip(conv_strides);
        let steps = shapes.fold(heard, |length, (&kernel, &stride)| length.then_conv(kernel, stride, 0));
        let frames = steps.then(config.semantic_steps() as i64 - 1, config.semantic_steps());

        ensure!(
            frames.by == hop * outputs as i64,
            "a frame of {hop} samples is no whole number of steps of the semantic model"
        );
        let rule = Self { hop, semantic: frames.plus.div_euclid(outputs as i64), acoustic: acoustic.plus };
        let missing = rule.semantic - rule.acoustic;
        ensure!(
            hop % 2 == 0 && (0..=hop).contains(&missing) && rule.acoustic >= 0,
            "half a frame of zeros does not make the encoders agree on the number of frames"
        );
        Ok(rule)
    }

    /// The fewest samples that make a frame.
    pub(super) fn shortest(self) -> i64 {
        (self.hop - self.semantic).max(1)
    }

    /// Adds the zeros: `[B, 1, samples]`, of which there are `length` → `[B, 1, samples or samples + hop]`.
    pub(super) fn apply(self, layers: &mut Layers<'_, '_>, samples: &str, length: &str) -> String {
        let by = layers.ints("half_frame.hop", &[self.hop]);
        let [semantic, acoustic] = [("semantic", self.semantic), ("acoustic", self.acoustic)].map(|(kind, plus)| {
            let name = |value: &str| format!("half_frame.{kind}.{value}");
            let plus = layers.ints(&name("plus"), &[plus]);
            let sum = layers.apply("Add", &[length, &plus], &name("sum"));
            layers.apply("Div", &[&sum, &by], &name("frames"))
        });
        let missing = layers.apply("Sub", &[&semantic, &acoustic], "half_frame.missing");
        let half = self.hop / 2;
        let halves = layers.ints("half_frame.halves", &[0, 0, half, 0, 0, half]);
        let pads = layers.apply("Mul", &[&missing, &halves], "half_frame.pads");
        layers.apply("Pad", &[samples, &pads], "half_frame")
    }
}

/// Adds the number of samples in `[B, 1, samples]`.
pub(super) fn length(layers: &mut Layers<'_, '_>, samples: &str, name: &str) -> String {
    layers.node(Node::new("Shape", &[samples], &[name]).int("start", 2));
    name.into()
}

/// Adds silence at the end where there are fewer samples than `shortest`.
pub(super) fn fill(layers: &mut Layers<'_, '_>, samples: &str, shortest: i64) -> String {
    let length = length(layers, samples, "fill.length");
    let shortest = layers.ints("fill.shortest", &[0, 0, 0, 0, 0, shortest]);
    let none = layers.ints("fill.none", &[0]);
    let missing = layers.apply("Sub", &[&shortest, &length], "fill.missing");
    let pads = layers.apply("Max", &[&missing, &none], "fill.pads");
    layers.apply("Pad", &[samples, &pads], "fill")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Step by step, as the layers do it.
    fn frames(config: &CodecConfig, samples: usize) -> (usize, usize) {
        let ratios = &config.acoustic.downsampling_ratios;
        let acoustic = ratios.iter().fold(samples, |length, &stride| (length + stride % 2) / stride);
        let semantic = &config.semantic;
        let heard = (2 * samples).div_ceil(3) + semantic.downsample_factor;
        let shapes = semantic.conv_kernels.iter().zip(&semantic.conv_strides);
        let steps = shapes.fold(heard, |length, (kernel, stride)| (length - kernel) / stride + 1);
        (steps.div_ceil(2), acoustic)
    }

    #[test]
    fn the_rule_gives_the_frames_that_the_layers_give() {
        let config = CodecConfig::published();
        let rule = HalfFrameRule::new(&config).unwrap();
        assert_eq!(rule, HalfFrameRule { hop: 960, semantic: 841, acoustic: 328 });
        assert_eq!(rule.shortest(), 119);
        for samples in (119..3000).chain(24_000..27_000) {
            let by_rule = [rule.semantic, rule.acoustic].map(|plus| (samples as i64 + plus) / rule.hop);
            let (semantic, acoustic) = frames(&config, samples);
            assert_eq!(by_rule, [semantic as i64, acoustic as i64], "{samples} samples");
            if semantic != acoustic {
                assert_eq!(frames(&config, samples + 960).1, semantic, "{samples} samples");
            }
        }
        for (samples, expected) in [(24_000, 25), (24_480, 26), (30_000, 32), (33_333, 35), (100_000, 105)] {
            assert_eq!(frames(&config, samples).0, expected);
        }
    }

    #[test]
    fn codecs_whose_halves_never_agree_are_refused() {
        let mut config = CodecConfig::published();
        config.semantic.conv_strides[0] = 4;
        assert!(HalfFrameRule::new(&config).is_err());
    }
}
