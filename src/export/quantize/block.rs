//! One block: the scale, the zero point and the codes of its weights.

use super::{QuantizationError, Quantizer};

/// How a scale is stored.
#[derive(Clone, Copy)]
pub(super) enum Rounding {
    Single,
    Half,
}

/// A quantised block: a code q from 0 to 15 stands for (q - zero point) · scale.
pub(super) struct Block<const N: usize> {
    codes: [u8; N],
    scale: f32,
    zero_point: u8,
}

/// Zero point of formats that have none.
const MIDDLE: f32 = 8.0;
/// Largest code.
const LARGEST: f32 = 15.0;

impl<const N: usize> Block<N> {
    pub(super) fn new(quantizer: Quantizer, rounding: Rounding, weights: &[f32; N], importance: &[f32; N]) -> Self {
        let mut block = match quantizer {
            Quantizer::Rtn => Self::rtn(weights),
            Quantizer::MinMax => Self::min_max(weights),
            Quantizer::MinMaxEven => Self::min_max_even(weights),
            Quantizer::SearchSymmetric | Quantizer::Search => {
                let (scale, zero_point) = match quantizer {
                    Quantizer::Search => search(weights, importance),
                    _ => search_symmetric(weights, importance),
                };
                // The codes are those nearest with the scale as it is stored.
                Self::nearest(weights, rounding.round(scale), zero_point)
            }
        };
        block.scale = rounding.round(block.scale);
        block
    }

    pub(super) fn scale(&self) -> f32 {
        self.scale
    }

    pub(super) fn zero_point(&self) -> u8 {
        self.zero_point
    }

    #[cfg(test)]
    pub(super) fn codes(&self) -> &[u8; N] {
        &self.codes
    }

    /// Two codes a byte, the first one in the low half.
    pub(super) fn pack(&self, out: &mut [u8]) {
        for (out, [low, high]) in out.iter_mut().zip(self.codes.as_chunks::<2>().0) {
            *out = low | high << 4;
        }
    }

    pub(super) fn error(&self, weights: &[f32; N]) -> QuantizationError {
        let (mut squared_error, mut squared_weights) = ([0f32; LANES], [0f32; LANES]);
        for (codes, weights) in self.codes.as_chunks::<LANES>().0.iter().zip(weights.as_chunks::<LANES>().0) {
            for lane in 0..LANES {
                let value = f32::from(codes[lane]) - f32::from(self.zero_point);
                let difference = weights[lane] - value * self.scale;
                squared_error[lane] += difference * difference;
                squared_weights[lane] += weights[lane] * weights[lane];
            }
        }
        let sum = |lanes: [f32; LANES]| f64::from(lanes.iter().sum::<f32>());
        QuantizationError { squared_error: sum(squared_error), squared_weights: sum(squared_weights) }
    }

    /// ModelBuilder's rule: the value of the largest magnitude becomes -8; a half is rounded up.
    fn rtn(weights: &[f32; N]) -> Self {
        let (min, max) = range(weights);
        let extreme = if max.abs() > min.abs() { max } else { min };
        let scale = extreme / -MIDDLE;
        let reciprocal = reciprocal(scale);
        let codes = weights.map(|weight| (weight * reciprocal + (MIDDLE + 0.5)).clamp(0.0, LARGEST) as u8);
        Self { codes, scale, zero_point: MIDDLE as u8 }
    }

    /// The rule of ONNX Runtime's own quantizer: the range becomes 0 to 15; halves are rounded away from zero.
    fn min_max(weights: &[f32; N]) -> Self {
        let (min, max) = range(weights);
        let scale = (max - min) / LARGEST;
        let zero = if scale == 0.0 { 0.0 } else { (0.0 - min / scale).clamp(0.0, LARGEST).round() };
        let reciprocal = reciprocal(scale);
        let codes = weights.map(|weight| (weight * reciprocal + zero).clamp(0.0, LARGEST).round() as u8);
        Self { codes, scale, zero_point: zero as u8 }
    }

    /// The same as numpy computes it: by division, and halves are rounded to even.
    fn min_max_even(weights: &[f32; N]) -> Self {
        let (min, max) = range(weights);
        let scale = (max - min) / LARGEST;
        if scale == 0.0 {
            return Self { codes: [0; N], scale, zero_point: 0 };
        }
        let zero = (-min / scale).round_ties_even().clamp(0.0, LARGEST);
        let codes = weights.map(|weight| (weight / scale + zero).round_ties_even().clamp(0.0, LARGEST) as u8);
        Self { codes, scale, zero_point: zero as u8 }
    }

