//! The recording whose voice is cloned.

use std::{path::Path, time::Instant};

use anyhow::{Result, ensure};
use higgs_tts::{
    audio::{self, Audio},
    error::UserError,
    model::Model,
    prompt::Voice,
};

use super::{Progress, say, warn};

/// A recording to clone, read and judged before the model is loaded.
pub(super) struct Reference {
    audio: Audio,
    description: String,
}

impl Reference {
    /// Recordings longer than this seldom help and cost 25 positions a second.
    const LONG_S: f64 = 30.0;
    /// Below this a recording has hardly a syllable.
    const SHORT_S: f64 = 1.0;
    /// The reference implementation takes quieter clips for silence.
    const SILENT_PEAK: f32 = 1e-5;
    /// More than this share of samples at full scale, and the recording was clipped.
    const CLIPPED_SHARE: f64 = 1e-3;

    pub(super) fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let recording = audio::read(path, Model::LONGEST_REFERENCE_S)?;
        let audio = recording.audio;
        let seconds = audio.duration_s();
        let peak = audio.samples.iter().fold(0f32, |peak, sample| peak.max(sample.abs()));
        ensure!(
            peak >= Self::SILENT_PEAK,
            UserError::request(format!("{shown} is silent, and a recording of a voice is wanted"))
        );
        if recording.damaged_packets > 0 {
            warn(&format!("{shown} is damaged: {} packets were left out", recording.damaged_packets));
        }
        if seconds > Self::LONG_S {
            warn(&format!("{shown} lasts {seconds:.1} s: 5 to 30 s are enough, and more makes everything slower"));
        } else if seconds < Self::SHORT_S {
            warn(&format!("{shown} lasts only {seconds:.2} s: 5 to 30 s are best"));
        }
        let clipped = audio.samples.iter().filter(|sample| sample.abs() >= 0.999).count();
        if clipped as f64 > Self::CLIPPED_SHARE * audio.samples.len() as f64 {
            warn(&format!("{shown} is clipped: the cloned voice may sound harsh"));
        }
        let (format, channels, rate) = (recording.format, recording.channels, audio.sample_rate_hz);
        let channels = if channels == 1 { "mono".to_owned() } else { format!("{channels} channels") };
        let description = format!("{shown} ({format}, {rate} Hz, {channels}, {seconds:.2} s)");
        Ok(Self { audio, description })
    }

    pub(super) fn encode(
        &self,
        model: &mut Model,
        transcript: Option<String>,
        progress: &Progress,
        quiet: bool,
    ) -> Result<Voice> {
        let start = Instant::now();
        let with = if transcript.is_some() { "with" } else { "without" };
        let voice = model.encode_voice(&self.audio, transcript)?;
        if !quiet {
            let (frames, seconds) = (voice.codes.len(), start.elapsed().as_secs_f64());
            let voice = format!("voice of {}: {frames} frames {with} transcript in {seconds:.2} s", self.description);
            progress.suspend(|| say(&voice));
        }
        Ok(voice)
    }
}
