//! From logits to a row of codes: the filters, the draw, and the state machine of the delay pattern.
//!
//! Two sets of rules share everything else. [`Rules::Reference`] samples as the reference implementation (SGLang-Omni,
//! `higgs_tts/sampler.py`) does: every codebook from its whole vocabulary, specials included. [`Rules::Legal`], the
//! default, draws from the same distribution given that the row is one that a reference recording could have: no
//! special where a code belongs, EOC on a codebook that has ended. In addition it lets EOC on codebook 0 pass the
//! filters: most of the time EOC ranks in the hundreds there, and a top-k filter would forbid the end of speech until
//! long after the text is finished.

mod draw;
mod filter;

use anyhow::{Result, ensure};
use ndarray::ArrayView2;

use crate::{codes::Codebooks, error::UserError};

/// Which rows the sampler may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rules {
    /// Only rows that the delay pattern of real speech can have; EOC on codebook 0 passes the filters.
    #[default]
    Legal,
    /// Any entry anywhere, exactly as the reference implementation samples.
    Reference,
}

/// How codes are chosen; the same for all codebooks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest code, the lowest on ties.
    pub temperature: f32,
    /// Keeps the k likeliest codes and ties with the last of them; 0 keeps all.
    pub top_k: usize,
    /// Keeps the likeliest codes whose probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Same seed, same logits, same codes.
    pub seed: u64,
    /// Which rows are allowed.
    pub rules: Rules,
}

impl Default for Sampling {
    /// Temperature 0.8, top-k 50, top-p 0.95: the values of the model's makers for its serving line.
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 50, top_p: 0.95, seed: 0, rules: Rules::Legal }
    }
}

impl Sampling {
    /// Below this the reference takes the likeliest code instead of drawing.
    const GREEDY_BELOW: f32 = 1e-5;

    /// A seed for a request that names none: 31 bits, so that the reference rules keep all of it.
    pub fn random_seed() -> u64 {
        u64::from(rand::random::<u32>() >> 1)
    }

    /// Whether the likeliest code is always taken, so that the seed has no effect.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= Self::GREEDY_BELOW || self.top_k == 1
    }
}

/// Where the delay pattern stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Codebooks begin one after the other; this many have begun.
    RampIn(usize),
    /// All codebooks have begun and codebook 0 may end.
    Open,
    /// Codebook 0 has ended this many rows ago; so many rows are left.
    Ending { ago: usize, left: usize },
    /// The last row is out.
    Done,
}

/// The sampler of one utterance: its settings and its place in the delay pattern.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    codebooks: Codebooks,
    phase: Phase,
    row: usize,
}

impl Sampler {
    /// Begins before the first row.
    pub fn new(sampling: Sampling, codebooks: Codebooks) -> Self {
        Self { sampling, codebooks, phase: Phase::RampIn(0), row: 0 }
    }

    /// The settings.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Whether the speech has ended by itself: EOC on codebook 0, and the rows that let the others end.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Chooses the next row from the logits `[codebooks, vocabulary]`.
    ///
    /// # Errors
    /// When a logit is not finite.
    pub fn next_row(&mut self, logits: ArrayView2<'_, f32>) -> Result<Vec<u16>> {
        let expected = [self.codebooks.count, self.codebooks.vocab_size()];
        ensure!(logits.shape() == expected, "the logits are {:?}, expected {expected:?}", logits.shape());
        if let Some(((codebook, code), value)) = logits.indexed_iter().find(|(_, value)| !value.is_finite()) {
            let message = format!("the audio heads gave {value} for code {code} of codebook {codebook}");
            let hint = "the kernels of this runtime are broken for this model: `higgs-tts doctor` tells which";
            return Err(UserError::model(message).with_hint(hint).into());
        }
        let mut row = Vec::with_capacity(self.codebooks.count);
        for (codebook, logits) in logits.outer_iter().enumerate() {
            row.push(match self.forced(codebook) {
                Some(special) => special,
                None => self.choose(codebook, &logits.to_vec()),
            });
        }
        self.settle(&mut row);
        Ok(row)
    }

    /// The special that a legal row must have here, if any.
    fn forced(&self, codebook: usize) -> Option<u16> {
        match (self.sampling.rules, self.phase) {
            (_, Phase::RampIn(begun)) if codebook > begun => Some(self.codebooks.boc()),
            (Rules::Legal, Phase::Ending { ago, .. }) if codebook <= ago + 1 => Some(self.codebooks.eoc()),
            _ => None,
        }
    }