    fn nearest(weights: &[f32; N], scale: f32, zero_point: f32) -> Self {
        let (reciprocal, low, high) = (reciprocal(scale), -zero_point, LARGEST - zero_point);
        let codes = weights.map(|weight| (nearest(weight * reciprocal, low, high) + zero_point) as u8);
        Self { codes, scale, zero_point: zero_point as u8 }
    }
}

/// Smallest and largest value, zero included.
fn range<const N: usize>(weights: &[f32; N]) -> (f32, f32) {
    weights.iter().fold((0f32, 0f32), |(min, max), &weight| (min.min(weight), max.max(weight)))
}

fn reciprocal(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Steps of the search. More of them gain less than a thousandth of the error.
const STEPS: usize = 12;

/// The scale of least squared error without a zero point. The extreme value may be given either end of the codes, -8 or
/// 7, and may be clipped a little for the sake of the others.
fn search_symmetric<const N: usize>(weights: &[f32; N], importance: &[f32; N]) -> (f32, f32) {
    let (min, max) = range(weights);
    let extreme = if max > -min { max } else { min };
    let candidates = (0..STEPS).map(|step| {
        let step = step as f32 / (STEPS / 2) as f32 * 3.0;
        // Codes 5.5 to 8 at the lower end, 4.5 to 7 at the upper one.
        let end = if step < 3.0 { -8.5 + step } else { 7.5 - (step - 3.0) };
        (end / extreme, MIDDLE)
    });
    best(weights, importance, candidates)
}

/// The scale and zero point of least squared error: the range, or a part of it about its middle, becomes 0 to 15.
fn search<const N: usize>(weights: &[f32; N], importance: &[f32; N]) -> (f32, f32) {
    let (min, max) = range(weights);
    let candidates = (0..STEPS).map(|step| {
        let part = 1.0 - 0.4 * step as f32 / (STEPS - 1) as f32;
        let reciprocal = LARGEST / ((max - min) * part);
        let middle = 0.5 * (max + min) * reciprocal;
        (reciprocal, nearest(0.5 * LARGEST - middle, 0.0, LARGEST))
    });
    best(weights, importance, candidates)
}

/// Of candidates (1 / scale, zero point), the scale and zero point of least squared error.
///
/// With the codes of a candidate c = round(w / scale), the best scale for just these codes is Σwc / Σc² (least squares),
/// and the error falls by (Σwc)² / Σc².
fn best<const N: usize>(
    weights: &[f32; N],
    importance: &[f32; N],
    candidates: impl Iterator<Item = (f32, f32)>,
) -> (f32, f32) {
    let (mut scale, mut zero_point, mut gain) = (0.0, MIDDLE, 0.0);
    for (reciprocal, zero) in candidates {
        let (products, squares) = fit(weights, importance, reciprocal, zero);
        // Not so for a block of zeros, whose reciprocal is infinite.
        if products * products > gain * squares {
            (scale, zero_point, gain) = (products / squares, zero, products * products / squares);
        }
    }
    (scale, zero_point)
}

/// Partial sums side by side, for the vector units.
const LANES: usize = 16;

/// Σwc and Σc² over the block, weighted by importance.
fn fit<const N: usize>(weights: &[f32; N], importance: &[f32; N], reciprocal: f32, zero: f32) -> (f32, f32) {
    let (low, high) = (-zero, LARGEST - zero);
    let (mut products, mut squares) = ([0f32; LANES], [0f32; LANES]);
    for (weights, importance) in weights.as_chunks::<LANES>().0.iter().zip(importance.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            let code = nearest(weights[lane] * reciprocal, low, high);
            let weighted = importance[lane] * code;
            products[lane] += weighted * weights[lane];
            squares[lane] += weighted * code;
        }
    }
    (products.iter().sum(), squares.iter().sum())
}

/// Clamps, and rounds to the nearest integer by pushing the fraction out of a float's 24 bits: comparisons and sums, which
/// every vector unit can do.
fn nearest(value: f32, low: f32, high: f32) -> f32 {
    const PUSH: f32 = 12_582_912.0; // 1.5 · 2^23
    let value = if value > low { value } else { low };
    let value = if value < high { value } else { high };
    (value + PUSH) - PUSH
}
