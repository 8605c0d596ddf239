//! The program, driven as a person would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "what fails here fails the test")]

mod common;

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use common::{Run, data, program, run, tiny};
use serde_json::Value;
use tempfile::TempDir;

const TEXT: &str = "Hello, this is a test.";

/// A folder for what is written.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The model folder that is whole in the test data.
fn whole() -> PathBuf {
    data().join("tiny/cpu_fp32")
}

/// The program with a model, to be run in a folder. The sound of random weights is seldom healthy, so draws are left
/// alone unless the arguments ask for retries.
fn program_in(folder: &Path, model: &Path, args: &str) -> Command {
    let mut command = program();
    command.current_dir(folder).arg("--model-path").arg(model).args(args.split(' ').filter(|arg| !arg.is_empty()));
    if !args.contains("--retries") {
        command.args(["--retries", "0"]);
    }
    command
}

/// Speaks the text in a folder of its own, and gives what became of `speech.wav` as well.
fn speak(model: &Path, args: &str) -> (Run, Vec<u8>) {
    let folder = folder();
    let mut command = program_in(folder.path(), model, args);
    command.args(["--text", TEXT, "--out", "speech.wav"]);
    let ran = run(command, b"");
    let wav = fs::read(folder.path().join("speech.wav")).unwrap_or_default();
    (ran, wav)
}

