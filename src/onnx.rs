//! What an ONNX file says of itself, read without opening a session and without touching its weights.
//!
//! The messages are written by hand after the field numbers of onnx.proto (ONNX project, Apache-2.0), and only with the
//! fields that are read here; the decoder skips the others, raw weights included, so a file of a gigabyte takes
//! milliseconds. Nothing in here knows what the graphs are for.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow};
use prost::Message;

use crate::error::UserError;

/// Element types of tensors that this model uses, by their numbers in onnx.proto.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementType {
    /// IEEE single precision.
    Float32,
    /// IEEE half precision.
    Float16,
    /// Unsigned bytes; packed weights of 4 bits are stored as such.
    Uint8,
    /// Signed 32-bit.
    Int32,
    /// Signed 64-bit.
    Int64,
    /// Anything else, by number.
    Other(i32),
}

impl From<i32> for ElementType {
    fn from(number: i32) -> Self {
        match number {
            1 => Self::Float32,
            2 => Self::Uint8,
            6 => Self::Int32,
            7 => Self::Int64,
            10 => Self::Float16,
            other => Self::Other(other),
        }
    }
}

impl ElementType {
    /// Its number in onnx.proto.
    pub fn number(self) -> i32 {
        match self {
            Self::Float32 => 1,
            Self::Uint8 => 2,
            Self::Int32 => 6,
            Self::Int64 => 7,
            Self::Float16 => 10,
            Self::Other(number) => number,
        }
    }

    /// Bytes of one element, if the type is known.
    pub fn bytes(self) -> Option<usize> {
        match self {
            Self::Uint8 => Some(1),
            Self::Float16 => Some(2),
            Self::Float32 | Self::Int32 => Some(4),
            Self::Int64 => Some(8),
            Self::Other(_) => None,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float32 => f.write_str("float32"),
            Self::Float16 => f.write_str("float16"),
            Self::Uint8 => f.write_str("uint8"),
            Self::Int32 => f.write_str("int32"),
            Self::Int64 => f.write_str("int64"),
            Self::Other(number) => write!(f, "type {number}"),
        }
    }
}

/// One axis of an input or output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Axis {
    /// A length that the graph fixes.
    Fixed(usize),
    /// A length that the caller chooses, under the name that the graph gives it.
    Free(String),
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(length) => write!(f, "{length}"),
            Self::Free(name) if name.is_empty() => f.write_str("?"),
            Self::Free(name) => f.write_str(name),
        }
    }
}

/// An input or output of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Name by which it is fed or fetched.
    pub name: String,
    /// Element type.
    pub element_type: ElementType,
    /// Axes in order.
    pub axes: Vec<Axis>,
}

impl Port {
    /// The length of an axis, if the graph fixes it.
    pub fn fixed(&self, axis: usize) -> Option<usize> {
        match self.axes.get(axis) {
            Some(Axis::Fixed(length)) => Some(*length),
            _ => None,
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axes: Vec<String> = self.axes.iter().map(Axis::to_string).collect();
        write!(f, "{}[{}] {}", self.name, axes.join(","), self.element_type)
    }
}

/// A weight tensor's name and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// Name by which nodes refer to it.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
}

/// One operator of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Kind, such as `MatMul`.
    pub operator: String,
    /// Names of its inputs; an empty name is an input left out.
    pub inputs: Vec<String>,
    /// Its integer attributes.
    pub integers: BTreeMap<String, i64>,
}

/// The description of an ONNX file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// The file that was read.
    pub path: PathBuf,
    /// Bytes of that file and of its data files.
    pub bytes: u64,
    /// What must be fed.
    pub inputs: Vec<Port>,
    /// What comes out.
    pub outputs: Vec<Port>,
    /// Operators of the main graph.
    pub nodes: Vec<Node>,
    /// Weights, inside the file or beside it.
    pub weights: Vec<Weight>,
    /// Operator set of the standard domain.
    pub opset: i64,
    /// What else the file says of itself.
    pub metadata: BTreeMap<String, String>,
}

