//! Weights of 4 bits: blocks of a row share a scale, and a zero point where the format has one.

mod block;

use std::thread;

use anyhow::{Context, Result, ensure};
use half::f16;

use self::block::{Block, Rounding};
use super::matrix::{Matrix, not_finite, threads};
use crate::onnx::ElementType;

/// How the scale of a block is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantizer {
    /// By the value of the largest magnitude; no zero points. Bit for bit what onnxruntime-genai's ModelBuilder makes.
    Rtn,
    /// The one of least squared error; no zero points.
    SearchSymmetric,
    /// The one of least squared error together with its zero point, which takes 4 bits a block more.
    Search,
    /// By the smallest and largest value, with zero points. Bit for bit what ONNX Runtime makes for MatMulNBits.
    MinMax,
    /// The same with divisions rounded to even. Bit for bit what Olive makes for GatherBlockQuantized.
    MinMaxEven,
}

impl Quantizer {
    /// Its name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rtn => "rtn",
            Self::SearchSymmetric => "search-symmetric",
            Self::Search => "search",
            Self::MinMax => "min-max",
            Self::MinMaxEven => "min-max-even",
        }
    }

    /// Whether it minimises an error, which can be weighted.
    pub(super) fn searches(self) -> bool {
        matches!(self, Self::SearchSymmetric | Self::Search)
    }

    /// Whether blocks have zero points; without, the zero point is 8.
    pub fn has_zero_points(self) -> bool {
        !matches!(self, Self::Rtn | Self::SearchSymmetric)
    }
}

/// How many neighbouring weights of a row share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSize {
    /// 32, the finest.
    B32,
    /// 64.
    B64,
    /// 128, the smallest on the disk.
    B128,
}

impl BlockSize {
    /// The number.
    pub fn weights(self) -> usize {
        match self {
            Self::B32 => 32,
            Self::B64 => 64,
            Self::B128 => 128,
        }
    }
}

/// A quantised matrix [N, K], K cut into B blocks, the last one filled up.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// [N, B, block size / 2]: two weights a byte, the first one in the low half.
    pub packed: Vec<u8>,
    /// [N, B], as float16 numbers if the matrix is of that type.
    pub scales: Vec<f32>,
    /// [N, ceil(B / 2)]: two blocks a byte; empty without zero points.
    pub zero_points: Vec<u8>,
    /// What was lost.
    pub error: QuantizationError,
}

/// How far quantised weights are from those that they stand for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct QuantizationError {
    /// Sum of the squared differences.
    pub squared_error: f64,
    /// Sum of the squared weights.
    pub squared_weights: f64,
}

impl QuantizationError {
    /// Root of the ratio: 0 for none, 1 if nothing is left.
    pub fn relative_rms(&self) -> f64 {
        (self.squared_error / self.squared_weights.max(f64::MIN_POSITIVE)).sqrt()
    }

    /// Takes another matrix into the sum.
    pub fn add(&mut self, other: &Self) {
        self.squared_error += other.squared_error;
        self.squared_weights += other.squared_weights;
    }
}

/// Quantises a matrix on all threads. `importance`, if given, has one number for each of the K inputs, such as the mean
/// square of what comes in there; the searching quantizers weigh their errors by it.
///
/// # Errors
/// When a weight is not a finite number.
pub fn quantize(
    matrix: &Matrix<'_>,
    quantizer: Quantizer,
    block_size: BlockSize,
    importance: Option<&[f32]>,
) -> Result<Quantized> {
    match block_size {
        BlockSize::B32 => quantize_blocks::<32>(matrix, quantizer, importance),
        BlockSize::B64 => quantize_blocks::<64>(matrix, quantizer, importance),
        BlockSize::B128 => quantize_blocks::<128>(matrix, quantizer, importance),
    }
}

fn quantize_blocks<const N: usize>(
    matrix: &Matrix<'_>,
    quantizer: Quantizer,
    importance: Option<&[f32]>,
) -> Result<Quantized> {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    let blocks = columns.div_ceil(N);
    let zero_bytes = if quantizer.has_zero_points() { blocks.div_ceil(2) } else { 0 };
    let rounding = match matrix.element_type() {
        ElementType::Float16 => Rounding::Half,
        _ => Rounding::Single,
    };
    let mut weighted = vec![0.0; blocks * N];
    match importance {
        Some(importance) => {
            ensure!(importance.len() == columns, "{} importances for {columns} inputs", importance.len());
            weighted[..columns].copy_from_slice(importance);
            // Only ratios within a block count: this keeps products in range. Where nothing matters, all does evenly.
            for block in weighted.as_chunks_mut::<N>().0 {
                let largest = block.iter().copied().fold(0.0, f32::max);
                block.iter_mut().for_each(|value| *value = if largest > 0.0 { *value / largest } else { 1.0 });
            }
        }
        None => weighted[..columns].fill(1.0),
    }
    let mut quantized = Quantized {
        packed: vec![0; rows * blocks * N / 2],
        scales: vec![0.0; rows * blocks],
        zero_points: vec![0; rows * zero_bytes],
        error: QuantizationError::default(),
    };

    // Each thread takes a run of rows.
    let run = rows.div_ceil(threads());
    let errors = thread::scope(|scope| {
        let mut zero_points = quantized.zero_points.chunks_mut((run * zero_bytes).max(1));
        let packed = quantized.packed.chunks_mut(run * blocks * N / 2);
        let parts = packed.zip(quantized.scales.chunks_mut(run * blocks)).enumerate();
        let workers: Vec<_> = parts
            .map(|(n, (packed, scales))| {
                let zero_points = zero_points.next().unwrap_or_default();
                let weighted = &weighted;
                scope.spawn(move || {
                    let mut error = QuantizationError::default();
                    let mut values = vec![0.0; blocks * N];
                    let parts = packed.chunks_exact_mut(blocks * N / 2).zip(scales.chunks_exact_mut(blocks));
                    for (row, (packed, scales)) in parts.enumerate() {
                        matrix.read(n * run + row, 0, &mut values[..columns]);
                        let inputs = values.as_chunks::<N>().0.iter().zip(weighted.as_chunks::<N>().0);
                        let outputs = packed.chunks_exact_mut(N / 2).zip(scales.iter_mut());
                        for (index, ((weights, importance), (packed, scale))) in inputs.zip(outputs).enumerate() {
                            let block = Block::new(quantizer, rounding, weights, importance);
                            error.add(&block.error(weights));
                            block.pack(packed);
                            *scale = block.scale();
                            if zero_bytes > 0 {
                                zero_points[row * zero_bytes + index / 2] |= block.zero_point() << (index % 2 * 4);
                            }
                        }
                    }
                    error
                })
            })
            .collect();
        let errors = workers.into_iter().map(|worker| worker.join().ok().context("a thread has failed"));
        errors.collect::<Result<Vec<_>>>()
    })?;
    errors.iter().for_each(|error| quantized.error.add(error));
    ensure!(quantized.error.squared_weights.is_finite(), not_finite(matrix.element_type()));
    Ok(quantized)
}

impl Rounding {
    /// The value as it will be stored.
    fn round(self, value: f32) -> f32 {
        match self {
            Self::Single => value,
            Self::Half => f16::from_f32(value).to_f32(),
        }
    }
}

#[cfg(test)]
mod tests;
