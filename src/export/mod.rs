//! From the published checkpoint to a model folder.

mod new_file;
pub mod onnx;
