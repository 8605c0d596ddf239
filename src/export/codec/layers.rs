//! The layers that both graphs are put together from.
//!
//! A layer is called as its tensors in the checkpoint are, and so is the value that it gives.

use std::io::Write;

use anyhow::{Result, ensure};
use ndarray::{Array1, Array2, ArrayRef, Dimension};

use super::{Lookup, PREFIX, Shapes};
use crate::{
    export::{
        matrix::not_finite,
        onnx::{ModelWriter, Node, Tensor},
    },
    onnx::{Axis, ElementType},
};

/// The reference adds this to the slope of a snake before it divides by it. Here it is the least slope, which is the
/// same up to 1e-9 x².
const LEAST_SLOPE: f64 = 1e-9;

/// A graph that grows layer by layer.
pub(super) struct Layers<'l, 'w> {
    model: &'l mut ModelWriter<'w>,
    lookup: &'l Lookup<'l>,
    tensors: Shapes,
}

/// A tensor of the checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Source {
    name: String,
    shape: Vec<usize>,
}

impl Source {
    /// Its values.
    pub(super) fn read(&self, lookup: &Lookup<'_>) -> Result<Vec<f32>> {
        lookup(&self.name, &self.shape)
    }

    /// Its values along one axis, in double precision.
    pub(super) fn vector(&self, lookup: &Lookup<'_>) -> Result<Array1<f64>> {
        Ok(self.read(lookup)?.into_iter().map(f64::from).collect())
    }

    /// Its values as a matrix of its first axis by all others, in double precision.
    pub(super) fn matrix(&self, lookup: &Lookup<'_>) -> Result<Array2<f64>> {
        let rows = self.shape[0];
        let columns: usize = self.shape[1..].iter().product();
        Ok(self.vector(lookup)?.into_shape_with_order((rows, columns))?)
    }
}

/// A convolution over time.
///
/// A snake before or after it is scaled through its weights, see [`Layers::snake`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Conv<'c> {
    pub(super) name: &'c str,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    /// Zeros before and after.
    pub(super) pads: [usize; 2],
    pub(super) groups: usize,
    pub(super) bias: bool,
    /// Whether the stride multiplies the length instead of dividing it.
    pub(super) transposed: bool,
    /// The snake that gives its input.
    pub(super) after: Option<&'c str>,
    /// The snake that takes its output.
    pub(super) before: Option<&'c str>,
    /// The name of its output, if it is not its own.
    pub(super) output: Option<&'c str>,
}

impl<'c> Conv<'c> {
    /// A convolution with an odd kernel and a bias that keeps the length.
    pub(super) fn new(name: &'c str, inputs: usize, outputs: usize, kernel: usize, dilation: usize) -> Self {
        Self {
            name,
            inputs,
            outputs,
            kernel,
            stride: 1,
            dilation,
            pads: [dilation * (kernel / 2); 2],
            groups: 1,
            bias: true,
            transposed: false,
            after: None,
            before: None,
            output: None,
        }
    }
}

impl<'l, 'w> Layers<'l, 'w> {
    pub(super) fn new(model: &'l mut ModelWriter<'w>, lookup: &'l Lookup<'l>) -> Self {
        Self { model, lookup, tensors: Shapes::new() }
    }

    /// The tensors that the graph is made of.
    pub(super) fn into_tensors(self) -> Shapes {
        self.tensors
    }

    /// Adds an input with this many channels: `[B, channels, L]`.
    pub(super) fn input(&mut self, name: &str, element_type: ElementType, channels: usize, length: &str) {
        self.model.input(name, element_type, &axes(channels, length));
    }

    /// Adds an output with this many channels: `[B, channels, L]`.
    pub(super) fn output(&mut self, name: &str, element_type: ElementType, channels: usize, length: &str) {
        self.model.output(name, element_type, &axes(channels, length));
    }

    /// Notes that a tensor is needed.
    pub(super) fn source(&mut self, name: &str, shape: &[usize]) -> Source {
        let (name, shape) = (format!("{PREFIX}{name}"), shape.to_vec());
        self.tensors.insert(name.clone(), shape.clone());
        Source { name, shape }
    }

