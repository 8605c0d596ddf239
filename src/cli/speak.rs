//! The main job: text in, WAV out.

mod progress;
mod reference;
mod report;

use std::{
    fs::File,
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
    str::FromStr,
    time::Instant,
};

use anyhow::{Context, Result};
use higgs_tts::{
    audio::{self, Audio, Output, SampleFormat},
    codes::Codes,
    draw::{Draw, Finished, Request},
    error::UserError,
    model::Model,
    sampler::{Rules, Sampling},
    scheduler::{Event, Scheduler},
    text,
    utterance::StopReason,
};
use serde_json::json;

use self::{
    progress::Progress,
    reference::Reference,
    report::{Report, name, print_json},
};
use super::{
    Outcome,
    flags::{ModelArgs, flag_value},
    interrupt, say, warn,
};

const DEFAULTS: fn() -> Sampling = Sampling::default;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Text to speak; without it and --text-file the text is read from standard input
    #[arg(long, value_name = "TEXT", conflicts_with = "text_file", help_heading = "Text")]
    text: Option<String>,
    /// File with the text to speak, `-` for standard input
    #[arg(long, value_name = "FILE", help_heading = "Text")]
    text_file: Option<PathBuf>,

    /// WAV file to write, `-` for standard output
    #[arg(long, short, value_name = "FILE", required = true, help_heading = "Sound")]
    out: Option<PathBuf>,
    /// Samples of the WAV file: 16-bit integers or 32-bit floats
    #[arg(long, value_name = "FORMAT", default_value = "s16", help_heading = "Sound")]
    sample_format: Format,

    /// Recording whose voice to clone, in any common audio format; 5 to 30 s of clean speech are best
    #[arg(long, value_name = "FILE", help_heading = "Voice")]
    ref_audio: Option<PathBuf>,
    /// What is said in that recording, word for word; cloning is a little better with it
    #[arg(long, value_name = "TEXT", requires = "ref_audio", help_heading = "Voice")]
    ref_text: Option<String>,

    #[command(flatten)]
    model: ModelArgs,
    /// Check the codec alone: decode made-up codes to sound
    #[arg(long, conflicts_with_all = ["text", "text_file", "ref_audio"], help_heading = "Model")]
    selftest: bool,

    /// How freely codes are chosen; 0 always takes the likeliest
    #[arg(long, value_name = "T", default_value_t = DEFAULTS().temperature, value_parser = temperature, allow_negative_numbers = true, help_heading = "Sampling")]
    temperature: f32,
    /// Choose among the K likeliest codes; 0 among all
    #[arg(long, value_name = "K", default_value_t = DEFAULTS().top_k, value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = "Sampling")]
    top_k: usize,
    /// Choose among the likeliest codes whose probabilities reach P; 1 among all
    #[arg(long, value_name = "P", default_value_t = DEFAULTS().top_p, value_parser = top_p, allow_negative_numbers = true, help_heading = "Sampling")]
    top_p: f32,
    /// Same seed, same sound; without it one is made up and told
    #[arg(long, value_name = "N", value_parser = whole::<u64>, allow_negative_numbers = true, help_heading = "Sampling")]
    seed: Option<u64>,
    /// `legal` keeps rows well-formed and lets speech end; `reference` samples exactly as the reference implementation
    #[arg(long, value_name = "RULES", default_value = "legal", help_heading = "Sampling")]
    sampler: RulesArg,
    /// Frames of sound at most, 25 a second; without it the text decides
    #[arg(long, value_name = "N", value_parser = max_frames, allow_negative_numbers = true, help_heading = "Sampling")]
    max_frames: Option<usize>,
    /// Draws after the first when it is not healthy; 0 leaves the draw alone
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole::<usize>, allow_negative_numbers = true, help_heading = "Sampling")]
    retries: usize,

    /// Print one JSON object about the result on standard output
    #[arg(long, help_heading = "Messages")]
    json: bool,
    /// No progress and no summary, only warnings and errors
    #[arg(long, short, help_heading = "Messages")]
    quiet: bool,
}

flag_value! { RulesArg(Rules):
    "legal" => Rules::Legal, "well-formed rows only; the end of speech is never filtered out";
    "reference" => Rules::Reference, "exactly as the reference implementation; draws are left alone";
}
flag_value! { Format(SampleFormat):
    "s16" => SampleFormat::Pcm16, "16-bit integers";
    "f32" => SampleFormat::Float32, "32-bit floats";
}

fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("a whole number from 0 to {} is wanted", u64::MAX))
}

/// A million frames are eleven hours of sound, more than any context holds.
fn max_frames(text: &str) -> Result<usize, String> {
    let frames = text.parse().ok().filter(|frames| (1..=1_000_000).contains(frames));
    frames.ok_or_else(|| "a number from 1 to 1000000 is wanted".into())
}

fn temperature(text: &str) -> Result<f32, String> {
    number_in(text, |value| (0.0..=10.0).contains(&value), "a number from 0 to 10")
}

fn top_p(text: &str) -> Result<f32, String> {
    number_in(text, |value| value > 0.0 && value <= 1.0, "a number above 0 and at most 1")
}

fn number_in(text: &str, fits: fn(f32) -> bool, wanted: &str) -> Result<f32, String> {
    text.parse().ok().filter(|&value| fits(value)).ok_or_else(|| format!("{wanted} is wanted"))
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let output = output(args)?;
    if args.selftest {
        return selftest(args, &output);
    }
    let text = clean(&read_text(args)?)?;
    let transcript = match &args.ref_text {
        Some(transcript) => Some(clean(transcript).context(UserError::request("--ref-text cannot be used"))?),
        None => None,
    };
    let mut request =
        Request { text, voice: None, sampling: sampling(args), max_frames: args.max_frames, retries: args.retries };
    request.check()?;
    let folder = args.model.folder()?;
    audio::check(&output)?;
    let reference = args.ref_audio.as_deref().map(Reference::read).transpose()?;
    interrupt::check()?;

    let progress = Progress::new(args.quiet);
    progress.loading(&folder);
    let start = Instant::now();
    let mut model = Model::load(&folder, &args.model.load_options())?;
    let load_s = start.elapsed().as_secs_f64();
    interrupt::stops(model.interrupt())?;
    model.notes().iter().for_each(|note| warn(note));

    let start = Instant::now();
    if let Some(reference) = &reference {
        progress.encoding();
        request.voice = Some(reference.encode(&mut model, transcript, &progress, args.quiet)?);
    }
    let voice_s = start.elapsed().as_secs_f64();
    let reference_frames = request.voice.as_ref().map(|voice| voice.codes.len());

    let Finished { draw, retries, timings } = speak(&mut model, request, &progress)?;
    progress.finish();
    let written = audio::write(&output, &draw.audio, args.sample_format.0)?;
    tell_faults(&draw, args.quiet && !args.json);
    if written.clipped_samples > 0 {
        warn(&format!(
            "{} samples were too loud and were clipped; --sample-format f32 keeps them",
            written.clipped_samples
        ));
    }
    let report = Report {
        output: &output,
        draw: &draw,
        retries,
        frame_s: model.frame_s(),
        load_s,
        compute_s: voice_s + timings.total_s(),
        reference_frames,
        clipped_samples: written.clipped_samples,
    };
    report.tell(args)?;
    Ok(if draw.is_healthy() { Outcome::Done } else { Outcome::NotHealthy })
}

fn output(args: &Args) -> Result<Output> {
    let path = args.out.clone().context(UserError::request("no --out is given"))?;
    if path != Path::new("-") {
        let other = ["mp3", "ogg", "opus", "flac", "m4a", "aac", "webm"];
        let extension = path.extension().unwrap_or_default().to_ascii_lowercase();
        if other.iter().any(|other| extension == *other) {
            warn(&format!("{} will be a WAV file, whatever its name", path.display()));
        }
        return Ok(Output::File(path));
    }
    if args.json {
        let hint = "write the sound to a file, or leave --json out";
        return Err(UserError::request("--json and `--out -` both want standard output").with_hint(hint).into());
    }
    if io::stdout().is_terminal() {
        let hint = "name a file with --out, or pipe the sound into a player";
        return Err(UserError::request("standard output is a terminal").with_hint(hint).into());
    }
    Ok(Output::Stdout)
}

