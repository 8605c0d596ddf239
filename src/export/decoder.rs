//! The language model's decoder: embeddings → hidden states, with the KV cache.
//!
//! Operators, names and layouts are those that onnxruntime-genai's ModelBuilder gives a Qwen3 without embedding and
//! head, so that the files can stand in for each other. The norms of queries and keys are nodes of their own: fused into
//! the attention, which ModelBuilder prefers for CUDA, they run on GPUs only.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use half::bf16;

use super::{
    Options, Report,
    architecture::{Architecture, FINAL_NORM, layer_weight},
    importance::product_weight,
    linear::Linear,
    matrix::{Matrix, to_bytes},
    onnx::{ModelWriter, Node, Tensor},
    weights::Weights,
};
use crate::onnx::{Axis, ElementType};

/// Describes the decoder and streams its weights.
///
/// # Errors
/// When a weight is missing or not finite, or the disk fails.
pub(super) fn write(
    model: &mut ModelWriter<'_>,
    weights: &Weights,
    architecture: &Architecture,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let float = options.target.float();
    let mut decoder = Decoder { model, weights, architecture, options, float, report, constants: BTreeSet::new() };
    decoder.ports();
    decoder.lengths();
    decoder.rotary_tables()?;
    let mut residual = "inputs_embeds".to_owned();
    let mut branch = None;
    for layer in 0..architecture.layers {
        (residual, branch) = decoder.layer(layer, residual, branch)?;
    }
    decoder.final_norm(&residual, &branch.context("the model has no layers")?)
}

struct Decoder<'a, 'w> {
    model: &'a mut ModelWriter<'w>,
    weights: &'a Weights,
    architecture: &'a Architecture,
    options: &'a Options,
    float: ElementType,
    report: &'a mut Report,
    constants: BTreeSet<String>,
}

/// Positions that each sequence of the batch has, less one, `[B]` int32.
const LAST_POSITION: &str = "/model/attn_mask_reformat/attn_mask_subgraph/Sub/Cast/output_0";
/// Length of the attention mask, int32.
const TOTAL_LENGTH: &str = "/model/attn_mask_reformat/attn_mask_subgraph/Gather/Cast/output_0";

impl Decoder<'_, '_> {
    fn ports(&mut self) {
        let free = |name: &str| Axis::Free(name.into());
        let hidden = [free("batch_size"), free("sequence_length"), Axis::Fixed(self.architecture.hidden_size)];
        let cache =
            |length| [free("batch_size"), Axis::Fixed(self.architecture.kv_heads), free(length), free("kv_cache_dim")];
        let (past, present) = (cache("past_sequence_length"), cache("total_sequence_length"));
        let mask = [free("batch_size"), free("total_sequence_length")];
        self.model.input("attention_mask", ElementType::Int64, &mask);
        self.model.input("inputs_embeds", self.float, &hidden);
        self.model.output("hidden_states", self.float, &hidden);
        for half in ["key", "value"] {
            for layer in 0..self.architecture.layers {
                self.model.input(&format!("past_key_values.{layer}.{half}"), self.float, &past);
                self.model.output(&format!("present.{layer}.{half}"), self.float, &present);
            }
        }
    }

    /// The mask is all that tells positions: its sum is the length of a sequence, its own length that of the longest.
    fn lengths(&mut self) {
        const ROOT: &str = "/model/attn_mask_reformat/attn_mask_subgraph";
        let ones = self.constant(&[1]);
        self.node(&format!("{ROOT}/ReduceSum"), "ReduceSum", &["attention_mask", &ones], |node| {
            node.int("keepdims", 0)
        });
        self.node(&format!("{ROOT}/Sub"), "Sub", &[&format!("{ROOT}/ReduceSum/output_0"), &ones], |node| node);
        let to_int32 = |node: Node| node.int("to", ElementType::Int32.number().into());
        self.node(&format!("{ROOT}/Sub/Cast"), "Cast", &[&format!("{ROOT}/Sub/output_0")], to_int32);
        self.node(&format!("{ROOT}/Shape"), "Shape", &["attention_mask"], |node| node);
        let one = self.scalar(1);
        let shape = format!("{ROOT}/Shape/output_0");
        self.node(&format!("{ROOT}/Gather"), "Gather", &[&shape, &one], |node| node.int("axis", 0));
        self.node(&format!("{ROOT}/Gather/Cast"), "Cast", &[&format!("{ROOT}/Gather/output_0")], to_int32);
    }

