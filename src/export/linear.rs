//! Products with weight matrices, as they are or quantised.

use anyhow::Result;

use super::{
    Report,
    matrix::{Matrix, to_bytes},
    onnx::{ModelWriter, Node},
    quantize::{BlockSize, Quantizer, quantize},
};
use crate::onnx::ElementType;

/// Names of a product in its graph.
pub(super) struct Linear<'a> {
    /// The node.
    pub(super) node: &'a str,
    /// The weight, before suffixes.
    pub(super) weight: &'a str,
    /// What is multiplied, [.., K].
    pub(super) input: &'a str,
    /// What comes out, [.., N].
    pub(super) output: &'a str,
}

impl Linear<'_> {
    /// Multiplies by the matrix [N, K] as it is. It is stored in its own type and multiplied in `float`.
    pub(super) fn dense(&self, model: &mut ModelWriter<'_>, matrix: &Matrix<'_>, float: ElementType) -> Result<()> {
        let shape = [matrix.columns(), matrix.rows()];
        model.weight(self.weight, matrix.element_type(), &shape, |out| matrix.write_transposed(out))?;
        let mut weight = self.weight.to_owned();
        if matrix.element_type() != float {
            // The runtime does this once, when it loads the model.
            weight += "_cast";
            let cast = Node::new("Cast", &[self.weight], &[&weight]).named(&format!("{}/Cast", self.node));
            model.node(cast.int("to", float.number().into()));
        }
        model.node(Node::new("MatMul", &[self.input, &weight], &[self.output]).named(self.node));
        Ok(())
    }

    /// Multiplies by the matrix [N, K] in 4 bits. `accuracy_level` 4 lets the runtime round activations to 8 bits, which
    /// processors multiply fastest.
    pub(super) fn quantized(
        &self,
        model: &mut ModelWriter<'_>,
        matrix: &Matrix<'_>,
        (quantizer, block_size): (Quantizer, BlockSize),
        importance: Option<&[f32]>,
        accuracy_level: Option<i64>,
        report: &mut Report,
    ) -> Result<()> {
        let (rows, size) = (matrix.rows(), block_size.weights());
        let blocks = matrix.columns().div_ceil(size);
        let [packed, scales, zero_points] =
            ["Q4", "scales", "zero_points"].map(|suffix| format!("{}_{suffix}", self.weight));
        let mut rest = None;
        model.weight(&packed, ElementType::Uint8, &[rows, blocks, size / 2], |out| {
            let quantized = quantize(matrix, quantizer, block_size, importance)?;
            out.write_all(&quantized.packed)?;
            rest = Some((quantized.scales, quantized.zero_points, quantized.error));
            Ok(())
        })?;
        let (scale_values, zero_point_values, error) = rest.unwrap_or_default();
        report.add(self.weight, error);
        let float = matrix.element_type();
        model.weight(&scales, float, &[rows, blocks], |out| Ok(out.write_all(&to_bytes(&scale_values, float)?)?))?;
        let mut inputs = vec![self.input, &packed, &scales];
        if quantizer.has_zero_points() {
            let shape = [rows, blocks.div_ceil(2)];
            model.weight(&zero_points, ElementType::Uint8, &shape, |out| Ok(out.write_all(&zero_point_values)?))?;
            inputs.push(&zero_points);
        }
        let mut node = Node::microsoft("MatMulNBits", &inputs, &[self.output])
            .named(&format!("{}_Q4", self.node))
            .int("K", matrix.columns() as i64)
            .int("N", rows as i64);
        if let Some(level) = accuracy_level {
            node = node.int("accuracy_level", level);
        }
        model.node(node.int("bits", 4).int("block_size", size as i64));
        Ok(())
    }
}
