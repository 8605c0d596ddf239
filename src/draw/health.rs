//! When a draw is not healthy: every threshold, each with its reason.

use std::fmt;

use crate::{audio::Audio, codes::DelayedCodes, utterance::StopReason};

/// Rows that the reference implementation makes at most: 81.6 s of sound.
pub(super) const MOST_ROWS: usize = 2048;

/// Texts that take longer do not fit into so many rows: the estimate may be a little too high, not much.
pub(super) const LONGEST_TEXT_S: f64 = 75.0;

/// How much cooler each retry is, and where that ends: cooler draws go wrong less often, but below 0.5 they stick more
/// easily.
pub(super) const COOLER: f32 = 0.1;
pub(super) const COOLEST: f32 = 0.5;

/// A draw is cut off at twice the expected length and four seconds. Natural speech has about ten rows a word; twenty
/// and a little are generous for slow speakers and expensive words such as numbers.
pub(super) fn longest_s(expected_s: f64) -> f64 {
    2.0 * expected_s + 4.0
}

/// A draw that ends by itself has rambled past its text when it is longer than this.
fn rambling_from_s(expected_s: f64) -> f64 {
    1.6 * expected_s + 3.0
}

/// Codebook 0 is stuck when its last 32 codes (1.3 s) repeat with a period of at most 8: sampled speech never repeats
/// itself exactly for so long, not even a held vowel or a pause.
const STUCK_ROWS: usize = 32;
const LONGEST_PERIOD: usize = 8;

/// Silence inside a healthy draw: the longest pauses between sentences last about a second and a half.
const LONGEST_SILENCE_S: f64 = 3.0;
/// The same when the text asks for pauses.
const LONGEST_SILENCE_WITH_PAUSES_S: f64 = 6.0;
/// Silent is what lies 45 dB below the loudest frame: room noise of a good reference is quieter, soft consonants are
/// louder.
const SILENT_BELOW_LOUDEST_DB: f32 = -45.0;
/// A draw whose loudest frame is below this level (dB of full scale) says nothing.
const NOTHING_BELOW_DB: f32 = -60.0;

/// Hiss: a flat spectrum for longer than any fricative lasts. White noise has a spectral flatness near 1; in the speech
/// of two synthesizers (flite, espeak-ng), full of fricatives, it stayed below 0.2 and 0.6, and above 0.3 for 80 ms at
/// most.
const HISS_FLATNESS: f32 = 0.35;
const HISS_S: f64 = 1.0;
/// Noise below this level (dB of full scale) is room noise.
const HISS_ABOVE_DB: f32 = -45.0;

/// Length of the frames on which level and flatness are measured.
const FRAME_S: f64 = 0.04;

/// What is wrong with a draw.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// Codebook 0 repeats itself.
    Stuck,
    /// It did not end within the length that the text allows.
    NoEnd {
        /// Its length.
        seconds: f64,
        /// The length that the text lets expect.
        expected_s: f64,
    },
    /// It ended, but long after the text must have been said.
    Rambling {
        /// Its length.
        seconds: f64,
        /// The length that the text lets expect.
        expected_s: f64,
    },
    /// A stretch of silence.
    DeadAir {
        /// The longest one.
        seconds: f64,
    },
    /// A stretch of noise.
    Hiss {
        /// The longest one.
        seconds: f64,
    },
    /// Special codes inside the frames.
    Specials {
        /// How many.
        count: usize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stuck => f.write_str("codebook 0 repeats itself"),
            Self::NoEnd { seconds, expected_s } => {
                write!(f, "no end after {seconds:.1} s, where about {expected_s:.1} s are expected")
            }
            Self::Rambling { seconds, expected_s } => {
                write!(f, "{seconds:.1} s long, where about {expected_s:.1} s are expected")
            }
            Self::DeadAir { seconds } => write!(f, "{seconds:.1} s of silence"),
            Self::Hiss { seconds } => write!(f, "{seconds:.1} s of hiss"),
            Self::Specials { count } => write!(f, "{count} special codes inside"),
        }
    }
}