/// The text of the request, from the flag, a file or standard input.
fn read_text(args: &Args) -> Result<String> {
    if let Some(text) = &args.text {
        return Ok(text.clone());
    }
    let file = args.text_file.as_deref().filter(|path| *path != Path::new("-"));
    let mut bytes = Vec::new();
    // One byte more than is allowed tells that there is more; some files never end.
    let limit = text::LONGEST_BYTES as u64 + 1;
    let (name, read) = match file {
        Some(path) => {
            (path.display().to_string(), File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)))
        }
        None if args.text_file.is_none() && io::stdin().is_terminal() => {
            let hint = "use --text, --text-file, or pipe it to standard input";
            return Err(UserError::request("no text is given").with_hint(hint).into());
        }
        None => ("standard input".to_owned(), io::stdin().lock().take(limit).read_to_end(&mut bytes)),
    };
    read.with_context(|| UserError::request(format!("cannot read the text from {name}")))?;
    text::check_size(&bytes)?;
    let text = String::from_utf8(bytes).with_context(|| {
        UserError::request(format!("the text from {name} is not UTF-8")).with_hint("save it as UTF-8")
    })?;
    Ok(text.trim_start_matches('\u{feff}').to_owned())
}

fn clean(text: &str) -> Result<String> {
    text::check_size(text.as_bytes())?;
    let clean = text::clean(text)?;
    clean.warnings.iter().for_each(|warning| warn(warning));
    Ok(clean.text)
}

fn sampling(args: &Args) -> Sampling {
    Sampling {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed.unwrap_or_else(Sampling::random_seed),
        rules: args.sampler.0,
    }
}

/// Speaks the request, telling progress and rejected draws.
fn speak(model: &mut Model, request: Request, progress: &Progress) -> Result<Finished> {
    progress.prefill();
    let expected_s = text::expected_speech_s(&request.text);
    let mut scheduler = Scheduler::new(1);
    scheduler.submit(request);
    while !scheduler.is_idle() {
        interrupt::check()?;
        for event in scheduler.step(model)? {
            match event {
                Event::Begun(_) => progress.speaking(expected_s),
                Event::Row(_, frames) => progress.spoken(frames, model.frame_s()),
                Event::Rejected { faults, seed, next, .. } => {
                    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                    let (temperature, next) = (next.temperature, next.seed);
                    progress.suspend(|| {
                        warn(&format!(
                            "the draw with seed {seed} is not healthy ({}); drawing again with seed {next} at temperature {temperature}",
                            faults.join(", ")
                        ));
                    });
                    progress.speaking(expected_s);
                }
                Event::Finished(_, finished) => return Ok(*finished),
                Event::Failed(_, error) => return Err(error),
            }
        }
    }
    anyhow::bail!("nothing was drawn")
}

fn tell_faults(draw: &Draw, quiet: bool) {
    if !draw.faults.is_empty() {
        let faults: Vec<String> = draw.faults.iter().map(ToString::to_string).collect();
        warn(&format!("the sound is not healthy: {}", faults.join(", ")));
        return;
    }
    // Otherwise the summary says so.
    if quiet && draw.stop != StopReason::EndOfSpeech {
        warn(&format!("the sound is cut off: {}", draw.stop));
    }
    if draw.specials > 0 {
        let codes = if draw.specials == 1 { "code" } else { "codes" };
        warn(&format!("{} special {codes} inside the speech became code 0", draw.specials));
    }
}

/// Frames of the self-test: two seconds.
const SELFTEST_FRAMES: usize = 50;

/// Decodes made-up codes with the codec alone. The decoder itself sees to it that the samples are of the right number,
/// finite and not all zero.
fn selftest(args: &Args, output: &Output) -> Result<Outcome> {
    let folder = args.model.folder()?;
    audio::check(output)?;
    let mut codec = Model::load_codec(&folder, &args.model.load_options())?;
    let contract = codec.contract();
    let size = usize::from(contract.codebooks.size);
    // Any codes do; these differ from frame to frame and from codebook to codebook.
    let entries = (0..SELFTEST_FRAMES * contract.codebooks.count).map(|n| (n * n * 31 % size) as u16).collect();
    let codes = Codes::new(contract.codebooks, entries)?;
    let start = Instant::now();
    let samples = codec.decode(&codes)?;
    let compute_s = start.elapsed().as_secs_f64();
    let audio = Audio { samples, sample_rate_hz: contract.sample_rate_hz };
    let written = audio::write(output, &audio, args.sample_format.0)?;
    let (name, seconds) = (name(output), audio.duration_s());
    if !args.quiet {
        say(&format!("wrote {name}: {seconds:.2} s of audio in {compute_s:.2} s (the codec works)"));
    }
    if args.json {
        let clipped = written.clipped_samples;
        print_json(&json!({
            "out": name, "audio_s": seconds, "samples": audio.samples.len(), "compute_s": compute_s,
            "rtf": compute_s / seconds, "clipped_samples": clipped, "selftest": true,
        }))?;
    }
    Ok(Outcome::Done)
}