/// Samples of a WAV file of 16-bit integers.
fn samples(wav: &[u8]) -> Vec<i16> {
    let reader = hound::WavReader::new(wav).unwrap();
    let expected = hound::WavSpec {
        channels: 1,
        sample_rate: 24_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    assert_eq!(reader.spec(), expected);
    reader.into_samples().map(Result::unwrap).collect()
}

/// The parts of the last line, `wrote NAME: 3.72 s of audio in 5.91 s (RTF 1.59, end of speech, seed 42)`.
#[derive(Debug, PartialEq)]
struct Summary {
    name: String,
    audio_s: String,
    compute_s: f64,
    rtf: f64,
    stop: String,
    seed: u64,
}

/// Reads it strictly: nothing else may stand there.
fn summary(stderr: &str) -> Summary {
    let line = stderr.lines().last().unwrap();
    let parts = || {
        let (name, rest) = line.strip_prefix("wrote ")?.split_once(": ")?;
        let (audio_s, rest) = rest.split_once(" s of audio in ")?;
        let (compute_s, rest) = rest.split_once(" s (RTF ")?;
        let facts: Vec<&str> = rest.strip_suffix(")")?.split(", ").collect();
        // A draw after the first tells its temperature too.
        let (&[rtf, stop, seed], cooler) = facts.split_first_chunk()?;
        cooler.iter().all(|fact| fact.starts_with("temperature ")).then_some(())?;
        let two_decimals = |number: &str| number.split_once('.').is_some_and(|(_, digits)| digits.len() == 2);
        [audio_s, compute_s, rtf].into_iter().all(two_decimals).then_some(Summary {
            name: name.into(),
            audio_s: audio_s.into(),
            compute_s: compute_s.parse().ok()?,
            rtf: rtf.parse().ok()?,
            stop: stop.into(),
            seed: seed.strip_prefix("seed ")?.parse().ok()?,
        })
    };
    parts().unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn the_text_comes_from_a_flag_a_file_or_standard_input() {
    let folder = folder();
    fs::write(folder.path().join("words.txt"), TEXT).unwrap();
    fs::write(folder.path().join("marked.txt"), format!("\u{feff}{TEXT}\r\n")).unwrap();
    let spoken = |args: &[&str], stdin: &str| {
        let mut command = program_in(folder.path(), &whole(), "--seed 3 --max-frames 12 --quiet --out speech.wav");
        command.args(args);
        let Run { code, stdout, stderr } = run(command, stdin.as_bytes());
        let cut_off = "higgs-tts: warning: the sound is cut off: length cap\n";
        assert_eq!((code, &stdout[..], &stderr[..]), (Some(4), &b""[..], cut_off), "{args:?}");
        samples(&fs::read(folder.path().join("speech.wav")).unwrap())
    };
    let expected = spoken(&["--text", TEXT], "");
    assert_eq!(expected.len(), 12 * 960);
    assert_eq!(spoken(&["--text-file", "words.txt"], ""), expected);
    assert_eq!(spoken(&["--text-file", "marked.txt"], ""), expected);
    assert_eq!(spoken(&["--text-file", "-"], TEXT), expected);
    assert_eq!(spoken(&[], &format!("\n {TEXT}\n\n")), expected);
    // A text that is given leaves standard input alone.
    assert_eq!(spoken(&["--text", TEXT], "Something else."), expected);
    assert_ne!(spoken(&[], "Something else."), expected);
}

#[test]
fn the_wav_file_has_the_format_and_the_length_that_were_asked_for() {
    for (frames, count) in [(1, 960), (33, 31_680)] {
        let (_, integers) = speak(&whole(), &format!("--seed 3 --max-frames {frames}"));
        let (_, floats) = speak(&whole(), &format!("--seed 3 --max-frames {frames} --sample-format f32"));
        assert_eq!((integers.len(), floats.len()), (44 + 2 * count, 58 + 4 * count));
        let integers = samples(&integers);
        let reader = hound::WavReader::new(&floats[..]).unwrap();
        let expected = hound::WavSpec {
            channels: 1,
            sample_rate: 24_000,
            bits_per_sample: 32,
            sample_format: hound::SampleFormat::Float,
        };
        assert_eq!((reader.spec(), reader.len() as usize), (expected, count));
        let floats: Vec<f32> = reader.into_samples().map(Result::unwrap).collect();
        for (integer, float) in integers.iter().zip(&floats) {
            assert_eq!(*integer, (float.clamp(-1.0, 1.0) * 32_767.0).round() as i16);
        }
        assert!(integers.iter().collect::<HashSet<_>>().len() > 100, "it is a sound");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    let (_, first) = speak(&whole(), "--seed 7 --max-frames 12");
    let (_, again) = speak(&whole(), "--seed 7 --max-frames 12");
    let (_, other) = speak(&whole(), "--seed 8 --max-frames 12");
    assert!(first == again && first != other);
    assert_eq!((first.len(), other.len()), (44 + 2 * 12 * 960, 44 + 2 * 12 * 960));
}

#[test]
fn a_seed_that_was_made_up_is_told_and_gives_the_same_bytes_again() {
    let (ran, wav) = speak(&whole(), "--max-frames 12");
    let seed = summary(&ran.stderr).seed;
    let (ran, again) = speak(&whole(), &format!("--max-frames 12 --seed {seed}"));
    assert_eq!(summary(&ran.stderr).seed, seed);
    assert!(wav == again);
    let (ran, other) = speak(&whole(), "--max-frames 12");
    assert_ne!(summary(&ran.stderr).seed, seed);
    assert!(wav != other);
}

#[test]
fn every_sampling_flag_reaches_the_codes() {
    let (_, plain) = speak(&whole(), "--seed 7 --max-frames 12");
    for args in ["--temperature 1.5", "--temperature 0", "--top-k 2", "--top-k 0 --top-p 1", "--top-p 0.1"] {
        let (_, other) = speak(&whole(), &format!("--seed 7 --max-frames 12 {args}"));
        assert!(other.len() == plain.len() && other != plain, "{args}");
    }
    // The reference takes the low 31 bits of a seed: 2147483655 is 7 for it.
    let (_, large) = speak(&whole(), "--seed 2147483655 --max-frames 12");
    let reference = |seed: u64| speak(&whole(), &format!("--seed {seed} --max-frames 12 --sampler reference")).1;
    assert!(large != plain && reference(2_147_483_655) == reference(7));
    let greedy = |seed: u32| speak(&whole(), &format!("--seed {seed} --max-frames 12 --temperature 0")).1;
    assert!(greedy(1) == greedy(2), "the likeliest code needs no seed");
}

#[test]
fn the_summary_says_what_was_written_and_how_it_ended() {
    let (Run { code, stdout, stderr }, _) = speak(&whole(), "--seed 5 --max-frames 33");
    assert_eq!((code, &stdout[..], stderr.lines().count()), (Some(4), &b""[..], 1));
    let Summary { name, audio_s, compute_s, rtf, stop, seed } = summary(&stderr);
    assert_eq!((&name[..], &audio_s[..], &stop[..], seed), ("speech.wav", "1.32", "length cap", 5));
    // Both numbers are rounded to two decimals.
    assert!(compute_s > 0.0 && (rtf - compute_s / 1.32).abs() < 0.01, "{stderr}");
}

/// The one JSON object that stands on standard output.
fn json(ran: &Run) -> Value {
    let text = str::from_utf8(&ran.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(text).unwrap()
}

#[test]
fn json_tells_everything_about_the_result() {
    let (ran, wav) = speak(&whole(), "--seed 5 --max-frames 33 --json");
    let result = json(&ran);
    let mut keys: Vec<&str> = result.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let expected = [
        "audio_s",
        "clipped_samples",
        "compute_s",
        "faults",
        "frames",
        "healthy",
        "load_s",
        "out",
        "reference_frames",
        "retries",
        "rows",
        "rtf",
        "sample_rate_hz",
        "samples",
        "seed",
        "special_codes",
        "stop_reason",
        "temperature",
        "top_k",
        "top_p",
    ];
    assert_eq!(keys, expected);
    assert_eq!(result["out"], "speech.wav");
    assert_eq!(result["audio_s"], 1.32);
    assert_eq!(result["samples"], samples(&wav).len());
    assert_eq!(result["sample_rate_hz"], 24_000);
    assert_eq!((&result["frames"], &result["rows"]), (&33.into(), &40.into()));
    assert_eq!(result["stop_reason"], "length cap");
    assert_eq!((&result["healthy"], &result["faults"]), (&false.into(), &Value::Array(vec![])));
    assert_eq!((&result["retries"], &result["seed"]), (&0.into(), &5.into()));
    assert_eq!((&result["special_codes"], &result["clipped_samples"]), (&0.into(), &0.into()));
    assert_eq!((&result["top_k"], &result["reference_frames"]), (&50.into(), &Value::Null));
    let number = |key: &str| result[key].as_f64().unwrap();
    assert!((number("temperature") - 0.8).abs() < 1e-6 && (number("top_p") - 0.95).abs() < 1e-6);
    assert!(number("load_s") > 0.0 && number("compute_s") > 0.0);
    assert!((number("rtf") - number("compute_s") / 1.32).abs() < 1e-9);
    assert_eq!(summary(&ran.stderr).seed, 5, "the summary is told as well");

    let (ran, _) = speak(&whole(), "--seed 5 --max-frames 33 --json --quiet");
    assert_eq!(ran.stderr, "");
    assert_eq!(json(&ran)["samples"], 31_680);
}

#[test]
fn quiet_leaves_only_warnings() {
    let (Run { code, stdout, stderr }, wav) = speak(&whole(), "--seed 5 --max-frames 9 --quiet");
    let cut_off = "higgs-tts: warning: the sound is cut off: length cap\n";
    assert_eq!((code, &stdout[..], &stderr[..]), (Some(4), &b""[..], cut_off));
    assert_eq!(samples(&wav).len(), 8640);

    let folder = folder();
    let mut command = program_in(folder.path(), &whole(), "--seed 5 --max-frames 9 --quiet --out speech.wav");
    command.args(["--text", "Hello 😀 <|audio|> **you** <|sfx:laughter|>\u{7}"]);
    let expected = "higgs-tts: warning: `<|audio|>` is not a control tag and was left out of the text\n\
                    higgs-tts: warning: left out of the text: 1 emoji\n\
                    higgs-tts: warning: left out of the text: 1 invisible character\n\
                    higgs-tts: warning: left out of the text: 2 runs of markup such as `***`\n\
                    higgs-tts: warning: the sound is cut off: length cap\n";
    assert_eq!(run(command, b"").stderr, expected);
}

#[test]
fn speech_that_ends_by_itself_is_a_success() {
    let (ran, wav) = speak(&whole(), "--sampler reference --temperature 0 --seed 1 --json");
    assert_eq!(ran.code, Some(0));
    let Summary { audio_s, stop, .. } = summary(&ran.stderr);
    assert_eq!((&audio_s[..], &stop[..]), ("1.04", "end of speech"));
    assert_eq!(samples(&wav).len(), 26 * 960);
    let result = json(&ran);
    assert_eq!((&result["frames"], &result["healthy"]), (&26.into(), &true.into()));
}

#[test]
fn speech_that_reaches_the_cap_is_written_and_not_healthy() {
    let (ran, wav) = speak(&whole(), "--seed 5 --max-frames 33 --json");
    assert_eq!(ran.code, Some(4));
    assert_eq!(summary(&ran.stderr).stop, "length cap");
    assert_eq!(samples(&wav).len(), 33 * 960);
    assert_eq!(json(&ran)["healthy"], false);
    // Without a cap the text sets one: 18 letters and two marks, twice the time they take and four seconds.
    let (ran, wav) = speak(&whole(), "--seed 5");
    assert_eq!((ran.code, &summary(&ran.stderr).stop[..]), (Some(4), "length cap"));
    assert_eq!(samples(&wav).len(), 170 * 960);
}

#[test]
fn speech_that_repeats_itself_is_stopped_before_the_repetition() {
    let (ran, wav) = speak(&whole(), "--temperature 0.1 --seed 1 --max-frames 300 --retries 1 --json");
    assert_eq!(ran.code, Some(4));
    let (warnings, last) = ran.stderr.trim_end().rsplit_once('\n').unwrap();
    let expected = "higgs-tts: warning: the draw with seed 1 is not healthy (codebook 0 repeats itself, 1.5 s of hiss); \
                    drawing again with seed 2 at temperature 0.1\n\
                    higgs-tts: warning: the sound is not healthy: codebook 0 repeats itself, 1.5 s of hiss";
    assert_eq!(warnings, expected);
    assert_eq!((&summary(last).stop[..], summary(last).seed), ("repetition guard", 1));
    let result = json(&ran);
    assert_eq!(result["faults"], serde_json::json!(["codebook 0 repeats itself", "1.5 s of hiss"]));
    assert_eq!(result["retries"], 1);
    // The last 32 rows are the repetition, and are not heard.
    let rows = result["rows"].as_u64().unwrap() as usize;
    assert_eq!(samples(&wav).len(), (rows - 32) * 960);
    // Left alone, the same draw goes on to the cap.
    let (ran, whole) = speak(&whole(), "--temperature 0.1 --seed 1 --max-frames 300");
    assert_eq!((ran.code, &summary(&ran.stderr).stop[..]), (Some(4), "length cap"));
    assert_eq!(samples(&whole).len(), 300 * 960);
}

#[test]
fn a_draw_that_is_not_healthy_is_drawn_again_and_the_kept_one_can_be_repeated() {
    let folder = folder();
    let speak = |args: &str| {
        let ran = run(program_in(folder.path(), &whole(), &format!("--text No --out speech.wav --json {args}")), b"");
        (ran, fs::read(folder.path().join("speech.wav")).unwrap())
    };
    let (ran, wav) = speak("--seed 37 --retries 2");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let (warning, last) = ran.stderr.trim_end().split_once('\n').unwrap();
    let expected = "higgs-tts: warning: the draw with seed 37 is not healthy \
                    (no end after 4.3 s, where about 0.1 s are expected, 4.3 s of hiss); \
                    drawing again with seed 38 at temperature 0.7";
    assert_eq!(warning, expected);
    assert_eq!((&summary(last).stop[..], summary(last).seed), ("end of speech", 38));
    let result = json(&ran);
    assert_eq!((&result["retries"], &result["seed"], &result["healthy"]), (&1.into(), &38.into(), &true.into()));
    assert_eq!(samples(&wav).len(), 18 * 960);

    for retries in ["--retries 0", "--retries 2"] {
        let (ran, alone) = speak(&format!("--seed 38 --temperature 0.70 {retries}"));
        assert_eq!((ran.code, ran.stderr.lines().count()), (Some(0), 1), "{}", ran.stderr);
        assert_eq!(json(&ran)["retries"], 0);
        assert!(wav == alone);
    }
}

#[test]
fn when_no_draw_is_healthy_the_best_is_written_with_a_warning() {
    let (ran, wav) = speak(&whole(), "--seed 1 --retries 2 --json");
    assert_eq!(ran.code, Some(4));
    let again = |seed, next, temperature| {
        format!(
            "higgs-tts: warning: the draw with seed {seed} is not healthy \
             (no end after 6.8 s, where about 1.4 s are expected, 6.8 s of hiss); \
             drawing again with seed {next} at temperature {temperature}"
        )
    };
    let lines: Vec<&str> = ran.stderr.lines().collect();
    let last = "higgs-tts: warning: the sound is not healthy: no end after 6.8 s, where about 1.4 s are expected, 6.8 s of hiss";
    assert_eq!(lines[..3], [&again(1, 2, "0.7")[..], &again(2, 3, "0.6"), last]);
    assert_eq!(lines.len(), 4);
    let result = json(&ran);
    assert_eq!((&result["retries"], &result["seed"]), (&2.into(), &1.into()));
    assert_eq!(
        result["faults"],
        serde_json::json!(["no end after 6.8 s, where about 1.4 s are expected", "6.8 s of hiss"])
    );
    let (_, alone) = speak(&whole(), "--seed 1");
    assert!(wav == alone);
}

#[test]
fn a_voice_is_cloned_from_recordings_of_any_format_rate_and_channel_count() {
    let (_, own) = speak(&whole(), "--seed 5 --max-frames 12");
    for (file, described) in [
        ("two-tones.flac", "flac, 44100 Hz, 2 channels"),
        ("two-tones.opus", "ogg/opus, 48000 Hz, 2 channels"),
        ("surround.opus", "ogg/opus, 48000 Hz, 6 channels"),
        ("two-tones-alac.m4a", "isomp4/alac, 16000 Hz, 2 channels"),
        ("two-tones-pipe.wav", "wave/pcm_s16le, 16000 Hz, 2 channels"),
    ] {
        let path = data().join("audio").join(file).display().to_string();
        let (ran, wav) = speak(&whole(), &format!("--seed 5 --max-frames 12 --json --ref-audio {path}"));
        assert_eq!(ran.code, Some(4), "{}", ran.stderr);
        let [warning, voice, _] = ran.stderr.lines().collect::<Vec<_>>()[..] else { panic!("{}", ran.stderr) };
        assert_eq!(warning, format!("higgs-tts: warning: {path} lasts only 0.25 s: 5 to 30 s are best"));
        // It is filled to one second, which is 25 frames.
        let expected = format!("voice of {path} ({described}, 0.25 s): 25 frames without transcript in ");
        let seconds = voice.strip_prefix(&expected).and_then(|rest| rest.strip_suffix(" s"));
        assert!(seconds.is_some_and(|seconds| seconds.parse::<f64>().is_ok()), "{voice}");
        assert_eq!(json(&ran)["reference_frames"], 25);
        assert!(wav.len() == own.len() && wav != own, "{file}");
    }
}

#[test]
fn a_transcript_of_the_recording_reaches_the_prompt() {
    let path = data().join("clone/reference.wav").display().to_string();
    let clone = |args: &str| {
        let (ran, wav) = speak(&whole(), &format!("--seed 5 --max-frames 12 --json --ref-audio {path}{args}"));
        assert_eq!(json(&ran)["reference_frames"], 31);
        let voice = ran.stderr.lines().next().unwrap().to_owned();
        (voice.split_once("31 frames ").unwrap().1.split_once(" in ").unwrap().0.to_owned(), wav)
    };
    let (words, without) = clone("");
    assert_eq!(words, "without transcript");
    let (words, with) = clone(" --ref-text Well.");
    assert_eq!(words, "with transcript");
    let (_, with_another) = clone(" --ref-text Never!");
    assert!(without != with && with != with_another);
}

#[test]
fn on_standard_output_stand_the_bytes_of_the_file_and_nothing_else() {
    let (_, file) = speak(&whole(), "--seed 5 --max-frames 33");
    let folder = folder();
    let command = program_in(folder.path(), &whole(), "--seed 5 --max-frames 33 --out -");
    let Run { code, stdout, stderr } = run(command, TEXT.as_bytes());
    assert_eq!(code, Some(4));
    assert_eq!(samples(&stdout).len(), 31_680);
    assert!(stdout == file);
    assert_eq!(summary(&stderr).name, "standard output");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "a file called `-`");
}

#[test]
fn the_selftest_needs_the_codec_alone() {
    let (model, folder) = (tiny("cpu_fp32"), folder());
    for file in ["llm_decoder.onnx", "text_embed.onnx", "audio_heads.onnx", "tokenizer.json"] {
        fs::remove_file(model.path().join(file)).unwrap();
    }
    let ran = run(program_in(folder.path(), model.path(), "--selftest --out speech.wav --json"), b"");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.starts_with("wrote speech.wav: 2.00 s of audio in "), "{}", ran.stderr);
    assert!(ran.stderr.ends_with(" s (the codec works)\n") && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    let wav = samples(&fs::read(folder.path().join("speech.wav")).unwrap());
    assert_eq!(wav.len(), 48_000);
    assert!(wav.iter().any(|&sample| sample != 0));
    let result = json(&ran);
    assert_eq!(
        (&result["selftest"], &result["samples"], &result["audio_s"]),
        (&true.into(), &48_000.into(), &2.0.into())
    );
}

#[test]
fn a_file_that_was_there_is_replaced() {
    let folder = folder();
    let file = folder.path().join("speech.wav");
    fs::write(&file, vec![1; 1_000_000]).unwrap();
    let speak = |out: &str| {
        let command =
            program_in(folder.path(), &whole(), &format!("--text Hello. --seed 5 --max-frames 9 --out {out}"));
        assert_eq!(run(command, b"").code, Some(4));
    };
    speak("speech.wav");
    let wav = fs::read(&file).unwrap();
    assert_eq!(samples(&wav).len(), 8640);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::write(&file, "older").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("speech.wav", folder.path().join("link.wav")).unwrap();
        speak("link.wav");
        assert!(folder.path().join("link.wav").is_symlink());
        assert!(fs::read(&file).unwrap() == wav);
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }
}

#[test]
#[cfg(unix)]
fn an_interrupted_run_ends_at_once_and_writes_nothing() {
    use std::{
        io::{BufRead, BufReader, Read},
        process::Stdio,
        time::{Duration, Instant},
    };

    let reference = data().join("clone/reference.wav");
    for signal in ["INT", "TERM", "HUP"] {
        let folder = folder();
        // Random weights make hiss, so this is drawn again and again.
        let args = "--text Hello. --seed 1 --retries 1000 --out speech.wav";
        let mut command = program_in(folder.path(), &whole(), args);
        command.arg("--ref-audio").arg(&reference).stdin(Stdio::null()).stderr(Stdio::piped());
        fs::write(folder.path().join("speech.wav"), "an older file").unwrap();
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        // This line comes just before the speech.
        let mut line = String::new();
        stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("voice of "), "{line}");
        thread::sleep(Duration::from_millis(200));
        let start = Instant::now();
        assert!(Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap().success());
        let code = child.wait().unwrap().code();
        // A thousand draws take minutes.
        assert!(start.elapsed() < Duration::from_secs(20), "{signal}: {:?}", start.elapsed());
        let mut rest = String::new();
        stderr.read_to_string(&mut rest).unwrap();
        assert_eq!(code, Some(130), "{signal}: {rest}");
        assert!(rest.lines().all(|line| line.contains("; drawing again with seed ")), "{signal}: {rest}");
        assert_eq!(fs::read(folder.path().join("speech.wav")).unwrap(), b"an older file", "{signal}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "{signal}");
    }
}

#[test]
fn of_two_runs_into_one_file_one_whole_file_remains() {
    let folder = folder();
    let alone = [3, 4].map(|seed| speak(&whole(), &format!("--seed {seed} --max-frames 40")).1);
    thread::scope(|scope| {
        for seed in [3, 4] {
            let args = format!("--seed {seed} --max-frames 40 --out speech.wav");
            let command = program_in(folder.path(), &whole(), &args);
            scope.spawn(move || assert_eq!(run(command, TEXT.as_bytes()).code, Some(4)));
        }
    });
    let left = fs::read(folder.path().join("speech.wav")).unwrap();
    assert!(alone.contains(&left));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
#[cfg(all(unix, ort_bundled))]
fn a_run_leaves_the_unpacked_library_in_the_home_folder_and_nothing_else() {
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }
    let (home, temporary, folder) = (folder(), folder(), folder());
    let mut command = Command::new(env!("CARGO_BIN_EXE_higgs-tts"));
    command.env_clear().env("HOME", home.path()).env("TMPDIR", temporary.path()).env("PATH", "/usr/bin:/bin");
    command.current_dir(folder.path()).arg("--model-path").arg(whole());
    command.args(["--text", TEXT, "--max-frames", "9", "--out", "speech.wav"]);
    assert_eq!(run(command, b"").code, Some(4));
    // Official builds of ONNX Runtime would send telemetry from a thread of their own, and keep its state at home.
    thread::sleep(std::time::Duration::from_secs(2));
    let left = files(home.path());
    assert_eq!(left.len(), 1, "{left:?}");
    let left = left[0].strip_prefix(home.path()).unwrap().display().to_string();
    let cache = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    assert!(
        left.starts_with(&format!("{cache}/higgs-tts/onnxruntime/")) && left.contains("/libonnxruntime."),
        "{left}"
    );
    assert_eq!(files(temporary.path()), Vec::<PathBuf>::new());
    assert_eq!(files(folder.path()), [folder.path().join("speech.wav")]);
}

#[test]
fn the_model_folder_may_stand_in_the_environment_and_the_flag_wins() {
    let folder = folder();
    let speak = |variable: &Path, flag: Option<&Path>| {
        let mut command = program();
        command.current_dir(folder.path()).env("HIGGS_TTS_MODEL", variable);
        if let Some(flag) = flag {
            command.arg("--model-path").arg(flag);
        }
        command.args(["--text", TEXT, "--seed", "5", "--max-frames", "9", "--out", "speech.wav"]);
        run(command, b"")
    };
    assert_eq!(speak(&whole(), None).code, Some(4));
    assert_eq!(speak(Path::new("nowhere"), Some(&whole())).code, Some(4));
    let ran = speak(Path::new("nowhere"), None);
    assert_eq!((ran.code, &ran.stderr[..]), (Some(3), "higgs-tts: the model folder nowhere does not exist\n"));
}

#[test]
fn help_and_version_go_to_standard_output() {
    let told = |args: &[&str]| {
        let mut command = program();
        command.args(args);
        let Run { code, stdout, stderr } = run(command, b"");
        assert_eq!((code, &stderr[..]), (Some(0), ""), "{args:?}");
        String::from_utf8(stdout).unwrap()
    };
    assert_eq!(told(&["--version"]), format!("higgs-tts {}\n", env!("CARGO_PKG_VERSION")));
    let help = told(&["--help"]);
    for flag in [
        "--text <TEXT>",
        "--text-file <FILE>",
        "-o, --out <FILE>",
        "--sample-format <FORMAT>",
        "--ref-audio <FILE>",
        "--ref-text <TEXT>",
        "--model-path <DIR>",
        "--device <DEVICE>",
        "--codec-device <DEVICE>",
        "--threads <N>",
        "--selftest",
        "--temperature <T>",
        "--top-k <K>",
        "--top-p <P>",
        "--seed <N>",
        "--sampler <RULES>",
        "--max-frames <N>",
        "--retries <N>",
        "--json",
        "-q, --quiet",
        "[env: HIGGS_TTS_MODEL]",
        "[default: 0.8]",
        "[default: 0.95]",
        "[default: 50]",
        "130 interrupted",
    ] {
        assert!(help.contains(flag), "{flag}");
    }
    assert_eq!(told(&["help"]), help);
    assert!(told(&["-h"]).len() < help.len());
}

#[test]
#[cfg(ort_bundled)]
fn the_licence_of_onnx_runtime_is_printed() {
    let mut command = program();
    command.arg("licenses");
    let Run { code, stdout, stderr } = run(command, b"");
    assert_eq!((code, &stderr[..]), (Some(0), ""));
    let text = String::from_utf8(stdout).unwrap();
    for part in ["ONNX Runtime: LICENSE\n\nMIT License", "Microsoft Corporation", "ONNX Runtime: ThirdPartyNotices.txt"]
    {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn folders_of_every_precision_speak_on_the_cpu() {
    let mut sounds = HashSet::new();
    for name in ["cpu_fp32", "cpu_int4", "cuda_fp16", "cuda_int4"] {
        let model = tiny(name);
        let (ran, wav) = speak(model.path(), "--device cpu --seed 5 --max-frames 25");
        assert_eq!(ran.code, Some(4), "{name}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{name}: {}", ran.stderr);
        let wav = samples(&wav);
        assert_eq!(wav.len(), 25 * 960, "{name}");
        assert!(wav.iter().any(|sample| sample.unsigned_abs() > 300), "{name}");
        sounds.insert(wav);
    }
    // The weights of half precision round to other codes than those of 4 bits.
    assert!(sounds.len() > 1);
}

#[test]
fn any_number_of_threads_speaks() {
    for threads in [1, 2, 5] {
        let (ran, wav) = speak(&whole(), &format!("--threads {threads} --seed 5 --max-frames 9"));
        assert_eq!((ran.code, samples(&wav).len()), (Some(4), 8640), "{threads}");
    }
}

#[test]
fn a_file_beyond_the_limit_of_the_process_is_an_error_that_leaves_nothing() {
    let folder = folder();
    // Once without the limit, which the unpacked library would not fit in either.
    assert_eq!(run(program_in(folder.path(), &whole(), "--selftest --out speech.wav"), b"").code, Some(0));
    fs::remove_file(folder.path().join("speech.wav")).unwrap();
    let ordinary = program_in(folder.path(), &whole(), "--text Hello. --seed 5 --max-frames 25 --out speech.wav");
    // Ten blocks of 512 bytes or a kibibyte, by shell; a second of sound has 48,000 bytes.
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 10; exec \"$@\"", "sh"]).arg(ordinary.get_program()).args(ordinary.get_args());
    shell.current_dir(folder.path());
    for (name, value) in ordinary.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let Run { code, stderr, .. } = run(shell, b"");
    assert_eq!((code, &stderr[..]), (Some(1), "higgs-tts: cannot write `speech.wav`: File too large (os error 27)\n"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
