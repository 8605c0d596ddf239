//! One sample rate to another.

use anyhow::{Context, Result, ensure};
use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler};

use super::Audio;

/// The shortest block on the slower side. Its length sets the steepness of the filter: with 1024 samples the passband
/// reaches to 98 % of the lower Nyquist frequency.
const MIN_BLOCK_SAMPLES: u32 = 1024;

/// Resamples with a linear-phase low-pass filter at the lower of the two Nyquist frequencies.
///
/// The sound stays in place: a moment at t seconds is at t seconds in the result too, which has
/// round(samples · rate out ÷ rate in) samples. Equal rates give the same samples back.
///
/// # Errors
///
/// Only if one of the rates is 0.
pub fn resample(audio: &Audio, sample_rate_hz: u32) -> Result<Audio> {
    if audio.sample_rate_hz == sample_rate_hz {
        return Ok(audio.clone());
    }
    let samples = convert(&audio.samples, audio.sample_rate_hz, sample_rate_hz)
        .with_context(|| format!("cannot resample from {} to {sample_rate_hz} Hz", audio.sample_rate_hz))?;
    Ok(Audio { samples, sample_rate_hz })
}

fn convert(samples: &[f32], from_hz: u32, to_hz: u32) -> Result<Vec<f32>> {
    ensure!(from_hz > 0 && to_hz > 0, "a rate of 0 Hz has no sound");
    let divisor = gcd(from_hz, to_hz);
    let (step_in, step_out) = (from_hz / divisor, to_hz / divisor);
    // The delay of the filter is half a block, and only whole samples of it are removed: blocks of an odd length would
    // leave half a sample.
    let steps = MIN_BLOCK_SAMPLES.div_ceil(step_in.min(step_out)).next_multiple_of(2);
    let block_in = steps as usize * step_in as usize;
    let mut resampler = Fft::<f32>::new(from_hz as usize, to_hz as usize, block_in, 1, FixedSync::Both)?;
    let input = InterleavedSlice::new(samples, 1, samples.len())?;
    let mut resampled = resampler.process_all(&input, samples.len(), None)?.take_data();
    resampled.truncate(resampled_len(samples.len(), from_hz, to_hz));
    Ok(resampled)
}

