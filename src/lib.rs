//! Speech from text with Higgs Audio v3 (Higgs TTS 3), in ONNX Runtime.
//!
//! The model is a language model that speaks: after a prompt of text, and perhaps of a recorded voice, it goes on with
//! *rows* of codes, 25 a second. Each row holds one code of each of eight codebooks, delayed so that codebook k belongs
//! to the *frame* k rows earlier. A sampler draws the rows from the model's logits until codebook 0 ends the speech.
//! With the delay undone, the frames go through a codec, which turns each into 40 ms of sound. What can go wrong with a
//! draw is looked for afterwards, and a bad one is drawn again.
//!
//! ```text
//! text ──────────▶ prompt ─▶ tokens ─▶ text_embed ──┐
//! ref.wav ─▶ audio_encoder ─▶ codes ─▶ audio_embed ─┴▶ llm_decoder ─▶ audio_heads ─▶ sampler ─▶ row
//!                                          ▲            (KV cache)                               │
//!                                          └─────────────────────────────────────────────────────┤
//!                         x.wav ◀─ audio_tokenizer ◀─ codes ◀─ delay undone ◀─ rows ◀─────────────┘
//! ```
//!
//! The rooms of the house stand on floors, and imports go down only (`tests/floors.rs` sees to it):
//!
//! | floor | rooms |
//! |---|---|
//! | doors | the executable: flags, progress, exit codes |
//! | desk | [`scheduler`]: many requests, a few slots |
//! | spine | [`draw`], [`eval`] → [`model`] → [`utterance`] |
//! | crafts | [`prompt`], [`sampler`], [`graphs`] (the only home of ONNX Runtime), [`export`] |
//! | facts | [`text`], [`audio`], [`manifest`], [`onnx`], [`codes`]; below them [`error`] |
//!
//! The state of an utterance is a value that does not own the model. Texts are cleaned at the door ([`text::clean`]), and
//! inside nothing looks at them again. The library never prints and never ends the process.
//!
//! ```no_run
//! use std::path::{Path, PathBuf};
//!
//! use higgs_tts::{
//!     audio::{self, Output, SampleFormat},
//!     draw::Request,
//!     model::{LoadOptions, Model},
//!     scheduler::{Event, Scheduler},
//!     text,
//! };
//!
//! fn main() -> anyhow::Result<()> {
//!     let mut model = Model::load(Path::new("onnx/cpu_int4"), &LoadOptions::default())?;
//!     let mut scheduler = Scheduler::new(8);
//!     for line in ["Hello, this is a test.", "And this is another."] {
//!         scheduler.submit(Request::new(text::clean(line)?.text));
//!     }
//!     while !scheduler.is_idle() {
//!         for event in scheduler.step(&mut model)? {
//!             match event {
//!                 Event::Finished(n, finished) => {
//!                     let output = Output::File(PathBuf::from(format!("{n}.wav")));
//!                     audio::write(&output, &finished.draw.audio, SampleFormat::Pcm16)?;
//!                 }
//!                 Event::Failed(_, error) => return Err(error),
//!                 Event::Begun(_) | Event::Row(..) | Event::Rejected { .. } => {}
//!             }
//!         }
//!     }
//!     Ok(())
//! }
//! ```

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod audio;
pub mod codes;
pub mod draw;
pub mod error;
pub mod eval;
pub mod export;
pub mod graphs;
pub mod manifest;
pub mod model;
pub mod onnx;
pub mod prompt;
pub mod sampler;
pub mod scheduler;
pub mod text;
pub mod utterance;
