//! Draws: attempts at an utterance, until one is healthy.
//!
//! A draw of this model can go wrong, with 4-bit weights in every third to tenth case: it sticks on a code, rambles on
//! past the text, falls silent or hisses. Another seed at a cooler temperature usually cures it. The prompt is in the
//! KV cache already, so another draw costs no prefill. All thresholds stand in [`health`].

pub mod health;

use std::time::Instant;

use anyhow::Result;

use self::health::Fault;
use crate::{
    audio::Audio,
    codes::{Codebooks, DelayedCodes},
    error::UserError,
    graphs::decoder::KvCache,
    model::Model,
    prompt::{Segment, Voice},
    sampler::{Rules, Sampling},
    text,
    utterance::{StopReason, Utterance},
};

/// What to say, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// A text as [`text::clean`] leaves it.
    pub text: String,
    /// In whose voice; without one the model chooses a voice.
    pub voice: Option<Voice>,
    /// How codes are chosen. The seed and the temperature are those of the first draw.
    pub sampling: Sampling,
    /// Frames of sound at most; without it the text decides.
    pub max_frames: Option<usize>,
    /// Draws after the first, if it is not healthy; 0 leaves the draw alone.
    pub retries: usize,
}

impl Request {
    /// A text with the default settings.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), voice: None, sampling: Sampling::default(), max_frames: None, retries: 2 }
    }

    /// Refuses a text that one draw cannot hold, unless a length limit shows that this is known.
    ///
    /// # Errors
    /// A [`UserError`].
    pub fn check(&self) -> Result<()> {
        let expected_s = text::expected_speech_s(&self.text);
        if self.max_frames.is_none() && expected_s > health::LONGEST_TEXT_S {
            let message = format!(
                "the text takes about {expected_s:.0} s to say, and one draw holds {:.0} s",
                health::LONGEST_TEXT_S
            );
            return Err(UserError::request(message).with_hint("split it into parts of a few sentences").into());
        }
        Ok(())
    }

    /// Builds the prompt and decides on the greatest number of rows.
    ///
    /// # Errors
    /// As [`Model::room_for`].
    pub fn plan(&self, model: &Model) -> Result<Plan> {
        let prompt = model.prompt().build(&self.text, self.voice.as_ref())?;
        let max_rows = self.max_rows(model.contract().codebooks, model.frame_s());
        let max_rows = model.room_for(&prompt, max_rows)?;
        Ok(Plan { prompt, max_rows })
    }

    /// Whether draws are watched, judged and repeated. The reference implementation has no such guard.
    fn is_guarded(&self) -> bool {
        self.retries > 0 && self.sampling.rules == Rules::Legal
    }

    fn max_rows(&self, codebooks: Codebooks, frame_s: f64) -> usize {
        // A cap that the caller names counts; the one that the text gives stays below the reference's.
        match (self.max_frames, self.sampling.rules) {
            (Some(frames), _) => codebooks.rows_of(frames.max(1)),
            (None, Rules::Reference) => health::MOST_ROWS,
            (None, Rules::Legal) => {
                let longest_s = health::longest_s(text::expected_speech_s(&self.text));
                codebooks.rows_of((longest_s / frame_s).ceil() as usize).min(health::MOST_ROWS)
            }
        }
    }
}

/// Seconds of computing after loading.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// The prompt.
    pub prefill_s: f64,
    /// Decode steps of all draws.
    pub decode_s: f64,
    /// The codec, for all draws.
    pub codec_s: f64,
}

impl Timings {
    /// All together.
    pub fn total_s(&self) -> f64 {
        self.prefill_s + self.decode_s + self.codec_s
    }
}

/// A finished draw.
#[derive(Debug, Clone)]
pub struct Draw {
    /// What it sounds like.
    pub audio: Audio,
    /// The rows that the model made.
    pub rows: DelayedCodes,
    /// Why it ended.
    pub stop: StopReason,
    /// Seed and temperature with which it can be repeated.
    pub sampling: Sampling,
    /// What is wrong with it; always empty when draws are left alone.
    pub faults: Vec<Fault>,
    /// Special codes that stood among the frames and became code 0.
    pub specials: usize,
}

impl Draw {
    /// Whether it ended by itself and nothing is wrong with it.
    pub fn is_healthy(&self) -> bool {
        self.stop == StopReason::EndOfSpeech && self.faults.is_empty()
    }
}

/// What became of a row.
#[derive(Debug, Clone)]
pub enum Step {
    /// The draw goes on, with so many frames of sound.
    Row(usize),
    /// It ended a draw that is not healthy; the next one has these settings.
    Rejected {
        /// What was wrong.
        faults: Vec<Fault>,
        /// Seed of the rejected draw.
        seed: u64,
        /// Settings of the next.
        next: Sampling,
    },
    /// It ended the last draw.
    Finished(Box<Finished>),
}

/// What came of a request.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The healthiest draw.
    pub draw: Draw,
    /// Draws after the first.
    pub retries: usize,
    /// The time of all draws.
    pub timings: Timings,
}

/// A request made ready for the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    prompt: Vec<Segment>,
    max_rows: usize,
}

impl Plan {
    /// Positions of the KV cache that prompt and rows take.
    pub fn positions(&self) -> usize {
        self.prompt.iter().map(Segment::len).sum::<usize>() + self.max_rows
    }
}

/// A request in a slot of the KV cache, with the draw in progress.
#[derive(Debug)]
pub struct Draws {
    request: Request,
    utterance: Utterance,
    begun: usize,
    best: Option<Draw>,
    timings: Timings,
}

