//! The semantic model (HuBERT; Hsu et al. 2021, arXiv:2106.07447) with the resampler before it and the convolutions
//! after it.

use anyhow::Result;
use ndarray::Axis;

use super::{
    config::{CodecConfig, SemanticConfig},
    layers::{Conv, Layers, to_f32},
    resampler::resample,
};
use crate::export::onnx::Node;

/// Sound to features: `[B, 1, samples]`, of which there are `length` → `[B, hidden, frames]`.
pub(super) fn encoder(
    layers: &mut Layers<'_, '_>,
    config: &CodecConfig,
    samples: &str,
    length: &str,
) -> Result<String> {
    let semantic = &config.semantic;
    layers.scalar("gelu.root", std::f32::consts::SQRT_2);
    layers.scalar("gelu.one", 1.0);
    layers.scalar("gelu.half", 0.5);
    let heard = resample(layers, config, samples, length)?;
    let features = convolutions(layers, semantic, &heard)?;
    let states = transformer(layers, semantic, &features)?;
    let states: Vec<&str> = states.iter().map(String::as_str).collect();
    let mean = layers.apply("Mean", &states, "semantic_model.mean");
    // Of the steps of a frame only the first is used.
    let begin = layers.ints("semantic_model.begin", &[0]);
    let end = layers.ints("semantic_model.end", &[i64::MAX]);
    let axis = layers.ints("semantic_model.axis", &[1]);
    let steps = layers.ints("semantic_model.steps", &[config.semantic_steps() as i64]);
    let frames = layers.apply("Slice", &[&mean, &begin, &end, &axis, &steps], "semantic_model.frames");
    let features = layers.transpose(&frames, &[0, 2, 1], "semantic_model");
    blocks(layers, semantic, &features)
}

/// `[B, 1, samples]` → `[B, steps, hidden]`.
fn convolutions(layers: &mut Layers<'_, '_>, config: &SemanticConfig, samples: &str) -> Result<String> {
    let SemanticConfig { hidden, norm_epsilon, .. } = *config;
    let mut channels = 1;
    let mut x = samples.to_owned();
    let shapes = config.conv_channels.iter().zip(&config.conv_kernels).zip(&config.conv_strides);
    for (index, ((&outputs, &kernel), &stride)) in shapes.enumerate() {
        let part = format!("semantic_model.feature_extractor.conv_layers.{index}");
        let name = format!("{part}.conv");
        // The zeros around the sound.
        let pads = [if index == 0 { config.downsample_factor / 2 } else { 0 }; 2];
        x = layers.conv(&x, Conv { stride, pads, bias: false, ..Conv::new(&name, channels, outputs, kernel, 1) })?;
        if index == 0 {
            // A group norm with a group for each channel.
            let norm = format!("{part}.layer_norm");
            let scale = layers.tensor(&format!("{norm}.weight"), &[outputs])?;
            let bias = layers.tensor(&format!("{norm}.bias"), &[outputs])?;
            let node = Node::new("InstanceNormalization", &[&x, &scale, &bias], &[&norm]);
            layers.node(node.float("epsilon", norm_epsilon));
            x = norm;
        }
        x = gelu(layers, &x, &part);
        channels = outputs;
    }
    let part = "semantic_model.feature_projection";
    let x = layers.transpose(&x, &[0, 2, 1], part);
    let x = layers.layer_norm(&x, &format!("{part}.layer_norm"), channels, norm_epsilon)?;
    layers.linear(&x, &format!("{part}.projection"), channels, hidden)
}

/// `[B, steps, hidden]` → the same before the first and after each layer.
fn transformer(layers: &mut Layers<'_, '_>, config: &SemanticConfig, x: &str) -> Result<Vec<String>> {
    let SemanticConfig { hidden, intermediate, norm_epsilon, .. } = *config;
    let part = "semantic_model.encoder";
    let positions = positions(layers, config, x)?;
    let x = layers.apply("Add", &[x, &positions], &format!("{part}.positioned"));
    let mut states = vec![layers.layer_norm(&x, &format!("{part}.layer_norm"), hidden, norm_epsilon)?];
    layers.ints("attention.split", &[0, 0, config.heads as i64, (hidden / config.heads) as i64]);
    layers.ints("attention.join", &[0, 0, hidden as i64]);
    layers.scalar("attention.scale", ((hidden / config.heads) as f32).sqrt().recip());
    for index in 0..config.layers {
        let part = format!("{part}.layers.{index}");
        let name = |layer: &str| format!("{part}.{layer}");
        let x = &states[index];
        let attended = attention(layers, config, x, &name("attention"))?;
        let x = layers.apply("Add", &[x, &attended], &name("attended"));
        let x = layers.layer_norm(&x, &name("layer_norm"), hidden, norm_epsilon)?;
        let y = layers.linear(&x, &name("feed_forward.intermediate_dense"), hidden, intermediate)?;
        let y = gelu(layers, &y, &name("feed_forward"));
        let y = layers.linear(&y, &name("feed_forward.output_dense"), intermediate, hidden)?;
        let x = layers.apply("Add", &[&x, &y], &name("fed"));
        states.push(layers.layer_norm(&x, &name("final_layer_norm"), hidden, norm_epsilon)?);
    }
    Ok(states)
}

