//! From the published checkpoint to a model folder.

pub mod architecture;
mod new_file;
pub mod onnx;
pub mod weights;
