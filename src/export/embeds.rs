//! The small parts around the decoder: embeddings of text and codes, and the heads.
//!
//! Audio embedding and heads are one table [codebooks · entries, H]: a row of codes is embedded as the sum of the rows
//! `code + codebook · entries`, and logits are the products of a hidden state with all rows.

use anyhow::Result;

use super::{
    AudioPrecision, Options, Report,
    architecture::{AUDIO_EMBEDDING, Architecture, TEXT_EMBEDDING},
    linear::Linear,
    matrix::{Matrix, to_bytes},
    onnx::{ModelWriter, Node, Tensor},
    quantize::{BlockSize, Quantizer, quantize},
    weights::Weights,
};
use crate::onnx::{Axis, ElementType};

/// Block size of audio tables of 4 bits; Olive knows no other.
const BLOCK_SIZE: BlockSize = BlockSize::B32;

/// Axes `[batch, seq, ..]`.
fn axes(rest: &[usize]) -> Vec<Axis> {
    let free = ["batch", "seq"].map(|name| Axis::Free(name.into()));
    free.into_iter().chain(rest.iter().map(|&length| Axis::Fixed(length))).collect()
}

/// Text token ids → embeddings.
///
/// # Errors
/// When the table is missing or the disk fails.
pub(super) fn write_text_embed(
    model: &mut ModelWriter<'_>,
    weights: &Weights,
    architecture: &Architecture,
    options: &Options,
) -> Result<()> {
    let float = options.target.text_float();
    let table = Matrix::new(vec![weights.tensor(TEXT_EMBEDDING)?], float)?;
    model.input("input_ids", ElementType::Int64, &axes(&[]));
    model.output("inputs_embeds", float, &axes(&[architecture.hidden_size]));
    model.weight("emb.weight", float, &[table.rows(), table.columns()], |out| table.write(out))?;
    model.node(Node::new("Gather", &["emb.weight", "input_ids"], &["inputs_embeds"]).named("/emb/Gather"));
    Ok(())
}

/// Rows of codes → embeddings.
///
/// # Errors
/// When the table is missing or the disk fails.
pub(super) fn write_audio_embed(
    model: &mut ModelWriter<'_>,
    weights: &Weights,
    architecture: &Architecture,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let (float, stored) = (options.audio_float(), options.audio_stored());
    let table = Matrix::new(vec![weights.tensor(AUDIO_EMBEDDING)?], stored)?;
    let (codebooks, hidden) = (architecture.codebooks, architecture.hidden_size);
    model.input("codes", ElementType::Int64, &axes(&[codebooks]));
    model.output("audio_embeds", float, &axes(&[hidden]));
    let offsets: Vec<i64> = (0..codebooks).map(|codebook| (codebook * architecture.codebook_entries) as i64).collect();
    model.constant(Tensor::int64("offsets", &[codebooks], &offsets));
    model.constant(Tensor::int64("codebook_axis", &[1], &[-2]));
    model.node(Node::new("Add", &["codes", "offsets"], &["rows"]).named("/Add"));
    if options.audio_precision == AudioPrecision::Int4 {
        let (rows, blocks) = (table.rows(), hidden.div_ceil(BLOCK_SIZE.weights()));
        let mut rest = None;
        model.weight("weight_Q4", ElementType::Uint8, &[rows, blocks * BLOCK_SIZE.weights() / 2], |out| {
            let quantized = quantize(&table, Quantizer::MinMaxEven, BLOCK_SIZE, None)?;
            out.write_all(&quantized.packed)?;
            rest = Some((quantized.scales, quantized.zero_points, quantized.error));
            Ok(())
        })?;
        let (scales, zero_points, error) = rest.unwrap_or_default();
        report.add("audio_embed.weight", error);
        model.weight("weight_scales", float, &[rows, blocks], |out| Ok(out.write_all(&to_bytes(&scales, float)?)?))?;
        let shape = [rows, blocks.div_ceil(2)];
        model.weight("weight_zero_point", ElementType::Uint8, &shape, |out| Ok(out.write_all(&zero_points)?))?;
        let inputs = ["weight_Q4", "rows", "weight_scales", "weight_zero_point"];
        let gather = Node::microsoft("GatherBlockQuantized", &inputs, &["summands"]).named("/Gather_Q4");
        let gather = gather.int("gather_axis", 0).int("quantize_axis", 1);
        model.node(gather.int("block_size", BLOCK_SIZE.weights() as i64).int("bits", 4));
    } else {
        model.weight("weight", stored, &[table.rows(), hidden], |out| table.write(out))?;
        let gathered = if stored == float { "summands" } else { "gathered" };
        model.node(Node::new("Gather", &["weight", "rows"], &[gathered]).named("/Gather"));
        if stored != float {
            model.node(Node::new("Cast", &[gathered], &["summands"]).named("/Cast").int("to", float.number().into()));
        }
    }
    let sum = Node::new("ReduceSum", &["summands", "codebook_axis"], &["audio_embeds"]).named("/ReduceSum");
    model.node(sum.int("keepdims", 0));
    Ok(())
}

/// Hidden states → logits.
///
/// # Errors
/// When the table is missing or the disk fails.
pub(super) fn write_audio_heads(
    model: &mut ModelWriter<'_>,
    weights: &Weights,
    architecture: &Architecture,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let float = options.audio_float();
    let table = Matrix::new(vec![weights.tensor(AUDIO_EMBEDDING)?], options.audio_stored())?;
    let (codebooks, entries) = (architecture.codebooks, architecture.codebook_entries);
    model.input("hidden_states", float, &axes(&[architecture.hidden_size]));
    model.output("audio_logits", float, &axes(&[codebooks, entries]));
    let linear = Linear { node: "/MatMul", weight: "audio_heads.weight", input: "hidden_states", output: "logits" };
    match options.audio_precision {
        AudioPrecision::Int4 => linear.quantized(model, &table, (Quantizer::MinMax, BLOCK_SIZE), None, None, report)?,
        _ => linear.dense(model, &table, float)?,
    }
    // A length of 0 is that of the input.
    model.constant(Tensor::int64("by_codebook", &[4], &[0, 0, codebooks as i64, entries as i64]));
    model.node(Node::new("Reshape", &["logits", "by_codebook"], &["audio_logits"]).named("/Reshape"));
    Ok(())
}