/// Whether the last rows repeat themselves in codebook 0.
pub(super) fn is_stuck(rows: &DelayedCodes) -> bool {
    if rows.len() < STUCK_ROWS {
        return false;
    }
    let mut last = [0; STUCK_ROWS];
    for (code, row) in last.iter_mut().zip(rows.rows().rev()) {
        *code = row[0];
    }
    (1..=LONGEST_PERIOD).any(|period| last[period..].iter().zip(&last).all(|(code, before)| code == before))
}

/// Frames before the repetition that [`is_stuck`] found after so many rows; at least one.
pub(super) fn before_stuck(rows: usize) -> usize {
    rows.saturating_sub(STUCK_ROWS).max(1)
}

/// Everything that is wrong with a finished draw.
pub(super) fn faults(
    audio: &Audio,
    stop: StopReason,
    specials: usize,
    expected_s: f64,
    has_pauses: bool,
) -> Vec<Fault> {
    let mut faults = Vec::new();
    let seconds = audio.duration_s();
    match stop {
        StopReason::RepetitionGuard => faults.push(Fault::Stuck),
        StopReason::LengthCap => faults.push(Fault::NoEnd { seconds, expected_s }),
        StopReason::EndOfSpeech if seconds > rambling_from_s(expected_s) => {
            faults.push(Fault::Rambling { seconds, expected_s });
        }
        StopReason::EndOfSpeech => {}
    }
    if specials > 0 {
        faults.push(Fault::Specials { count: specials });
    }
    let length = ((FRAME_S * f64::from(audio.sample_rate_hz)) as usize).max(1);
    let frames: Vec<&[f32]> = audio.samples.chunks_exact(length).collect();
    let levels: Vec<f32> = frames.iter().map(|frame| level_db(frame)).collect();
    let loudest = levels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let silent = levels.iter().map(|&level| loudest < NOTHING_BELOW_DB || level < loudest + SILENT_BELOW_LOUDEST_DB);
    let dead_air_s = longest_run(silent) as f64 * FRAME_S;
    let allowed_s = if has_pauses { LONGEST_SILENCE_WITH_PAUSES_S } else { LONGEST_SILENCE_S };
    if dead_air_s > allowed_s || loudest < NOTHING_BELOW_DB {
        faults.push(Fault::DeadAir { seconds: dead_air_s });
    }
    let hissing =
        frames.iter().zip(&levels).map(|(frame, &level)| level > HISS_ABOVE_DB && flatness(frame) > HISS_FLATNESS);
    let hiss_s = longest_run(hissing) as f64 * FRAME_S;
    if hiss_s >= HISS_S {
        faults.push(Fault::Hiss { seconds: hiss_s });
    }
    faults
}

/// Length of the longest run of `true`.
fn longest_run(values: impl Iterator<Item = bool>) -> usize {
    let mut run = 0;
    values
        .map(|value| {
            run = if value { run + 1 } else { 0 };
            run
        })
        .max()
        .unwrap_or(0)
}

/// Root mean square of some samples, in dB of full scale.
fn level_db(samples: &[f32]) -> f32 {
    let power = samples.iter().map(|sample| sample * sample).sum::<f32>() / samples.len() as f32;
    10.0 * power.log10()
}