    /// Cosines and sines [positions, head_dim / 2] of position · θ^(-2j / head_dim).
    ///
    /// Angles are single-precision, as in PyTorch; their cosines and sines are correctly rounded, and so differ from
    /// those of PyTorch's vector library by one unit in the last place in one value of twenty.
    fn rotary_tables(&mut self) -> Result<()> {
        let Architecture { positions, head_dim, rope_theta, .. } = *self.architecture;
        let frequency = |j: usize| 1.0 / rope_theta.powf(f64::from((2 * j) as f32 / head_dim as f32)) as f32;
        let frequencies: Vec<f32> = (0..head_dim / 2).map(frequency).collect();
        let (float, rounded) = (self.float, self.options.rope_bf16);
        for (name, function) in [("cos_cache", f64::cos as fn(f64) -> f64), ("sin_cache", f64::sin)] {
            self.model.weight(name, float, &[positions, head_dim / 2], |out| {
                for position in 0..positions {
                    let value = |frequency: &f32| function(f64::from(position as f32 * frequency)) as f32;
                    let trained = |value: f32| if rounded { bf16::from_f32(value).to_f32() } else { value };
                    let values: Vec<f32> = frequencies.iter().map(value).map(trained).collect();
                    out.write_all(&to_bytes(&values, float)?)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// One transformer layer. What flows along is a residual and, until a norm adds it, the branch of the layer before.
    fn layer(&mut self, layer: usize, residual: String, branch: Option<String>) -> Result<(String, Option<String>)> {
        let root = format!("/model/layers.{layer}");
        let norm = layer_weight(layer, "input_layernorm");
        let (normed, residual) = match branch {
            Some(branch) => self.skip_norm(&format!("{root}/input_layernorm"), &residual, &branch, &norm)?,
            None => {
                let name = format!("{root}/input_layernorm");
                let weight = format!("model.layers.{layer}.input_layernorm.weight");
                (
                    self.norm(&format!("{name}/LayerNorm"), &residual, (&weight, &norm), &format!("{name}/output_0"))?,
                    residual,
                )
            }
        };
        let attention = self.attention(layer, &normed)?;
        let norm = layer_weight(layer, "post_attention_layernorm");
        let (normed, residual) =
            self.skip_norm(&format!("{root}/post_attention_layernorm"), &residual, &attention, &norm)?;
        let branch = self.feed_forward(layer, &normed)?;
        Ok((residual, Some(branch)))
    }

    fn attention(&mut self, layer: usize, input: &str) -> Result<String> {
        let Architecture { heads, kv_heads, head_dim, .. } = *self.architecture;
        let (queries, keys) = (self.architecture.query_size(), self.architecture.kv_size());
        let root = format!("/model/layers.{layer}/attn");
        let joined =
            self.matmul(layer, "attn/qkv_proj", input, &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"])?;
        let sizes = self.constant(&[queries as i64, keys as i64, keys as i64]);
        let split = format!("{root}/qkv_proj/Split");
        let parts = [0, 1, 2].map(|part| format!("{split}/output_{part}"));
        let outputs = [&*parts[0], &*parts[1], &*parts[2]];
        self.model.node(Node::new("Split", &[&joined, &sizes], &outputs).named(&split).int("axis", -1));
        let query = self.head_norm(layer, "q_norm", &parts[0], queries)?;
        let key = self.head_norm(layer, "k_norm", &parts[1], keys)?;
        let cache = |side: &str| ["key", "value"].map(|half| format!("{side}.{layer}.{half}"));
        let ([past_key, past_value], [present_key, present_value]) = (cache("past_key_values"), cache("present"));
        let inputs =
            [&*query, &key, &parts[2], &past_key, &past_value, LAST_POSITION, TOTAL_LENGTH, "cos_cache", "sin_cache"];
        let name = format!("{root}/GroupQueryAttention");
        let output = format!("{name}/output_0");
        let node = Node::microsoft("GroupQueryAttention", &inputs, &[&output, &present_key, &present_value])
            .named(&name)
            .int("num_heads", heads as i64)
            .int("kv_num_heads", kv_heads as i64)
            .float("scale", (1.0 / (head_dim as f64).sqrt()) as f32)
            .int("local_window_size", -1)
            .float("softcap", 0.0)
            .int("do_rotary", 1)
            .int("rotary_interleaved", 0);
        self.model.node(node);
        self.matmul(layer, "attn/o_proj", &output, &["self_attn.o_proj"])
    }

    /// Norm of each head of the queries or keys.
    fn head_norm(&mut self, layer: usize, norm: &str, input: &str, size: usize) -> Result<String> {
        let root = format!("/model/layers.{layer}/attn/{norm}");
        let by_head = self.constant(&[0, -1, self.architecture.head_dim as i64]);
        let heads = self.node(&format!("{root}/Reshape_1"), "Reshape", &[input, &by_head], |node| node);
        let name = format!("{root}/SimplifiedLayerNormalization");
        let weight = format!("model.layers.{layer}.attn.{norm}.layernorm.weight");
        let source = layer_weight(layer, &format!("self_attn.{norm}"));
        let normed = self.norm(&name, &heads, (&weight, &source), &format!("{name}/output_0"))?;
        let side_by_side = self.constant(&[0, -1, size as i64]);
        Ok(self.node(&format!("{root}/Reshape_2"), "Reshape", &[&normed, &side_by_side], |node| node))
    }

    /// down(silu(gate(x)) · up(x))
    fn feed_forward(&mut self, layer: usize, input: &str) -> Result<String> {
        let root = format!("/model/layers.{layer}/mlp");
        let gate = self.matmul(layer, "mlp/gate_proj", input, &["mlp.gate_proj"])?;
        let up = self.matmul(layer, "mlp/up_proj", input, &["mlp.up_proj"])?;
        let sigmoid = self.node(&format!("{root}/act_fn/Sigmoid"), "Sigmoid", &[&gate], |node| node);
        let silu = self.node(&format!("{root}/act_fn/Mul"), "Mul", &[&gate, &sigmoid], |node| node);
        let gated = self.node(&format!("{root}/Mul"), "Mul", &[&silu, &up], |node| node);
        self.matmul(layer, "mlp/down_proj", &gated, &["mlp.down_proj"])
    }

    fn final_norm(&mut self, residual: &str, branch: &str) -> Result<()> {
        let name = format!("layers.{}/final_norm_layernorm", self.architecture.layers);
        let weight = format!("model.{}.weight", name.replace('/', "."));
        self.vector(&weight, FINAL_NORM)?;
        let node =
            Node::microsoft("SkipSimplifiedLayerNormalization", &[residual, branch, &weight], &["hidden_states"])
                .named(&format!("/model/{name}/SkipLayerNorm"))
                .float("epsilon", self.architecture.rms_norm_eps as f32);
        self.model.node(node);
        Ok(())
    }

    /// Adds a branch to the residual and takes the norm: the norm, and the new residual.
    fn skip_norm(&mut self, name: &str, residual: &str, branch: &str, source: &str) -> Result<(String, String)> {
        let weight = format!("{}.weight", name[1..].replace('/', "."));
        self.vector(&weight, source)?;
        let (normed, sum) = (format!("{name}/output_0"), format!("{name}/output_3"));
        let node =
            Node::microsoft("SkipSimplifiedLayerNormalization", &[residual, branch, &weight], &[&normed, "", "", &sum])
                .named(&format!("{name}/SkipLayerNorm"))
                .float("epsilon", self.architecture.rms_norm_eps as f32);
        self.model.node(node);
        Ok((normed, sum))
    }

    fn norm(&mut self, name: &str, input: &str, (weight, source): (&str, &str), output: &str) -> Result<String> {
        self.vector(weight, source)?;
        let node = Node::new("SimplifiedLayerNormalization", &[input, weight], &[output])
            .named(name)
            .float("epsilon", self.architecture.rms_norm_eps as f32)
            .int("axis", -1)
            .int("stash_type", 1);
        self.model.node(node);
        Ok(output.to_owned())
    }

    fn vector(&mut self, weight: &str, source: &str) -> Result<()> {
        let (float, tensor) = (self.float, self.weights.tensor(source)?);
        self.model.weight(weight, float, tensor.shape(), |out| Ok(out.write_all(&to_bytes(&tensor.to_vec(), float)?)?))
    }

    /// Multiplies by matrices of the checkpoint, put on top of each other.
    fn matmul(&mut self, layer: usize, name: &str, input: &str, sources: &[&str]) -> Result<String> {
        let tensors = sources.iter().map(|source| self.weights.tensor(&layer_weight(layer, source)));
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let node = format!("/model/layers.{layer}/{name}/MatMul");
        let output = format!("{node}/output_0");
        let layer = format!("model.layers.{layer}.{}", name.replace('/', "."));
        let weight = product_weight(&layer);
        let linear = Linear { node: &node, weight: &weight, input, output: &output };
        let Options { target, quantizer, block_size, .. } = *self.options;
        if !target.is_quantized() {
            linear.dense(self.model, &Matrix::new(tensors, self.float)?, self.float)?;
        } else if self.options.keeps(&layer) {
            linear.dense(self.model, &Matrix::new(tensors, ElementType::Float16)?, self.float)?;
        } else {
            let accuracy_level = target.is_cpu().then_some(4);
            let matrix = Matrix::new(tensors, self.float)?;
            let importance = self.options.importance.as_ref().and_then(|importance| importance.of(&weight));
            linear.quantized(self.model, &matrix, (quantizer, block_size), importance, accuracy_level, self.report)?;
        }
        Ok(output)
    }

    /// Adds a node with one output, whose name follows from its own.
    fn node(&mut self, name: &str, operator: &str, inputs: &[&str], attributes: impl FnOnce(Node) -> Node) -> String {
        let output = format!("{name}/output_0");
        self.model.node(attributes(Node::new(operator, inputs, &[&output]).named(name)));
        output
    }

    /// A constant of integers, made once.
    fn constant(&mut self, values: &[i64]) -> String {
        self.constant_of(&[values.len()], values, format!("{values:?}"))
    }

    fn scalar(&mut self, value: i64) -> String {
        self.constant_of(&[], &[value], value.to_string())
    }

    fn constant_of(&mut self, shape: &[usize], values: &[i64], text: String) -> String {
        let name = format!("/model/constants/INT64/{text}");
        if self.constants.insert(name.clone()) {
            let node = Node::new("Constant", &[], &[&name]).named(&format!("/model/constant_nodes/INT64/{text}"));
            self.model.node(node.tensor("value", Tensor::int64(&name, shape, values)));
        }
        name
    }
}
