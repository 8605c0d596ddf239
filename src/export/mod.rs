//! From the published checkpoint to a model folder.

pub mod architecture;
mod matrix;
mod new_file;
pub mod onnx;
pub mod quantize;
pub mod weights;