/// Spectral flatness, 0 (a tone) to 1 (white noise), as the share of the power that linear prediction leaves over
/// (Markel and Gray, Linear Prediction of Speech, 1976): no transform is needed.
fn flatness(samples: &[f32]) -> f32 {
    const ORDER: usize = 12;
    let correlation = |lag: usize| samples[lag..].iter().zip(samples).map(|(a, b)| a * b).sum::<f32>();
    let r: [f32; ORDER + 1] = std::array::from_fn(|lag| if lag < samples.len() { correlation(lag) } else { 0.0 });
    if r[0] <= 0.0 {
        return 0.0;
    }
    // Levinson-Durbin; the error is all that is wanted.
    let (mut a, mut error) = ([0.0f32; ORDER + 1], r[0]);
    for i in 1..=ORDER {
        let k = (r[i] - (1..i).map(|j| a[j] * r[i - j]).sum::<f32>()) / error;
        let before = a;
        for j in 1..i {
            a[j] = before[j] - k * before[i - j];
        }
        a[i] = k;
        error *= 1.0 - k * k;
        if error <= f32::EPSILON * r[0] {
            return 0.0;
        }
    }
    error / r[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::Codebooks;

    const RATE_HZ: u32 = 24_000;

    /// Noise from a fixed generator, so that the tests always see the same.
    fn noise(seconds: f64, level: f32) -> Vec<f32> {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..(seconds * f64::from(RATE_HZ)) as usize).map(|_| level * next()).collect()
    }

    /// A vowel-like sound: a decaying series of harmonics of 120 Hz.
    fn vowel(seconds: f64, level: f32) -> Vec<f32> {
        let sample = |n: usize| {
            let phase = std::f32::consts::TAU * 120.0 * n as f32 / RATE_HZ as f32;
            (1..20).map(|h| (phase * h as f32).sin() / (h * h) as f32).sum::<f32>()
        };
        (0..(seconds * f64::from(RATE_HZ)) as usize).map(|n| level * sample(n)).collect()
    }

    fn found(parts: &[Vec<f32>], stop: StopReason, expected_s: f64) -> Vec<String> {
        let audio = Audio { samples: parts.concat(), sample_rate_hz: RATE_HZ };
        faults(&audio, stop, 0, expected_s, false).iter().map(Fault::to_string).collect()
    }

    fn rows(codes: impl IntoIterator<Item = u16>) -> DelayedCodes {
        let mut rows = DelayedCodes::new(Codebooks { count: 2, size: 1024 });
        codes.into_iter().enumerate().for_each(|(n, code)| rows.push(&[code, n as u16]));
        rows
    }

    #[test]
    fn a_code_or_a_short_cycle_that_repeats_for_32_rows_is_stuck() {
        assert!(is_stuck(&rows((0..40).chain([9; 32]))));
        assert!(!is_stuck(&rows((0..40).chain([9; 31]))));
        assert!(is_stuck(&rows((0..32).map(|n| n % 8))));
        assert!(!is_stuck(&rows((0..64).map(|n| n % 9))));
        assert!(!is_stuck(&rows([9; 31])));
        assert_eq!(before_stuck(72), 40);
        assert_eq!(before_stuck(32), 1);
    }

    #[test]
    fn ordinary_speech_with_a_pause_and_a_fricative_is_healthy() {
        let speech = [vowel(1.0, 0.3), noise(0.3, 0.1), vowel(1.0, 0.3), noise(1.5, 0.0), vowel(0.5, 0.2)];
        assert!(found(&speech, StopReason::EndOfSpeech, 3.0).is_empty());
    }

    #[test]
    fn silence_inside_or_throughout_is_dead_air() {
        let speech = [vowel(1.0, 0.3), noise(3.2, 0.0005), vowel(1.0, 0.3)];
        assert_eq!(found(&speech, StopReason::EndOfSpeech, 5.0), ["3.2 s of silence"]);
        assert_eq!(found(&[noise(1.0, 0.0005)], StopReason::EndOfSpeech, 1.0), ["1.0 s of silence"]);
    }

    #[test]
    fn noise_longer_than_a_fricative_is_hiss() {
        let speech = [vowel(1.0, 0.3), noise(1.2, 0.1), vowel(1.0, 0.3)];
        assert_eq!(found(&speech, StopReason::EndOfSpeech, 3.0), ["1.2 s of hiss"]);
    }

    #[test]
    fn stopping_late_or_not_at_all_is_a_fault() {
        let speech = [vowel(8.0, 0.3)];
        assert!(found(&speech, StopReason::EndOfSpeech, 3.2).is_empty());
        let rambling = ["8.0 s long, where about 3.0 s are expected"];
        assert_eq!(found(&speech, StopReason::EndOfSpeech, 3.0), rambling);
        let no_end = ["no end after 8.0 s, where about 2.0 s are expected"];
        assert_eq!(found(&speech, StopReason::LengthCap, 2.0), no_end);
        assert_eq!(found(&speech, StopReason::RepetitionGuard, 8.0), ["codebook 0 repeats itself"]);
    }

    #[test]
    fn flatness_tells_tones_from_noise() {
        assert!(flatness(&vowel(0.04, 0.3)) < 0.05);
        assert!(flatness(&noise(0.04, 0.3)) > 0.9);
        assert_eq!(flatness(&[0.0; 960]), 0.0);
    }
}
