//! Speech from text with Higgs Audio v3 (Higgs TTS 3), in ONNX Runtime.

pub mod audio;
pub mod codes;
pub mod draw;
pub mod error;
pub mod graphs;
pub mod manifest;
pub mod model;
pub mod onnx;
pub mod prompt;
pub mod sampler;
pub mod text;
pub mod utterance;
