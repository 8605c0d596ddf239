//! One request in flight: its sampler, its last hidden state, the rows so far.

use std::fmt;

use ndarray::Array1;

use crate::{
    codes::{Codebooks, DelayedCodes},
    sampler::{Sampler, Sampling},
};

/// Why an utterance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The model ended it: EOC on codebook 0, and the rows that let the other codebooks end.
    EndOfSpeech,
    /// It reached the greatest number of frames allowed.
    LengthCap,
    /// It repeated itself and was stopped.
    RepetitionGuard,
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndOfSpeech => "end of speech",
            Self::LengthCap => "length cap",
            Self::RepetitionGuard => "repetition guard",
        })
    }
}

/// The state of one utterance. It owns neither the model nor the KV cache, in which it has a slot: any number of
/// utterances can be in flight.
#[derive(Debug)]
pub struct Utterance {
    /// Hidden state `[H]` of the last position, from which the next row is drawn.
    pub(crate) hidden: Array1<f32>,
    /// Where the prompt ends, and the hidden state there: a new draw begins here without a new prefill.
    prompt: (usize, Array1<f32>),
    pub(crate) sampler: Sampler,
    pub(crate) rows: DelayedCodes,
    max_rows: usize,
    stop: Option<StopReason>,
}

impl Utterance {
    pub(crate) fn new(
        prompt_len: usize,
        hidden: Array1<f32>,
        sampling: Sampling,
        codebooks: Codebooks,
        max_rows: usize,
    ) -> Self {
        let prompt = (prompt_len, hidden.clone());
        let (sampler, rows) = (Sampler::new(sampling, codebooks), DelayedCodes::new(codebooks));
        Self { hidden, prompt, sampler, rows, max_rows, stop: None }
    }

    /// The rows so far.
    pub fn rows(&self) -> &DelayedCodes {
        &self.rows
    }

    /// Positions that the prompt takes.
    pub fn prompt_len(&self) -> usize {
        self.prompt.0
    }

    /// The settings of the sampler.
    pub fn sampling(&self) -> &Sampling {
        self.sampler.sampling()
    }

    /// Why it ended, once it has.
    pub fn stop_reason(&self) -> Option<StopReason> {
        self.stop
    }

    /// Ends it from outside.
    pub fn stop(&mut self, reason: StopReason) {
        self.stop = Some(reason);
    }

    /// Adds a row, and ends the utterance if that was the last.
    pub(crate) fn push(&mut self, row: &[u16]) {
        self.rows.push(row);
        if self.sampler.is_done() {
            self.stop = Some(StopReason::EndOfSpeech);
        } else if self.rows.len() >= self.max_rows {
            self.stop = Some(StopReason::LengthCap);
        }
    }

    /// Back to the end of the prompt, for another draw. Its slot of the KV cache must be cut to the prompt as well.
    pub fn restart(&mut self, sampling: Sampling) {
        let codebooks = self.rows.codebooks();
        self.hidden.clone_from(&self.prompt.1);
        self.sampler = Sampler::new(sampling, codebooks);
        self.rows = DelayedCodes::new(codebooks);
        self.stop = None;
    }
}