impl Graph {
    /// Reads the description of an ONNX file and checks that every data file it names is there and long enough.
    ///
    /// # Errors
    /// A [`UserError`] when the file or one of its data files is missing, truncated or something else.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let file = File::open(path).map_err(|error| missing(path, error))?;
        let metadata = file.metadata().with_context(|| format!("cannot read {shown}"))?;
        if metadata.is_dir() {
            return Err(damaged(path, "it is a folder"));
        }
        let length = metadata.len();
        if length == 0 {
            return Err(damaged(path, "the file is empty"));
        }
        // SAFETY: the map is read-only, lives only in this function and is decoded into owned values. Somebody who
        // truncates the file in these milliseconds gets a bus error, as with every program that maps its weights.
        #[expect(unsafe_code, reason = "a file of weights is mapped, not read")]
        let map = unsafe { memmap2::Mmap::map(&file) }.with_context(|| format!("cannot map {shown}"))?;
        if map.starts_with(b"version https://git-lfs") {
            return Err(damaged(path, "it is a git-lfs pointer, not the file itself"));
        }
        let model = proto::Model::decode(&map[..]).map_err(|_| damaged(path, "it is truncated or not an ONNX file"))?;
        let graph = model.graph.ok_or_else(|| damaged(path, "it is not an ONNX file"))?;
        if graph.node.is_empty() || graph.output.is_empty() {
            return Err(damaged(path, "it is not an ONNX file"));
        }
        let data_bytes = check_external_data(path, &graph.initializer)?;
        let opset = model.opset_import.iter().find(|set| set.domain.is_empty()).map_or(0, |set| set.version);
        Ok(Self {
            path: path.to_owned(),
            bytes: length + data_bytes,
            inputs: graph.input.into_iter().map(port).collect(),
            outputs: graph.output.into_iter().map(port).collect(),
            nodes: graph.node.into_iter().map(node).collect(),
            weights: graph.initializer.into_iter().map(weight).collect(),
            opset,
            metadata: model.metadata_props.into_iter().map(|entry| (entry.key, entry.value)).collect(),
        })
    }

    /// An input by name.
    pub fn input(&self, name: &str) -> Option<&Port> {
        self.inputs.iter().find(|port| port.name == name)
    }

    /// An output by name.
    pub fn output(&self, name: &str) -> Option<&Port> {
        self.outputs.iter().find(|port| port.name == name)
    }

    /// A weight by name.
    pub fn weight(&self, name: &str) -> Option<&Weight> {
        self.weights.iter().find(|weight| weight.name == name)
    }

    /// How often each operator occurs.
    pub fn operators(&self) -> BTreeMap<&str, usize> {
        let mut counts = BTreeMap::new();
        for node in &self.nodes {
            *counts.entry(node.operator.as_str()).or_default() += 1;
        }
        counts
    }
}

/// The coarsest alignment that writers of data files use.
const PAGE: u64 = 64 * 1024;

fn missing(path: &Path, error: std::io::Error) -> anyhow::Error {
    let hint = "every part of the model folder must be downloaded, its .data files too";
    anyhow!(error).context(UserError::model(format!("cannot open {}", path.display())).with_hint(hint))
}

fn damaged(path: &Path, what: &str) -> anyhow::Error {
    let message = format!("{} cannot be used: {what}", path.display());
    UserError::model(message).with_hint("download or export it again").into()
}