impl Draws {
    /// Runs the prompt through the model, into a slot.
    ///
    /// # Errors
    /// As [`Model::prefill`].
    pub fn begin(model: &mut Model, cache: &mut KvCache, slot: usize, request: Request, plan: &Plan) -> Result<Self> {
        let start = Instant::now();
        let utterance = model.prefill(cache, slot, &plan.prompt, request.sampling, plan.max_rows)?;
        let timings = Timings { prefill_s: start.elapsed().as_secs_f64(), ..Timings::default() };
        Ok(Self { request, utterance, begun: 1, best: None, timings })
    }

    /// The draw in progress, for the model to draw a row of.
    pub fn utterance_mut(&mut self) -> &mut Utterance {
        &mut self.utterance
    }

    /// Positions of the prompt: what stays in the slot when another draw begins.
    pub fn prompt_len(&self) -> usize {
        self.utterance.prompt_len()
    }

    /// Looks at the row that the model has just drawn, which took `seconds`. After the last row of a draw, judges it
    /// and begins the next one if it is not healthy.
    ///
    /// # Errors
    /// As [`Model::decode`].
    pub fn row_drawn(&mut self, model: &mut Model, seconds: f64) -> Result<Step> {
        self.timings.decode_s += seconds;
        let rows = self.utterance.rows();
        if self.request.is_guarded() && self.utterance.stop_reason().is_none() && health::is_stuck(rows) {
            self.utterance.stop(StopReason::RepetitionGuard);
        }
        let Some(stop) = self.utterance.stop_reason() else {
            let rows = self.utterance.rows();
            return Ok(Step::Row(rows.codebooks().frames_of(rows.len())));
        };
        let draw = self.judge(model, stop)?;
        let (faults, seed) = (draw.faults.clone(), draw.sampling.seed);
        let best = match self.best.take() {
            Some(best) if best.faults.len() <= draw.faults.len() => best,
            _ => draw,
        };
        if faults.is_empty() || self.begun > self.request.retries || self.request.sampling.is_greedy() {
            let (retries, timings) = (self.begun - 1, self.timings);
            return Ok(Step::Finished(Box::new(Finished { draw: best, retries, timings })));
        }
        self.best = Some(best);
        let next = self.request.sampling.retry(self.begun);
        self.begun += 1;
        self.utterance.restart(next);
        Ok(Step::Rejected { faults, seed, next })
    }

    fn judge(&mut self, model: &mut Model, stop: StopReason) -> Result<Draw> {
        let start = Instant::now();
        let rows = self.utterance.rows().clone();
        let (mut codes, specials) = rows.undelayed();
        if stop == StopReason::RepetitionGuard {
            codes.truncate(health::before_stuck(rows.len()));
        }
        let audio = model.decode(&codes)?;
        self.timings.codec_s += start.elapsed().as_secs_f64();
        let mut faults = Vec::new();
        if self.request.is_guarded() {
            let expected_s = text::expected_speech_s(&self.request.text);
            let has_pauses = self.request.text.contains("pause|>");
            faults = health::faults(&audio, stop, specials, expected_s, has_pauses);
            if self.request.max_frames.is_some() {
                // Another draw cannot make a text shorter than the cap that was asked for.
                faults.retain(|fault| !matches!(fault, Fault::NoEnd { .. }));
            }
        }
        Ok(Draw { audio, rows, stop, sampling: *self.utterance.sampling(), faults, specials })
    }
}

impl Sampling {
    /// The settings of the n-th retry: the next seeds, each 0.1 cooler than the one before, but not below 0.5 (or the
    /// temperature asked for, if that is lower still).
    fn retry(&self, n: usize) -> Self {
        let floor = self.temperature.min(health::COOLEST);
        let cooler = self.temperature - health::COOLER * n as f32;
        // Rounded, so that the temperature that is told is the one that was used.
        let temperature = ((cooler * 1e4).round() / 1e4).max(floor);
        Self { temperature, seed: self.seed.wrapping_add(n as u64), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOKS: Codebooks = Codebooks { count: 8, size: 1024 };

    #[test]
    fn retries_take_the_next_seeds_and_cool_down_to_a_floor() {
        let settings = |temperature: f32, n| {
            let sampling = Sampling { temperature, seed: 7, ..Sampling::default() }.retry(n);
            (sampling.seed, (sampling.temperature * 100.0).round() / 100.0)
        };
        assert_eq!(settings(0.8, 1), (8, 0.7));
        assert_eq!(settings(0.8, 3), (10, 0.5));
        assert_eq!(settings(0.8, 9), (16, 0.5));
        assert_eq!(settings(0.3, 2), (9, 0.3));
    }

    #[test]
    fn a_text_that_one_draw_cannot_hold_is_refused() {
        let mut request = Request::new("abcdefghijklmn ".repeat(75));
        assert!(request.check().is_ok());
        request.text = "abcdefghijklmn ".repeat(90);
        let error = request.check().unwrap_err();
        assert_eq!(error.to_string(), "the text takes about 90 s to say, and one draw holds 75 s");
        request.max_frames = Some(100);
        assert!(request.check().is_ok());
    }

    #[test]
    fn the_length_cap_counts_frames_of_sound() {
        let mut request = Request::new("abcdefghijklmn");
        // One second of text: 2 × 1 s + 4 s of frames, and seven rows for the delay.
        assert_eq!(request.max_rows(BOOKS, 0.04), 150 + 7);
        request.max_frames = Some(33);
        assert_eq!(request.max_rows(BOOKS, 0.04), 40);
        request.max_frames = Some(5000);
        assert_eq!(request.max_rows(BOOKS, 0.04), 5007);
        request.max_frames = None;
        request.text = "long ".repeat(1000);
        assert_eq!(request.max_rows(BOOKS, 0.04), 2048);
        request.sampling.rules = Rules::Reference;
        request.text = "short".into();
        assert_eq!(request.max_rows(BOOKS, 0.04), 2048);
    }
}
