//! A weight matrix [N, K] as a graph wants it: one or several tensors on top of each other, in the precision of the
//! target.

use std::{io::Write, num::NonZeroUsize, thread};

use anyhow::{Context, Result, ensure};
use half::f16;

use super::weights::Tensor;
use crate::{error::UserError, onnx::ElementType};

/// Rows of weights, each the weights of one output.
pub struct Matrix<'w> {
    tensors: Vec<Tensor<'w>>,
    element_type: ElementType,
    rows: usize,
    columns: usize,
}

impl<'w> Matrix<'w> {
    /// Puts tensors on top of each other. Values become those that `element_type` (float16 or float32) can hold, rounded
    /// to the nearest.
    ///
    /// # Errors
    /// When they are not matrices of the same number of columns.
    pub fn new(tensors: Vec<Tensor<'w>>, element_type: ElementType) -> Result<Self> {
        let columns = tensors.first().and_then(|first| first.shape().get(1)).copied().context("it is no matrix")?;
        for tensor in &tensors {
            let fits = tensor.shape().len() == 2 && tensor.shape()[1] == columns;
            ensure!(fits, "{} has the shape {:?}, expected {columns} columns", tensor.name(), tensor.shape());
        }
        let rows = tensors.iter().map(|tensor| tensor.shape()[0]).sum();
        Ok(Self { tensors, element_type, rows, columns })
    }

    /// N, the number of outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// K, the number of inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The element type of its values.
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// Reads a part of a row, from a column on.
    ///
    /// # Panics
    /// When the row or its end lies outside.
    pub fn read(&self, row: usize, column: usize, out: &mut [f32]) {
        let mut row = row;
        for tensor in &self.tensors {
            let rows = tensor.shape()[0];
            if row < rows {
                tensor.read(row * self.columns + column, out);
                break;
            }
            row -= rows;
        }
        if self.element_type == ElementType::Float16 {
            out.iter_mut().for_each(|value| *value = f16::from_f32(*value).to_f32());
        }
    }

    /// Writes the matrix as it is, [N, K].
    ///
    /// # Errors
    /// When writing fails.
    pub fn write(&self, out: &mut dyn Write) -> Result<()> {
        const ROWS: usize = 64;
        in_order(self.rows.div_ceil(ROWS), out, |piece| {
            let rows = piece * ROWS..self.rows.min((piece + 1) * ROWS);
            let mut values = vec![0.0; rows.len() * self.columns];
            for (row, out) in rows.zip(values.chunks_exact_mut(self.columns)) {
                self.read(row, 0, out);
            }
            to_bytes(&values, self.element_type)
        })
    }

    /// Writes the matrix transposed, [K, N], as MatMul wants it.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write_transposed(&self, out: &mut dyn Write) -> Result<()> {
        // Columns are taken together by so many, that a row is read by whole cache lines.
        const COLUMNS: usize = 64;
        in_order(self.columns.div_ceil(COLUMNS), out, |piece| {
            let columns = piece * COLUMNS..self.columns.min((piece + 1) * COLUMNS);
            let mut values = vec![0.0; columns.len() * self.rows];
            let mut part = vec![0.0; columns.len()];
            for row in 0..self.rows {
                self.read(row, columns.start, &mut part);
                part.iter().zip(values[row..].iter_mut().step_by(self.rows)).for_each(|(value, out)| *out = *value);
            }
            to_bytes(&values, self.element_type)
        })
    }
}

impl Drop for Matrix<'_> {
    fn drop(&mut self) {
        self.tensors.iter().for_each(Tensor::release);
    }
}

/// Little-endian bytes of values as float16 or float32.
///
/// # Errors
/// When one is not a finite number of that type.
pub(super) fn to_bytes(values: &[f32], element_type: ElementType) -> Result<Vec<u8>> {
    let finite = match element_type {
        ElementType::Float16 => values.iter().all(|&value| f16::from_f32(value).is_finite()),
        _ => values.iter().all(|value| value.is_finite()),
    };
    ensure!(finite, not_finite(element_type));
    Ok(match element_type {
        ElementType::Float16 => values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    })
}

/// What is wrong with weights that would make a model of silence or noise.
pub(super) fn not_finite(element_type: ElementType) -> UserError {
    UserError::request(format!("some weights are not finite numbers in {element_type}"))
        .with_hint("the checkpoint may be damaged: download it again")
}

/// How many threads work on weights.
pub(super) fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Makes pieces of bytes on all threads and writes them in order; a few pieces are in memory at any time.
fn in_order(pieces: usize, out: &mut dyn Write, make: impl Fn(usize) -> Result<Vec<u8>> + Sync) -> Result<()> {
    let (make, threads) = (&make, threads());
    for first in (0..pieces).step_by(threads) {
        let made = thread::scope(|scope| {
            let makers: Vec<_> =
                (first..pieces.min(first + threads)).map(|piece| scope.spawn(move || make(piece))).collect();
            makers.into_iter().map(|maker| maker.join().ok().context("a thread has failed")).collect::<Result<Vec<_>>>()
        })?;
        made.into_iter().try_for_each(|bytes| anyhow::Ok(out.write_all(&bytes?)?))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::weights::Weights;

    #[test]
    fn tensors_lie_on_top_of_each_other_and_can_be_transposed() {
        let shapes = [("a.weight".to_owned(), vec![70, 130]), ("b.weight".to_owned(), vec![3, 130])];
        let weights = Weights::random(1, shapes);
        let tensors = || vec![weights.tensor("a.weight").unwrap(), weights.tensor("b.weight").unwrap()];
        let stacked: Vec<f32> = tensors().iter().flat_map(Tensor::to_vec).collect();
        for element_type in [ElementType::Float32, ElementType::Float16] {
            let matrix = Matrix::new(tensors(), element_type).unwrap();
            let (mut plain, mut transposed) = (Vec::new(), Vec::new());
            matrix.write(&mut plain).unwrap();
            matrix.write_transposed(&mut transposed).unwrap();
            assert_eq!(plain, to_bytes(&stacked, element_type).unwrap());
            let by_column: Vec<f32> = (0..130).flat_map(|k| stacked.iter().skip(k).step_by(130)).copied().collect();
            assert_eq!(transposed, to_bytes(&by_column, element_type).unwrap());
        }
    }
}