/// Bytes of the data files that the weights lie in, after checking that each is as long as its weights need.
fn check_external_data(path: &Path, tensors: &[proto::Tensor]) -> Result<u64> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut needed: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in tensors {
        let entry = |key: &str| tensor.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        let number = |key: &str| entry(key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        if let Some(location) = entry("location") {
            let end = number("offset").saturating_add(number("length"));
            let longest = needed.entry(location).or_default();
            *longest = end.max(*longest);
        }
    }
    let mut bytes = 0;
    for (location, needed) in needed {
        let data = folder.join(location);
        let metadata = data.metadata().map_err(|error| missing(&data, error))?;
        if metadata.is_dir() {
            return Err(damaged(&data, "it is a folder"));
        }
        let found = metadata.len();
        // Some writers fill the last page; more behind the last weight is another file's data.
        if !(needed..=needed.next_multiple_of(PAGE)).contains(&found) {
            return Err(damaged(&data, &format!("it has {found} bytes, {} needs {needed}", path.display())));
        }
        bytes += found;
    }
    Ok(bytes)
}

fn port(value: proto::ValueInfo) -> Port {
    let tensor = value.r#type.and_then(|t| t.tensor_type).unwrap_or_default();
    let axes = tensor.shape.unwrap_or_default().dim.into_iter().map(|dim| match (dim.dim_value, dim.dim_param) {
        (Some(length), _) if length >= 0 => Axis::Fixed(length.unsigned_abs() as usize),
        (_, name) => Axis::Free(name.unwrap_or_default()),
    });
    Port { name: value.name, element_type: tensor.elem_type.into(), axes: axes.collect() }
}

fn weight(tensor: proto::Tensor) -> Weight {
    Weight { name: tensor.name, shape: tensor.dims.into_iter().map(|dim| dim.max(0).unsigned_abs() as usize).collect() }
}

