//! What is told about a result, on stderr and as JSON.

use std::io::{self, Write};

use anyhow::{Context, Result};
use higgs_tts::{audio::Output, draw::Draw};
use serde_json::{Value, json};

use super::{Args, say};

/// What is told about a result.
pub(super) struct Report<'a> {
    pub(super) output: &'a Output,
    pub(super) draw: &'a Draw,
    pub(super) retries: usize,
    pub(super) frame_s: f64,
    pub(super) load_s: f64,
    pub(super) compute_s: f64,
    pub(super) reference_frames: Option<usize>,
    pub(super) clipped_samples: usize,
}

impl Report<'_> {
    pub(super) fn tell(&self, args: &Args) -> Result<()> {
        let Draw { audio, stop, sampling, .. } = self.draw;
        let (seconds, compute_s) = (audio.duration_s(), self.compute_s);
        if !args.quiet {
            let rtf = compute_s / seconds;
            let seed = sampling.seed;
            let name = name(self.output);
            // With the seed, the temperature of a retry repeats the draw.
            let cooler =
                if self.retries > 0 { format!(", temperature {}", sampling.temperature) } else { String::new() };
            say(&format!(
                "wrote {name}: {seconds:.2} s of audio in {compute_s:.2} s (RTF {rtf:.2}, {stop}, seed {seed}{cooler})"
            ));
        }
        if args.json {
            print_json(&self.json())?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let Draw { audio, rows, stop, sampling, faults, specials } = self.draw;
        let seconds = audio.duration_s();
        json!({
            "out": name(self.output),
            "audio_s": seconds,
            "samples": audio.samples.len(),
            "sample_rate_hz": audio.sample_rate_hz,
            "frames": (seconds / self.frame_s).round() as u64,
            "rows": rows.len(),
            "load_s": self.load_s,
            "compute_s": self.compute_s,
            "rtf": self.compute_s / seconds,
            "stop_reason": stop.to_string(),
            "healthy": self.draw.is_healthy(),
            "faults": faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "retries": self.retries,
            "seed": sampling.seed,
            "temperature": shortest(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": shortest(sampling.top_p),
            "special_codes": specials,
            "clipped_samples": self.clipped_samples,
            "reference_frames": self.reference_frames,
        })
    }
}

pub(super) fn name(output: &Output) -> String {
    match output {
        Output::File(path) => path.display().to_string(),
        Output::Stdout => "standard output".into(),
    }
}

/// The number as it was typed: 0.8, not the 0.800000011920929 that the nearest `f32` is.
fn shortest(number: f32) -> f64 {
    number.to_string().parse().unwrap_or_else(|_| number.into())
}

pub(super) fn print_json(value: &Value) -> Result<()> {
    writeln!(io::stdout().lock(), "{value}").context("cannot write to standard output")
}