/// A grouped convolution in the place of positions: `[B, steps, hidden]` → the same.
fn positions(layers: &mut Layers<'_, '_>, config: &SemanticConfig, x: &str) -> Result<String> {
    let SemanticConfig { hidden, position_kernel: kernel, position_groups: groups, .. } = *config;
    let part = "semantic_model.encoder.pos_conv_embed";
    let name = format!("{part}.conv");
    // The weight is kept as directions and, for each place in the kernel, a length: g · v ÷ ‖v‖.
    let shape = [hidden, hidden / groups, kernel];
    let length = layers.source(&format!("{name}.parametrizations.weight.original0"), &[1, 1, kernel]);
    let direction = layers.source(&format!("{name}.parametrizations.weight.original1"), &shape);
    layers.weight(&format!("{name}.weight"), &shape, |lookup| {
        let direction = direction.vector(lookup)?.into_shape_with_order((hidden * hidden / groups, kernel))?;
        let norms = direction.mapv(|value| value * value).sum_axis(Axis(0)).mapv_into(f64::sqrt);
        Ok(to_f32(&(direction * (length.vector(lookup)? / norms))))
    })?;
    layers.tensor(&format!("{name}.bias"), &[hidden])?;
    let x = layers.transpose(x, &[0, 2, 1], &format!("{part}.transposed"));
    // Of an even kernel the last output is dropped.
    let pads = [kernel / 2, (kernel - 1) / 2];
    let x = layers.convolve(&x, &Conv { pads, groups, ..Conv::new(&name, hidden, hidden, kernel, 1) });
    let x = gelu(layers, &x, part);
    Ok(layers.transpose(&x, &[0, 2, 1], &format!("{part}.positions")))
}

/// Attention of every step to every step: `[B, steps, hidden]` → the same.
fn attention(layers: &mut Layers<'_, '_>, config: &SemanticConfig, x: &str, part: &str) -> Result<String> {
    let hidden = config.hidden;
    let name = |value: &str| format!("{part}.{value}");
    let mut heads = |kind: &str, axes: &[i64]| {
        let x = layers.linear(x, &name(&format!("{kind}_proj")), hidden, hidden)?;
        let split = layers.apply("Reshape", &[&x, "attention.split"], &name(&format!("{kind}.split")));
        anyhow::Ok(layers.transpose(&split, axes, &name(kind)))
    };
    let q = heads("q", &[0, 2, 1, 3])?;
    let k = heads("k", &[0, 2, 3, 1])?;
    let v = heads("v", &[0, 2, 1, 3])?;
    let q = layers.apply("Mul", &[&q, "attention.scale"], &name("q.scaled"));
    let scores = layers.apply("MatMul", &[&q, &k], &name("scores"));
    let weights = name("weights");
    layers.node(Node::new("Softmax", &[&scores], &[&weights]).int("axis", -1));
    let seen = layers.apply("MatMul", &[&weights, &v], &name("seen"));
    let seen = layers.transpose(&seen, &[0, 2, 1, 3], &name("seen.transposed"));
    let seen = layers.apply("Reshape", &[&seen, "attention.join"], &name("seen.joined"));
    layers.linear(&seen, &name("out_proj"), hidden, hidden)
}

/// The convolutions after the transformer: `[B, hidden, frames]` → the same.
fn blocks(layers: &mut Layers<'_, '_>, config: &SemanticConfig, x: &str) -> Result<String> {
    let SemanticConfig { hidden, kernel, unit_kernel, .. } = *config;
    let part = "encoder_semantic";
    let name = format!("{part}.conv");
    let mut x = layers.conv(x, Conv { bias: false, ..Conv::new(&name, hidden, hidden, kernel, 1) })?;
    for block in 0..config.blocks {
        let block = format!("{part}.conv_blocks.{block}");
        for (unit, &dilation) in config.block_dilations.iter().enumerate() {
            let unit = format!("{block}.res_units.{unit}");
            let [conv1, conv2] = ["conv1", "conv2"].map(|conv| format!("{unit}.{conv}"));
            let y = layers.apply("Elu", &[&x], &format!("{unit}.elu1"));
            let y =
                layers.conv(&y, Conv { bias: false, ..Conv::new(&conv1, hidden, hidden, unit_kernel, dilation) })?;
            let y = layers.apply("Elu", &[&y], &format!("{unit}.elu2"));
            let y = layers.conv(&y, Conv { bias: false, ..Conv::new(&conv2, hidden, hidden, 1, 1) })?;
            x = layers.apply("Add", &[&x, &y], &unit);
        }
        x = layers.conv(&x, Conv::new(&format!("{block}.conv"), hidden, hidden, 3, 1))?;
    }
    Ok(x)
}

/// `x · Φ(x)`, in the operators that ONNX Runtime makes one of.
fn gelu(layers: &mut Layers<'_, '_>, x: &str, part: &str) -> String {
    let name = |value: &str| format!("{part}.gelu.{value}");
    let y = layers.apply("Div", &[x, "gelu.root"], &name("scaled"));
    let y = layers.apply("Erf", &[&y], &name("erf"));
    let y = layers.apply("Add", &[&y, "gelu.one"], &name("shifted"));
    let y = layers.apply("Mul", &[x, &y], &name("doubled"));
    layers.apply("Mul", &[&y, "gelu.half"], &format!("{part}.gelu"))
}