fn node(node: proto::Node) -> Node {
    const INT: i32 = 2;
    let integers = node.attribute.into_iter().filter(|a| a.r#type == INT).map(|a| (a.name, a.i)).collect();
    Node { operator: node.op_type, inputs: node.input, integers }
}

/// The messages of onnx.proto, cut down to what is read. Those that say all there is to say are also written.
pub(crate) mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Model {
        #[prost(message, optional, tag = "7")]
        pub(super) graph: Option<Graph>,
        #[prost(message, repeated, tag = "8")]
        pub(super) opset_import: Vec<OperatorSet>,
        #[prost(message, repeated, tag = "14")]
        pub(super) metadata_props: Vec<Entry>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct OperatorSet {
        #[prost(string, tag = "1")]
        pub(crate) domain: String,
        #[prost(int64, tag = "2")]
        pub(crate) version: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Graph {
        #[prost(message, repeated, tag = "1")]
        pub(super) node: Vec<Node>,
        #[prost(message, repeated, tag = "5")]
        pub(super) initializer: Vec<Tensor>,
        #[prost(message, repeated, tag = "11")]
        pub(super) input: Vec<ValueInfo>,
        #[prost(message, repeated, tag = "12")]
        pub(super) output: Vec<ValueInfo>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Node {
        #[prost(string, repeated, tag = "1")]
        pub(super) input: Vec<String>,
        #[prost(string, tag = "4")]
        pub(super) op_type: String,
        #[prost(message, repeated, tag = "5")]
        pub(super) attribute: Vec<Attribute>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Attribute {
        #[prost(string, tag = "1")]
        pub(super) name: String,
        #[prost(int64, tag = "3")]
        pub(super) i: i64,
        #[prost(int32, tag = "20")]
        pub(super) r#type: i32,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Tensor {
        #[prost(int64, repeated, tag = "1")]
        pub(super) dims: Vec<i64>,
        #[prost(string, tag = "8")]
        pub(super) name: String,
        #[prost(message, repeated, tag = "13")]
        pub(super) external_data: Vec<Entry>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Entry {
        #[prost(string, tag = "1")]
        pub(crate) key: String,
        #[prost(string, tag = "2")]
        pub(crate) value: String,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct ValueInfo {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(message, optional, tag = "2")]
        pub(crate) r#type: Option<Type>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Type {
        #[prost(message, optional, tag = "1")]
        pub(crate) tensor_type: Option<TensorType>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct TensorType {
        #[prost(int32, tag = "1")]
        pub(crate) elem_type: i32,
        #[prost(message, optional, tag = "2")]
        pub(crate) shape: Option<Shape>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Shape {
        #[prost(message, repeated, tag = "1")]
        pub(crate) dim: Vec<Dimension>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Dimension {
        #[prost(int64, optional, tag = "1")]
        pub(crate) dim_value: Option<i64>,
        #[prost(string, optional, tag = "2")]
        pub(crate) dim_param: Option<String>,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny(part: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/cpu_int4").join(part)
    }

    #[test]
    fn a_decoder_is_described_with_its_ports_weights_and_operators() {
        let graph = Graph::read(&tiny("llm_decoder.onnx")).unwrap();
        assert_eq!(graph.bytes, 24_460 + 333_056);
        assert_eq!(graph.opset, 22);
        let operators = graph.operators();
        assert_eq!((operators["GroupQueryAttention"], operators["MatMulNBits"]), (2, 10));
        let embeds = graph.input("inputs_embeds").unwrap();
        assert_eq!((embeds.element_type, embeds.fixed(2)), (ElementType::Float32, Some(64)));
        assert_eq!(graph.weight("cos_cache").unwrap().shape, [2048, 16]);
        let attention = graph.nodes.iter().find(|node| node.operator == "GroupQueryAttention").unwrap();
        assert_eq!((attention.integers["num_heads"], attention.integers["kv_num_heads"]), (4, 2));
    }

    #[test]
    fn files_that_are_no_graph_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.onnx");
        let why = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            let error = Graph::read(&path).unwrap_err();
            assert!(error.downcast_ref::<UserError>().is_some());
            error.to_string().replace(&path.display().to_string(), "x")
        };
        assert_eq!(why(b""), "x cannot be used: the file is empty");
        assert_eq!(why(b"\xff\xff\xff"), "x cannot be used: it is truncated or not an ONNX file");
        assert_eq!(why(b"not a graph at all"), "x cannot be used: it is truncated or not an ONNX file");
        assert_eq!(
            why(b"version https://git-lfs.github.com/spec/v1\n"),
            "x cannot be used: it is a git-lfs pointer, not the file itself"
        );
        let whole = std::fs::read(tiny("text_embed.onnx")).unwrap();
        assert_eq!(why(&whole[..whole.len() / 2]), "x cannot be used: it is truncated or not an ONNX file");
    }

    #[test]
    fn a_data_file_must_be_there_and_long_enough() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("llm_decoder.onnx");
        std::fs::copy(tiny("llm_decoder.onnx"), &path).unwrap();
        let error = Graph::read(&path).unwrap_err();
        let data = folder.path().join("llm_decoder.onnx.data");
        assert_eq!(error.to_string(), format!("cannot open {}", data.display()));
        std::fs::write(&data, [0; 100]).unwrap();
        let error = Graph::read(&path).unwrap_err();
        let expected = format!("{} cannot be used: it has 100 bytes, {} needs 333056", data.display(), path.display());
        assert_eq!(error.to_string(), expected);
        std::fs::write(&data, vec![0; 706_304]).unwrap();
        let error = Graph::read(&path).unwrap_err().to_string();
        assert!(error.contains("it has 706304 bytes, ") && error.ends_with(" needs 333056"), "{error}");
        std::fs::write(&data, vec![0; 6 * 65_536]).unwrap();
        assert!(Graph::read(&path).is_ok());
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(100))]

        /// Whatever a download or a disk has made of a file, it is described or refused.
        #[test]
        fn damaged_files_are_no_reason_to_panic(
            changes in proptest::collection::vec((0usize..24_460, proptest::num::u8::ANY), 1..20),
            length in 0usize..=24_460,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("llm_decoder.onnx");
            let mut bytes = std::fs::read(tiny("llm_decoder.onnx")).unwrap();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            bytes.truncate(length);
            std::fs::write(&path, bytes).unwrap();
            let _ = Graph::read(&path);
        }
    }
}