/// `len · to ÷ from`, rounded.
fn resampled_len(len: usize, from_hz: u32, to_hz: u32) -> usize {
    let (from, to) = (u128::from(from_hz), u128::from(to_hz));
    usize::try_from((len as u128 * to + from / 2) / from).unwrap_or(usize::MAX)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;

    const TO_HZ: u32 = 24_000;

    fn tone(hz: f64, rate_hz: u32) -> Audio {
        let sample = |i| (TAU * hz * f64::from(i) / f64::from(rate_hz)).sin() as f32 * 0.5;
        Audio { samples: (0..rate_hz).map(sample).collect(), sample_rate_hz: rate_hz }
    }

    /// Level against the tone in dB, and phase against it in samples, both measured in the middle half second.
    fn measure(audio: &Audio, hz: f64) -> (f64, f64) {
        let rate = f64::from(audio.sample_rate_hz);
        let (from, to) = (audio.samples.len() / 4, audio.samples.len() * 3 / 4);
        let (mut sine, mut cosine) = (0.0, 0.0);
        for i in from..to {
            let (s, c) = (TAU * hz * i as f64 / rate).sin_cos();
            sine += s * f64::from(audio.samples[i]);
            cosine += c * f64::from(audio.samples[i]);
        }
        let amplitude = 2.0 * sine.hypot(cosine) / (to - from) as f64;
        (20.0 * (amplitude / 0.5).log10(), -cosine.atan2(sine) * rate / (TAU * hz))
    }

    fn peak(samples: &[f32]) -> f32 {
        samples.iter().fold(0.0, |peak, sample| peak.max(sample.abs()))
    }

    #[test]
    fn tones_keep_their_frequency_level_and_place() {
        for from_hz in [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000, 96_000, 192_000] {
            for hz in [1000.0, 3000.0, 5000.0, 10_000.0].into_iter().filter(|hz| hz * 2.2 < f64::from(from_hz)) {
                let resampled = resample(&tone(hz, from_hz), TO_HZ).unwrap();
                let (level_db, late_samples) = measure(&resampled, hz);
                assert!(level_db.abs() < 0.01, "{hz} Hz from {from_hz} Hz: {level_db} dB");
                assert!(late_samples.abs() < 0.001, "{hz} Hz from {from_hz} Hz: {late_samples} samples late");
                let ideal = tone(hz, TO_HZ).samples;
                let middle = TO_HZ as usize / 4..TO_HZ as usize * 3 / 4;
                let error = middle.map(|i| (resampled.samples[i] - ideal[i]).abs()).fold(0.0, f32::max);
                assert!(error < 1e-4, "{hz} Hz from {from_hz} Hz: off by {error}");
            }
        }
    }

    #[test]
    fn tones_above_the_new_nyquist_frequency_vanish() {
        for from_hz in [32_000, 44_100, 48_000, 96_000] {
            for hz in [12_100.0, 13_000.0, 15_500.0] {
                let resampled = resample(&tone(hz, from_hz), TO_HZ).unwrap();
                let middle = &resampled.samples[6_000..18_000];
                let level_db = 20.0 * (peak(middle) / 0.5).log10();
                assert!(level_db < -80.0, "{hz} Hz from {from_hz} Hz leaves {level_db} dB");
            }
        }
    }

    #[test]
    fn an_impulse_stays_in_place() {
        for (from_hz, at) in [(48_000, 24_000), (44_100, 14_700), (16_000, 8_000), (96_000, 50_000)] {
            let mut samples = vec![0.0; from_hz as usize];
            samples[at] = 1.0;
            let resampled = resample(&Audio { samples, sample_rate_hz: from_hz }, TO_HZ).unwrap().samples;
            let at = at * TO_HZ as usize / from_hz as usize;
            assert_eq!(resampled[at], peak(&resampled), "from {from_hz} Hz");
            assert!((resampled[at - 1] - resampled[at + 1]).abs() < 1e-5, "from {from_hz} Hz it is not symmetric");
        }
    }

    #[test]
    fn the_length_is_the_rounded_quotient() {
        for (len, from_hz, expected) in [
            (0, 44_100, 0),
            (1, 44_100, 1),
            (1, 96_000, 0),
            (2, 96_000, 1),
            (10, 44_100, 5),
            (10, 8_000, 30),
            (44_100, 44_100, 24_000),
            (44_101, 44_100, 24_001),
            (100_000, 22_050, 108_844),
            (50_000, 44_101, 27_210),
        ] {
            let audio = Audio { samples: vec![0.1; len], sample_rate_hz: from_hz };
            let resampled = resample(&audio, TO_HZ).unwrap();
            assert_eq!(resampled.sample_rate_hz, TO_HZ);
            assert_eq!(resampled.samples.len(), expected, "{len} samples at {from_hz} Hz");
            assert!(resampled.samples.iter().all(|sample| sample.is_finite()));
        }
    }

    #[test]
    fn equal_rates_change_nothing() {
        let audio = tone(1000.0, TO_HZ);
        assert_eq!(resample(&audio, TO_HZ).unwrap(), audio);
    }

    #[test]
    fn a_rate_of_zero_is_an_error() {
        let audio = Audio { samples: vec![0.0], sample_rate_hz: 0 };
        let error = resample(&audio, TO_HZ).unwrap_err();
        assert_eq!(format!("{error:#}"), "cannot resample from 0 to 24000 Hz: a rate of 0 Hz has no sound");
        assert!(resample(&tone(1000.0, TO_HZ), 0).is_err());
    }
}
