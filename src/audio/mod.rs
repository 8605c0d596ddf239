//! Sound in and out: any recording to mono samples, any rate to another, samples to a WAV file.

mod opus;
mod read;
mod resample;
mod write;

pub use read::{Recording, read};
pub use resample::resample;
pub use write::{Output, SampleFormat, Written, check, wav_header, write};

/// Mono sound.
#[derive(Debug, Clone, PartialEq)]
pub struct Audio {
    /// Full scale is -1 to 1; nothing forbids more.
    pub samples: Vec<f32>,
    /// Samples per second, in Hz.
    pub sample_rate_hz: u32,
}

impl Audio {
    /// How long the sound lasts, in seconds.
    pub fn duration_s(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.sample_rate_hz)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_duration_is_the_samples_over_the_rate() {
        assert_eq!(Audio { samples: vec![0.0; 36_000], sample_rate_hz: 24_000 }.duration_s(), 1.5);
        assert_eq!(Audio { samples: Vec::new(), sample_rate_hz: 24_000 }.duration_s(), 0.0);
    }
}
