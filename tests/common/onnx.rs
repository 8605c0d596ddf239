//! ONNX files with everything in them, weights included, for comparing two of them.

use std::{collections::BTreeMap, fs, path::Path};

use prost::Message;

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(message, optional, tag = "7")]
    graph: Option<Graph>,
}

#[derive(Clone, PartialEq, Message)]
struct Graph {
    #[prost(message, repeated, tag = "1")]
    node: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<Tensor>,
}

/// An operator.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    pub(crate) domain: String,
}

/// An attribute of an operator.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, tag = "2")]
    pub(crate) f: f32,
    #[prost(int64, tag = "3")]
    pub(crate) i: i64,
    #[prost(message, optional, tag = "5")]
    pub(crate) t: Option<Tensor>,
    #[prost(int32, tag = "20")]
    pub(crate) r#type: i32,
}

/// A tensor.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(int64, repeated, tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub(crate) data_type: i32,
    #[prost(string, tag = "8")]
    pub(crate) name: String,
    #[prost(bytes = "vec", tag = "9")]
    pub(crate) raw_data: Vec<u8>,
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<Entry>,
    #[prost(int32, tag = "14")]
    data_location: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// A whole file: nodes in order, and weights by name, wherever they lie.
pub(crate) struct Whole {
    pub(crate) nodes: Vec<Node>,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Whole {
    pub(crate) fn read(path: &Path) -> Self {
        let graph = Model::decode(&fs::read(path).unwrap()[..]).unwrap().graph.unwrap();
        let load = |mut tensor: Tensor| {
            if tensor.data_location == 1 {
                let entry =
                    |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).unwrap().value.clone();
                let number = |key: &str| entry(key).parse::<usize>().unwrap();
                let data = fs::read(path.with_file_name(entry("location"))).unwrap();
                tensor.raw_data = data[number("offset")..][..number("length")].to_vec();
                (tensor.external_data, tensor.data_location) = (Vec::new(), 0);
            }
            (tensor.name.clone(), tensor)
        };
        Self { nodes: graph.node, tensors: graph.initializer.into_iter().map(load).collect() }
    }

    /// The nodes without what may differ: trailing inputs that are left out, and the order of attributes.
    pub(crate) fn comparable_nodes(&self) -> Vec<Node> {
        let mut nodes = self.nodes.clone();
        for node in &mut nodes {
            while node.input.last().is_some_and(String::is_empty) {
                node.input.pop();
            }
            node.attribute.sort_by(|a, b| a.name.cmp(&b.name));
        }
        nodes
    }
}
