//! The residual vector quantiser: each codebook takes the entry nearest to what those before it left over.

use anyhow::Result;
use ndarray::Axis;

use super::{
    config::CodecConfig,
    layers::{Layers, to_f32},
};
use crate::export::onnx::Node;

/// Codes to features: `[B, codebooks, T]` → `[B, hidden, T]`.
///
/// From the entries of a frame to its features is linear, `fc2(Σ project_out(entry))`. So each codebook becomes a table,
/// made in double precision and rounded once; the bias of `fc2` goes into the first. The tables stay apart so that a
/// code without an entry stays an error.
pub(super) fn decoder(layers: &mut Layers<'_, '_>, config: &CodecConfig, codes: &str) -> Result<String> {
    let (width, hidden) = (config.width(), config.acoustic.hidden);
    let weight = layers.source("fc2.weight", &[hidden, width]);
    let bias = layers.source("fc2.bias", &[hidden]);
    let [chosen, shares] =
        ["codes", "share"].map(|what| (0..config.codebooks).map(|k| format!("{}.{what}", name(k))).collect::<Vec<_>>());

    layers.node(Node::new("Split", &[codes], &borrowed(&chosen)).int("axis", 1));
    for k in 0..config.codebooks {
        let book = name(k);
        let entries = layers.source(&format!("{book}.codebook.embed"), &[config.codebook_size, config.codebook_dim]);
        let output = layers.source(&format!("{book}.project_out.weight"), &[width, config.codebook_dim]);
        let output_bias = layers.source(&format!("{book}.project_out.bias"), &[width]);
        let table = format!("{book}.table");
        layers.weight(&table, &[config.codebook_size, hidden], |lookup| {
            let weight = weight.matrix(lookup)?;
            let mut constant = weight.dot(&output_bias.vector(lookup)?);
            if k == 0 {
                constant += &bias.vector(lookup)?;
            }
            let projection = weight.dot(&output.matrix(lookup)?);
            Ok(to_f32(&(entries.matrix(lookup)?.dot(&projection.t()) + constant)))
        })?;
        layers.apply("Gather", &[&table, &chosen[k]], &shares[k]);
    }
    let sum = layers.apply("Sum", &borrowed(&shares), "quantizer.sum");
    let axis = layers.ints("quantizer.axis", &[1]);
    let features = layers.apply("Squeeze", &[&sum, &axis], "quantizer.features");
    Ok(layers.transpose(&features, &[0, 2, 1], "quantizer"))
}

/// Features to codes: `[B, T, width]` → `[B, codebooks, T]`.
///
/// The entry e nearest to z has the greatest −‖z − e‖², which is 2z·e − ‖e‖² but for what all entries share; of several
/// the first is taken.
pub(super) fn encoder(layers: &mut Layers<'_, '_>, config: &CodecConfig, features: &str, codes: &str) -> Result<()> {
    let (width, dim, size) = (config.width(), config.codebook_dim, config.codebook_size);
    let axis = layers.ints("quantizer.axis", &[1]);
    let mut rest = layers.apply("Unsqueeze", &[features, &axis], "quantizer.rest");
    let mut all = Vec::new();
    for k in 0..config.codebooks {
        let book = name(k);
        let value = |what: &str| format!("{book}.{what}");
        let entries = layers.source(&value("codebook.embed"), &[size, dim]);
        let z = layers.linear(&rest, &value("project_in"), width, dim)?;
        let [directions, lengths] = [value("codebook.directions"), value("codebook.lengths")];
        layers.weight(&directions, &[dim, size], |lookup| {
            let doubled = 2.0 * entries.matrix(lookup)?;
            Ok(to_f32(&doubled.t()))
        })?;
        layers.weight(&lengths, &[size], |lookup| {
            let squares = entries.matrix(lookup)?.mapv(|value| value * value);
            Ok(to_f32(&squares.sum_axis(Axis(1))))
        })?;
        let products = layers.apply("MatMul", &[&z, &directions], &value("products"));
        let nearness = layers.apply("Sub", &[&products, &lengths], &value("nearness"));
        let chosen = value("codes");
        layers.node(Node::new("ArgMax", &[&nearness], &[&chosen]).int("axis", -1).int("keepdims", 0));
        if k + 1 < config.codebooks {
            let entries = layers.tensor(&value("codebook.embed"), &[size, dim])?;
            let entry = layers.apply("Gather", &[&entries, &chosen], &value("entry"));
            let taken = layers.linear(&entry, &value("project_out"), dim, width)?;
            rest = layers.apply("Sub", &[&rest, &taken], &value("rest"));
        }
        all.push(chosen);
    }
    layers.node(Node::new("Concat", &borrowed(&all), &[codes]).int("axis", 1));
    Ok(())
}

fn name(codebook: usize) -> String {
    format!("quantizer.quantizers.{codebook}")
}

fn borrowed(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