    /// Adds a weight whose values are made when they are written.
    pub(super) fn weight(
        &mut self,
        name: &str,
        shape: &[usize],
        make: impl FnOnce(&Lookup<'_>) -> Result<Vec<f32>>,
    ) -> Result<()> {
        let lookup = self.lookup;
        self.model.weight(name, ElementType::Float32, shape, |out| {
            let values = make(lookup)?;
            ensure!(values.iter().all(|value| value.is_finite()), not_finite(ElementType::Float32));
            write_floats(out, &values)
        })
    }

    /// Adds a tensor of the checkpoint as it is.
    pub(super) fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<String> {
        let source = self.source(name, shape);
        self.weight(name, shape, |lookup| source.read(lookup))?;
        Ok(name.into())
    }

    /// Adds a list of integers.
    pub(super) fn ints(&mut self, name: &str, values: &[i64]) -> String {
        self.model.constant(Tensor::int64(name, &[values.len()], values));
        name.into()
    }

    /// Adds a number.
    pub(super) fn scalar(&mut self, name: &str, value: f32) {
        self.model.constant(Tensor::float32(name, &[], &[value]));
    }

    /// Adds a node.
    pub(super) fn node(&mut self, node: Node) {
        self.model.node(node);
    }

    /// Adds a node without attributes and with one output.
    pub(super) fn apply(&mut self, operator: &str, inputs: &[&str], output: &str) -> String {
        self.node(Node::new(operator, inputs, &[output]));
        output.into()
    }

    /// Adds a transposition.
    pub(super) fn transpose(&mut self, x: &str, axes: &[i64], output: &str) -> String {
        self.node(Node::new("Transpose", &[x], &[output]).ints("perm", axes));
        output.into()
    }

    /// Adds a convolution: `[B, inputs, L]` → `[B, outputs, L']`.
    pub(super) fn conv(&mut self, x: &str, conv: Conv<'_>) -> Result<String> {
        let Conv { name, inputs, outputs, kernel, groups, transposed, .. } = conv;
        let shape = if transposed { [inputs, outputs, kernel] } else { [outputs, inputs / groups, kernel] };
        let [weight, bias] = ["weight", "bias"].map(|tensor| format!("{name}.{tensor}"));
        let after = conv.after.map(|snake| self.slope(snake, inputs));
        let before = conv.before.map(|snake| self.slope(snake, outputs));

        let source = self.source(&weight, &shape);
        self.weight(&weight, &shape, |lookup| {
            let mut values = source.read(lookup)?;
            let after = read_slopes(after.as_ref(), inputs, lookup)?;
            let before = read_slopes(before.as_ref(), outputs, lookup)?;
            let scaled = conv.after.is_some() || conv.before.is_some();
            for (at, value) in values.iter_mut().enumerate().filter(|_| scaled) {
                let (first, second) = (at / (shape[1] * kernel), at / kernel % shape[1]);
                let (output, input) = if transposed { (second, first) } else { (first, second) };
                *value = (f64::from(*value) * before[output] / after[input]) as f32;
            }
            Ok(values)
        })?;
        if conv.bias {
            let source = self.source(&bias, &[outputs]);
            self.weight(&bias, &[outputs], |lookup| {
                Ok(to_f32(&(source.vector(lookup)? * read_slopes(before.as_ref(), outputs, lookup)?)))
            })?;
        }
        Ok(self.convolve(x, &conv))
    }

    /// Adds a convolution whose weights are there.
    pub(super) fn convolve(&mut self, x: &str, conv: &Conv<'_>) -> String {
        let Conv { name, stride, transposed, .. } = *conv;
        let [weight, bias] = ["weight", "bias"].map(|tensor| format!("{name}.{tensor}"));
        let output = conv.output.unwrap_or(name);
        let operator = if transposed { "ConvTranspose" } else { "Conv" };
        let mut node = Node::new(operator, &[x, &weight, if conv.bias { &bias } else { "" }], &[output])
            .ints("kernel_shape", &[conv.kernel as i64])
            .ints("strides", &[stride as i64])
            .ints("dilations", &[conv.dilation as i64])
            .ints("pads", &conv.pads.map(|pad| pad as i64))
            .int("group", conv.groups as i64);
        if transposed {
            // With its pads, this makes the length an exact multiple.
            node = node.ints("output_padding", &[(stride % 2) as i64]);
        }
        self.node(node);
        output.into()
    }

    /// Adds a snake, which bends `x` to `x + sin²(αx) ÷ α` with a slope α for each channel (Ziyin et al. 2020,
    /// arXiv:2006.08195): `[B, channels, L]` → the same, times α.
    ///
    /// With u = αx it is `(u + sin² u) ÷ α`. What comes after divides by α in its weights, and what comes before gives
    /// u where it can, see [`Self::bend`]: three or four operators remain of five, which saves an eighth of the
    /// decoder's time.
    pub(super) fn snake(&mut self, x: &str, name: &str, channels: usize) -> Result<String> {
        let [slope, steep] = ["alpha", "steep"].map(|value| format!("{name}.{value}"));
        let source = self.slope(name, channels);
        self.weight(&slope, &[1, channels, 1], |lookup| Ok(to_f32(&read_slopes(Some(&source), channels, lookup)?)))?;
        self.apply("Mul", &[x, &slope], &steep);
        Ok(self.bend(&steep, name))
    }

    /// Adds the rest of a snake after what gives it u = αx.
    pub(super) fn bend(&mut self, u: &str, name: &str) -> String {
        let [sine, square] = ["sine", "square"].map(|value| format!("{name}.{value}"));
        self.apply("Sin", &[u], &sine);
        self.apply("Mul", &[&sine, &sine], &square);
        self.apply("Add", &[u, &square], name)
    }

    fn slope(&mut self, snake: &str, channels: usize) -> Source {
        self.source(&format!("{snake}.alpha"), &[1, channels, 1])
    }

    /// Adds a linear layer with bias: `[.., inputs]` → `[.., outputs]`.
    pub(super) fn linear(&mut self, x: &str, name: &str, inputs: usize, outputs: usize) -> Result<String> {
        let [weight, bias, product] = ["weight", "bias", "product"].map(|part| format!("{name}.{part}"));
        let source = self.source(&weight, &[outputs, inputs]);
        self.weight(&weight, &[inputs, outputs], |lookup| Ok(to_f32(&source.matrix(lookup)?.t())))?;
        self.tensor(&bias, &[outputs])?;
        self.apply("MatMul", &[x, &weight], &product);
        Ok(self.apply("Add", &[&product, &bias], name))
    }

    /// Adds a norm over the last axis.
    pub(super) fn layer_norm(&mut self, x: &str, name: &str, width: usize, epsilon: f32) -> Result<String> {
        let weight = self.tensor(&format!("{name}.weight"), &[width])?;
        let bias = self.tensor(&format!("{name}.bias"), &[width])?;
        let node = Node::new("LayerNormalization", &[x, &weight, &bias], &[name]);
        self.node(node.int("axis", -1).float("epsilon", epsilon));
        Ok(name.into())
    }
}

fn axes(channels: usize, length: &str) -> [Axis; 3] {
    [Axis::Free("batch".into()), Axis::Fixed(channels), Axis::Free(length.into())]
}

/// The slopes of a snake, and 1 where there is none.
fn read_slopes(source: Option<&Source>, channels: usize, lookup: &Lookup<'_>) -> Result<Array1<f64>> {
    let Some(source) = source else { return Ok(Array1::ones(channels)) };
    Ok(source.vector(lookup)?.mapv_into(|slope| if slope.abs() < LEAST_SLOPE { LEAST_SLOPE } else { slope }))
}

/// The values in order, each rounded once.
pub(super) fn to_f32<D: Dimension>(values: &ArrayRef<f64, D>) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

fn write_floats(out: &mut dyn Write, values: &[f32]) -> Result<()> {
    let mut bytes = Vec::new();
    for part in values.chunks(1 << 14) {
        bytes.clear();
        bytes.extend(part.iter().flat_map(|value| value.to_le_bytes()));
        out.write_all(&bytes)?;
    }
    Ok(())
}
