//! Writes ONNX files: a small graph, and beside it a data file through which weights of any size are streamed.
//!
//! Nothing in here knows what the graphs are for. Names are the caller's, nodes come in topological order, and
//! [`ModelWriter::finish`] checks both.

mod proto;

use std::{
    collections::HashSet,
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use prost::Message;

use super::new_file::{self, NewFile};
use crate::onnx::{
    Axis, ElementType,
    proto::{Dimension, Entry, OperatorSet, Shape, TensorType, Type, ValueInfo},
};

/// The operator set of the standard domain: the lowest with all operators that are used, so that old runtimes can load
/// the files (ONNX Runtime 1.12 and later know it).
const OPSET: i64 = 17;
/// The file format that belongs to it.
const IR_VERSION: i64 = 8;
/// The domain of ONNX Runtime's own operators.
const MICROSOFT: &str = "com.microsoft";

/// Weights from this size on begin at a multiple of [`MAPPED_ALIGNMENT`].
const MAPPED_BYTES: u64 = 1 << 20;
/// Where a memory map can begin: pages on Linux, 64 KiB on Windows.
const MAPPED_ALIGNMENT: u64 = 1 << 16;
/// Where smaller weights begin: cache lines.
const ALIGNMENT: u64 = 64;

/// An operator of the graph, with its attributes.
#[derive(Debug, Clone)]
pub struct Node(proto::Node);

impl Node {
    /// A standard operator. Its name is that of its first output; an empty input is one left out, and trailing ones are
    /// dropped, since a slot too many makes older runtimes refuse the graph.
    pub fn new(operator: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let inputs = &inputs[..inputs.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1)];
        Self(proto::Node {
            name: outputs.first().copied().unwrap_or_default().to_owned(),
            op_type: operator.into(),
            input: owned(inputs),
            output: owned(outputs),
            ..proto::Node::default()
        })
    }

    /// An operator of ONNX Runtime's own domain.
    pub fn microsoft(operator: &str, inputs: &[&str], outputs: &[&str]) -> Self {
        let mut node = Self::new(operator, inputs, outputs);
        node.0.domain = MICROSOFT.into();
        node
    }

    /// Gives the node another name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.0.name = name.into();
        self
    }

    /// Adds an attribute that is an integer.
    #[must_use]
    pub fn int(self, name: &str, value: i64) -> Self {
        self.attribute(proto::Attribute { name: name.into(), r#type: 2, i: Some(value), ..Default::default() })
    }

    /// Adds an attribute that is a number.
    #[must_use]
    pub fn float(self, name: &str, value: f32) -> Self {
        self.attribute(proto::Attribute { name: name.into(), r#type: 1, f: Some(value), ..Default::default() })
    }

    /// Adds an attribute that is a list of integers.
    #[must_use]
    pub fn ints(self, name: &str, values: &[i64]) -> Self {
        self.attribute(proto::Attribute { name: name.into(), r#type: 7, ints: values.to_vec(), ..Default::default() })
    }

    /// Adds an attribute that is a text.
    #[must_use]
    pub fn string(self, name: &str, value: &str) -> Self {
        self.attribute(proto::Attribute { name: name.into(), r#type: 3, s: Some(value.into()), ..Default::default() })
    }

    /// Adds an attribute that is a tensor.
    #[must_use]
    pub fn tensor(self, name: &str, value: Tensor) -> Self {
        self.attribute(proto::Attribute { name: name.into(), r#type: 4, t: Some(value.0), ..Default::default() })
    }

    fn attribute(mut self, attribute: proto::Attribute) -> Self {
        self.0.attribute.push(attribute);
        self
    }
}

/// A small tensor that is stored inside the graph.
#[derive(Debug, Clone)]
pub struct Tensor(proto::Tensor);

impl Tensor {
    /// A tensor of integers; an empty shape is a scalar.
    pub fn int64(name: &str, shape: &[usize], values: &[i64]) -> Self {
        Self::raw(name, ElementType::Int64, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// A tensor of single-precision numbers; an empty shape is a scalar.
    pub fn float32(name: &str, shape: &[usize], values: &[f32]) -> Self {
        Self::raw(name, ElementType::Float32, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    /// A tensor of little-endian bytes.
    pub fn raw(name: &str, element_type: ElementType, shape: &[usize], bytes: Vec<u8>) -> Self {
        Self(proto::Tensor { raw_data: Some(bytes), ..described(name, element_type, shape) })
    }
}

fn described(name: &str, element_type: ElementType, shape: &[usize]) -> proto::Tensor {
    let dims = shape.iter().map(|&length| length as i64).collect();
    proto::Tensor { name: name.into(), data_type: element_type.number(), dims, ..Default::default() }
}

/// Bytes of a model on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// The `.onnx` file.
    pub graph: u64,
    /// The `.onnx.data` file beside it; zero if there is none.
    pub data: u64,
}

/// What is called after each weight, with its bytes. An error of its own stops the writing.
pub type Watch<'w> = dyn FnMut(u64) -> Result<()> + 'w;

/// Where weights go.
enum Data<'w> {
    /// Nowhere: only sizes are wanted, so that a plan is exactly what will be done.
    Measured,
    /// Into a file, which begins with the first weight.
    Written { file: Option<BufWriter<NewFile>>, watch: &'w mut Watch<'w> },
}

/// A model on its way to the disk.
pub struct ModelWriter<'w> {
    path: PathBuf,
    graph: proto::Graph,
    metadata: Vec<Entry>,
    data: Data<'w>,
    position: u64,
}

impl<'w> ModelWriter<'w> {
    /// Begins a model; its folder must exist. `path` ends in `.onnx`, and the weights go to `path` + `.data`.
    pub fn create(path: &Path, watch: &'w mut Watch<'w>) -> Self {
        Self::new(path, Data::Written { file: None, watch })
    }

    /// Begins a model of which only the size is wanted: nothing is written, and no weight is made.
    pub fn measure(path: &Path) -> Self {
        Self::new(path, Data::Measured)
    }

    fn new(path: &Path, data: Data<'w>) -> Self {
        let graph = proto::Graph { name: "main_graph".into(), ..Default::default() };
        Self { path: path.to_owned(), graph, metadata: Vec::new(), data, position: 0 }
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, element_type: ElementType, axes: &[Axis]) {
        self.graph.input.push(port(name, element_type, axes));
    }

    /// Adds an output.
    pub fn output(&mut self, name: &str, element_type: ElementType, axes: &[Axis]) {
        self.graph.output.push(port(name, element_type, axes));
    }

    /// Adds a node; those that make its inputs come first.
    pub fn node(&mut self, node: Node) {
        self.graph.node.push(node.0);
    }

    /// Adds something that the file says of itself.
    pub fn metadata(&mut self, key: &str, value: &str) {
        self.metadata.push(Entry { key: key.into(), value: value.into() });
    }

    /// Adds a small weight, such as a shape, which stays inside the graph so that shapes can be inferred.
    pub fn constant(&mut self, tensor: Tensor) {
        self.graph.initializer.push(tensor.0);
    }

    /// Adds a weight that goes to the data file: `fill` writes its little-endian bytes, in as many pieces as it likes.
    ///
    /// # Errors
    /// When the disk or `fill` fails, when it writes more or less than the shape says, or when the watcher stops.
    pub fn weight(
        &mut self,
        name: &str,
        element_type: ElementType,
        shape: &[usize],
        fill: impl FnOnce(&mut dyn Write) -> Result<()>,
    ) -> Result<()> {
        let element_bytes = element_type.bytes().with_context(|| format!("{name} is of {element_type}"))?;
        let length = shape.iter().product::<usize>() as u64 * element_bytes as u64;
        let alignment = if length >= MAPPED_BYTES { MAPPED_ALIGNMENT } else { ALIGNMENT };
        let offset = self.position.next_multiple_of(alignment);
        let data_path = self.path.with_added_extension("data");
        if let Data::Written { file, watch } = &mut self.data {
            let file = match file {
                Some(file) => file,
                None => file.insert(BufWriter::with_capacity(1 << 20, NewFile::create(&data_path)?)),
            };
            let failed = || format!("cannot write {}", data_path.display());
            io::copy(&mut io::Read::take(io::repeat(0), offset - self.position), file).with_context(failed)?;
            let mut counted = Counted { inner: file, bytes: 0 };
            fill(&mut counted).with_context(|| format!("cannot make {name}"))?;
            let bytes = counted.bytes;
            ensure!(bytes == length, "{name} has {bytes} bytes, its shape {shape:?} needs {length}");
            watch(length)?;
        }
        self.position = offset + length;
        let entry = |key: &str, value: String| Entry { key: key.into(), value };
        let location = data_path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.graph.initializer.push(proto::Tensor {
            external_data: vec![
                entry("location", location),
                entry("offset", offset.to_string()),
                entry("length", length.to_string()),
            ],
            data_location: Some(1),
            ..described(name, element_type, shape)
        });
        Ok(())
    }

    /// Checks the graph and gives both files their names, the graph last: while it is not there, the model is not there.
    ///
    /// # Errors
    /// When the disk fails, or the graph is not well-formed, which is a fault of the program.
    pub fn finish(self) -> Result<Bytes> {
        check(&self.graph).with_context(|| format!("{} would be malformed", self.path.display()))?;
        let operator_set = |domain: &str, version| OperatorSet { domain: domain.into(), version };
        let mut opset_import = vec![operator_set("", OPSET)];
        if self.graph.node.iter().any(|node| node.domain == MICROSOFT) {
            opset_import.push(operator_set(MICROSOFT, 1));
        }
        let model = proto::Model {
            ir_version: IR_VERSION,
            producer_name: env!("CARGO_PKG_NAME").into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            graph: Some(self.graph),
            opset_import,
            metadata_props: self.metadata,
        };
        let model = model.encode_to_vec();
        if let Data::Written { file, .. } = self.data {
            // The graph of an earlier export must not meet the weights of this one.
            new_file::remove(&self.path)?;
            if let Some(file) = file {
                let path = file.get_ref().path().to_owned();
                let file = file.into_inner().map_err(io::IntoInnerError::into_error);
                file.with_context(|| format!("cannot write {}", path.display()))?.finish()?;
            }
            new_file::write(&self.path, &model)?;
        }
        Ok(Bytes { graph: model.len() as u64, data: self.position })
    }
}

fn port(name: &str, element_type: ElementType, axes: &[Axis]) -> ValueInfo {
    let dimension = |axis: &Axis| match axis {
        Axis::Fixed(length) => Dimension { dim_value: Some(*length as i64), dim_param: None },
        Axis::Free(name) => Dimension { dim_value: None, dim_param: Some(name.clone()) },
    };
    let shape = Shape { dim: axes.iter().map(dimension).collect() };
    let tensor_type = TensorType { elem_type: element_type.number(), shape: Some(shape) };
    ValueInfo { name: name.into(), r#type: Some(Type { tensor_type: Some(tensor_type) }) }
}

/// Every name is given once, and every value is there before it is used.
fn check(graph: &proto::Graph) -> Result<()> {
    let mut values = HashSet::new();
    let given = graph.input.iter().map(|port| &port.name).chain(graph.initializer.iter().map(|tensor| &tensor.name));
    for name in given {
        ensure!(values.insert(name), "the value {name} is given twice");
    }
    let mut nodes = HashSet::new();
    for node in &graph.node {
        ensure!(nodes.insert(&node.name), "two nodes are called {}", node.name);
        if let Some(name) = node.input.iter().find(|name| !name.is_empty() && !values.contains(name)) {
            bail!("the node {} uses {name}, which is not there", node.name);
        }
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            ensure!(values.insert(name), "the value {name} is given twice");
        }
    }
    match graph.output.iter().find(|port| !values.contains(&port.name)) {
        Some(port) => bail!("nothing gives the output {}", port.name),
        None => Ok(()),
    }
}

/// Counts what passes.
struct Counted<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests;