    fn choose(&self, codebook: usize, logits: &[f32]) -> u16 {
        let Sampling { temperature, top_k, top_p, seed, rules } = self.sampling;
        let eoc = self.codebooks.eoc();
        let may_end = codebook == 0 && self.phase == Phase::Open;
        let legal = |code: u16| rules == Rules::Reference || code < self.codebooks.size || (code == eoc && may_end);
        let candidates = (0..).zip(logits.iter().copied()).filter(|&(code, _)| legal(code));
        if self.sampling.is_greedy() {
            return filter::likeliest(candidates);
        }
        let exempt = (rules == Rules::Legal && may_end).then_some(eoc);
        let kept = filter::filter(candidates, &filter::Filter { temperature, top_k, top_p, exempt });
        let seed = if rules == Rules::Reference { draw::reference_seed(seed) } else { seed };
        draw::draw(&kept, seed, self.row * self.codebooks.count + codebook)
    }

    /// Puts BOC where a codebook has not begun, and moves on in the delay pattern.
    ///
    /// With N codebooks: during the first N rows EOC on codebook 0 has no effect; later it lets N − 2 more rows follow,
    /// the last of which is emitted as well.
    fn settle(&mut self, row: &mut [u16]) {
        let Codebooks { count, .. } = self.codebooks;
        self.row += 1;
        self.phase = match self.phase {
            Phase::RampIn(begun) => {
                if let Some(not_begun) = row.get_mut(begun + 1..) {
                    not_begun.fill(self.codebooks.boc());
                }
                if begun + 1 < count { Phase::RampIn(begun + 1) } else { Phase::Open }
            }
            Phase::Open if row[0] != self.codebooks.eoc() => Phase::Open,
            Phase::Open if count <= 2 => Phase::Done,
            Phase::Open => Phase::Ending { ago: 0, left: count - 2 },
            Phase::Ending { left: 1, .. } | Phase::Done => Phase::Done,
            Phase::Ending { ago, left } => Phase::Ending { ago: ago + 1, left: left - 1 },
        };
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;
    use serde_json::Value;

    use super::*;

    const BOOKS: Codebooks = Codebooks { count: 8, size: 1024 };

    fn reference() -> Value {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/reference/sampler.json");
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    fn row(value: &Value) -> Vec<u16> {
        serde_json::from_value(value.clone()).unwrap()
    }

    fn rows(value: &Value) -> Vec<Vec<u16>> {
        value.as_array().unwrap().iter().map(row).collect()
    }

    /// Logits under which the given row is the likeliest by far.
    fn logits_for(row: &[u16]) -> Array2<f32> {
        Array2::from_shape_fn((row.len(), 1026), |(k, code)| if usize::from(row[k]) == code { 50.0 } else { 0.0 })
    }

    #[test]
    fn the_state_machine_makes_the_rows_of_the_reference() {
        let reference = reference();
        let cases = reference["state_machine"].as_array().unwrap();
        assert_eq!(cases.len(), 4);
        for case in cases {
            let sampling = Sampling { temperature: 0.0, rules: Rules::Reference, ..Sampling::default() };
            let mut sampler = Sampler::new(sampling, BOOKS);
            let (mut made, mut done) = (Vec::new(), Vec::new());
            for sampled in rows(&case["sampled"]) {
                if !sampler.is_done() {
                    made.push(sampler.next_row(logits_for(&sampled).view()).unwrap());
                }
                done.push(sampler.is_done());
            }
            // The reference goes on with rows of −1 after the last one.
            let stopped = |row: &&Value| row[0] != -1;
            let expected: Vec<Vec<u16>> =
                case["rows"].as_array().unwrap().iter().take_while(stopped).map(row).collect();
            assert_eq!(made, expected, "{}", case["name"]);
            let expected: Vec<bool> = serde_json::from_value(case["done_after"].clone()).unwrap();
            assert_eq!(done, expected, "{}", case["name"]);
        }
    }

    fn rows_until_done(eoc_at: usize, books: Codebooks) -> (Sampler, usize) {
        let sampling = Sampling { temperature: 0.0, rules: Rules::Reference, ..Sampling::default() };
        let mut sampler = Sampler::new(sampling, books);
        for row in 0..100 {
            let mut settled = vec![if row == eoc_at { books.eoc() } else { 5 }; books.count];
            sampler.settle(&mut settled);
            if sampler.is_done() {
                return (sampler, row + 1);
            }
        }
        (sampler, 100)
    }

    #[test]
    fn end_of_codebook_on_row_s_gives_s_frames() {
        for (count, eoc_at) in [(8, 8), (8, 10), (3, 5), (2, 4), (1, 3)] {
            let books = Codebooks { count, size: 1024 };
            let (_, rows) = rows_until_done(eoc_at, books);
            let expected = if count == 1 { eoc_at + 1 } else { eoc_at + count - 1 };
            assert_eq!(rows, expected, "{count} codebooks, EOC on row {eoc_at}");
        }
    }

    #[test]
    fn end_of_codebook_during_the_ramp_in_has_no_effect() {
        for eoc_at in 0..8 {
            assert_eq!(rows_until_done(eoc_at, BOOKS).1, 100);
        }
    }

    #[test]
    fn legal_rows_are_those_of_a_delayed_recording() {
        // Logits that want BOC and EOC everywhere: only where they are legal may they come.
        let specials = Array2::from_shape_fn((8, 1026), |(_, code)| match code {
            1024 => 9.0,
            1025 => 8.0,
            7 => 1.0,
            _ => 0.0,
        });
        for temperature in [0.0, 0.8] {
            let mut sampler = Sampler::new(Sampling { temperature, ..Sampling::default() }, BOOKS);
            let mut delayed = crate::codes::DelayedCodes::new(BOOKS);
            while !sampler.is_done() {
                delayed.push(&sampler.next_row(specials.view()).unwrap());
            }
            let (codes, specials) = delayed.undelayed();
            assert_eq!((codes.len(), specials), (8, 0));
            assert_eq!(codes.delayed(), delayed);
        }
    }

    #[test]
    fn only_legal_rules_let_the_end_pass_the_filters() {
        // Codebook 0: fifty codes well above EOC, and EOC above the rest: outside top-k, but not improbable.
        let logits = Array2::from_shape_fn((8, 1026), |(_, code)| match code {
            0..50 => 1.0,
            1025 => 0.9,
            _ => -30.0,
        });
        let ends = |rules| {
            let mut ended = 0;
            for seed in 0..200 {
                let mut sampler =
                    Sampler::new(Sampling { seed, rules, temperature: 1.0, ..Sampling::default() }, BOOKS);
                sampler.phase = Phase::Open;
                sampler.next_row(logits.view()).unwrap();
                ended += u32::from(sampler.phase != Phase::Open);
            }
            ended
        };
        assert_eq!(ends(Rules::Reference), 0);
        let ended = ends(Rules::Legal);
        assert!((1..=12).contains(&ended), "one draw in 51 is expected to end, {ended} of 200 did");
    }

    #[test]
    fn greedy_takes_the_lowest_code_on_ties() {
        let logits = Array2::from_shape_fn((8, 1026), |(_, code)| if code == 30 || code == 400 { 2.0 } else { 1.0 });
        let mut sampler = Sampler::new(Sampling { temperature: 0.0, ..Sampling::default() }, BOOKS);
        assert_eq!(sampler.next_row(logits.view()).unwrap()[0], 30);
    }

    #[test]
    fn the_same_seed_gives_the_same_rows_and_another_seed_others() {
        let logits = Array2::from_shape_fn((8, 1026), |(k, code)| ((code * 7 + k) % 13) as f32 * 0.1);
        let rows = |seed| {
            let mut sampler = Sampler::new(Sampling { seed, ..Sampling::default() }, BOOKS);
            (0..20).map(|_| sampler.next_row(logits.view()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(rows(5), rows(5));
        assert_ne!(rows(5), rows(6));
    }

    #[test]
    fn a_logit_that_is_not_finite_is_an_error_that_names_it() {
        let mut logits = Array2::zeros((8, 1026));
        logits[(3, 17)] = f32::NAN;
        let error = Sampler::new(Sampling::default(), BOOKS).next_row(logits.view()).unwrap_err();
        assert_eq!(error.to_string(), "the audio heads gave NaN for code 17 of codebook 3");
    }
}
