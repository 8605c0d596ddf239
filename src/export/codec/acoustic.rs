//! The acoustic autoencoder (DAC; Kumar et al. 2023, arXiv:2306.06546), as this codec has it: weight norms are folded
//! in the checkpoint, and no tanh bounds the sound.

use anyhow::Result;

use super::{
    config::AcousticConfig,
    layers::{Conv, Layers},
};

/// Dilations of the three residual units of a block.
const DILATIONS: [usize; 3] = [1, 3, 9];
/// Kernel of most convolutions.
const KERNEL: usize = 7;
/// Kernel of the encoder's last convolution.
const LAST_KERNEL: usize = 3;

/// Sound to features: `[B, 1, samples]` → `[B, hidden, frames]`.
pub(super) fn encoder(layers: &mut Layers<'_, '_>, config: &AcousticConfig, samples: &str) -> Result<String> {
    let part = "acoustic_encoder";
    let mut channels = config.encoder_hidden;
    let mut x = layers.conv(samples, Conv::new(&format!("{part}.conv1"), 1, channels, KERNEL, 1))?;
    for (index, &stride) in config.downsampling_ratios.iter().enumerate() {
        let block = format!("{part}.block.{index}");
        let snake = format!("{block}.snake1");
        let (name, outputs) = (format!("{block}.conv1"), 2 * channels);
        x = residual_units(layers, &x, &block, channels)?;
        let bent = layers.snake(&x, &snake, channels)?;
        x = layers.conv(&bent, Conv { after: Some(&snake), ..strided(&name, channels, outputs, stride) })?;
        channels = outputs;
    }
    let snake = format!("{part}.snake1");
    let bent = layers.snake(&x, &snake, channels)?;
    let name = format!("{part}.conv2");
    layers.conv(&bent, Conv { after: Some(&snake), ..Conv::new(&name, channels, config.hidden, LAST_KERNEL, 1) })
}

/// Features to sound: `[B, hidden, frames]` → `[B, 1, samples]`.
pub(super) fn decoder(layers: &mut Layers<'_, '_>, config: &AcousticConfig, features: &str, sound: &str) -> Result<()> {
    let part = "acoustic_decoder";
    let mut channels = config.decoder_hidden;
    let mut x = layers.conv(features, Conv::new(&format!("{part}.conv1"), config.hidden, channels, KERNEL, 1))?;
    for (index, &stride) in config.upsampling_ratios.iter().enumerate() {
        let block = format!("{part}.block.{index}");
        let snake = format!("{block}.snake1");
        let (name, outputs) = (format!("{block}.conv_t1"), channels / 2);
        let bent = layers.snake(&x, &snake, channels)?;
        let conv = Conv { transposed: true, after: Some(&snake), ..strided(&name, channels, outputs, stride) };
        x = layers.conv(&bent, conv)?;
        x = residual_units(layers, &x, &block, outputs)?;
        channels = outputs;
    }
    let snake = format!("{part}.snake1");
    let bent = layers.snake(&x, &snake, channels)?;
    let name = format!("{part}.conv2");
    let (after, output) = (Some(snake.as_str()), Some(sound));
    layers.conv(&bent, Conv { after, output, ..Conv::new(&name, channels, 1, KERNEL, 1) })?;
    Ok(())
}

/// A convolution that divides the length by its stride, or multiplies it if transposed.
fn strided(name: &str, inputs: usize, outputs: usize, stride: usize) -> Conv<'_> {
    Conv { stride, pads: [stride.div_ceil(2); 2], ..Conv::new(name, inputs, outputs, 2 * stride, 1) }
}

fn residual_units(layers: &mut Layers<'_, '_>, x: &str, block: &str, channels: usize) -> Result<String> {
    let mut x = x.to_owned();
    for (index, dilation) in DILATIONS.into_iter().enumerate() {
        let unit = format!("{block}.res_unit{}", index + 1);
        let [snake1, conv1, snake2, conv2] =
            ["snake1", "conv1", "snake2", "conv2"].map(|layer| format!("{unit}.{layer}"));
        let (after, before) = (Some(snake1.as_str()), Some(snake2.as_str()));
        let y = layers.snake(&x, &snake1, channels)?;
        let y = layers.conv(&y, Conv { after, before, ..Conv::new(&conv1, channels, channels, KERNEL, dilation) })?;
        let y = layers.bend(&y, &snake2);
        let y = layers.conv(&y, Conv { after: before, ..Conv::new(&conv2, channels, channels, 1, 1) })?;
        x = layers.apply("Add", &[&x, &y], &unit);
    }
    Ok(x)
}
