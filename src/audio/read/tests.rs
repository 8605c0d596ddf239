use std::f64::consts::TAU;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use hound::{SampleFormat, WavSpec, WavWriter};
use proptest::prelude::*;

use super::*;
use crate::error::Fault;

const RECORDINGS: [&str; 12] = [
    "surround.opus",
    "two-tones-alac.m4a",
    "two-tones-pipe.wav",
    "two-tones.aac",
    "two-tones.aiff",
    "two-tones.caf",
    "two-tones.flac",
    "two-tones.m4a",
    "two-tones.mp3",
    "two-tones.ogg",
    "two-tones.opus",
    "two-tones.webm",
];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/audio").join(name)
}

fn read_bytes(bytes: &[u8]) -> Result<Recording> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    read(file.path(), 10.0)
}

/// Reads what cannot be read, and gives what was found instead.
fn found(bytes: &[u8]) -> String {
    let error = read_bytes(bytes).unwrap_err();
    assert_eq!(error.downcast_ref::<UserError>().unwrap().fault(), Fault::Request);
    format!("{error:#}").split_once("`: ").unwrap().1.to_string()
}

fn wav(spec: WavSpec, write: impl Fn(&mut WavWriter<&mut Cursor<Vec<u8>>>)) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = WavWriter::new(&mut bytes, spec).unwrap();
    write(&mut writer);
    writer.finalize().unwrap();
    bytes.into_inner()
}

fn spec(channels: u16, bits_per_sample: u16, sample_format: SampleFormat) -> WavSpec {
    WavSpec { channels, sample_rate: 16_000, bits_per_sample, sample_format }
}

fn mono_wav(samples: &[i16]) -> Vec<u8> {
    wav(spec(1, 16, SampleFormat::Int), |writer| samples.iter().for_each(|s| writer.write_sample(*s).unwrap()))
}

/// Amplitudes of the sine and the cosine at `hz`, in the middle half of the quarter second after `late_samples`.
fn amplitudes(audio: &Audio, late_samples: usize, hz: f64) -> (f64, f64) {
    let rate = audio.sample_rate_hz as usize;
    let (mut sine, mut cosine) = (0.0, 0.0);
    for i in rate / 16..rate / 16 * 3 {
        let (s, c) = (TAU * hz * i as f64 / rate as f64).sin_cos();
        sine += s * f64::from(audio.samples[i + late_samples]);
        cosine += c * f64::from(audio.samples[i + late_samples]);
    }
    let scale = 2.0 / (rate / 8) as f64;
    (sine * scale, cosine * scale)
}

#[test]
fn every_format_gives_the_mean_of_its_channels_in_place() {
    // Encoders put silence before the sound and say how much, in places that are read for all formats but AAC.
    for (name, format, channels, rate_hz, samples, late_samples) in [
        ("surround.opus", "ogg/opus", 6, 48_000, 12_000, 0),
        ("two-tones-alac.m4a", "isomp4/alac", 2, 16_000, 4000, 0),
        ("two-tones-pipe.wav", "wave/pcm_s16le", 2, 16_000, 4000, 0),
        ("two-tones.aac", "aac", 2, 44_100, 12_288, 1024),
        ("two-tones.aiff", "aiff/pcm_s16be", 2, 16_000, 4000, 0),
        ("two-tones.caf", "caf/pcm_s16le", 2, 16_000, 4000, 0),
        ("two-tones.flac", "flac", 2, 44_100, 11_025, 0),
        ("two-tones.m4a", "isomp4/aac", 2, 44_100, 12_288, 1024),
        ("two-tones.mp3", "mp3", 2, 44_100, 11_025, 0),
        ("two-tones.ogg", "ogg/vorbis", 2, 44_100, 11_025, 0),
        ("two-tones.opus", "ogg/opus", 2, 48_000, 12_000, 0),
        ("two-tones.webm", "matroska/opus", 2, 48_000, 12_168, 0),
    ] {
        let recording = read(&data(name), 10.0).unwrap();
        let audio = &recording.audio;
        assert_eq!((&recording.format[..], recording.channels), (format, channels), "{name}");
        assert_eq!((audio.sample_rate_hz, audio.samples.len()), (rate_hz, samples), "{name}");
        assert_eq!(recording.damaged_packets, 0, "{name}");
        for (hz, amplitude) in [(440.0, 0.5), (1000.0, 0.25)] {
            let (sine, cosine) = amplitudes(audio, late_samples, hz);
            let off = (sine - amplitude / channels as f64).hypot(cosine);
            // The MP3 encoder takes 5 % off to have headroom.
            assert!(off < 0.015, "{name}, {hz} Hz: sine {sine}, cosine {cosine}");
        }
    }
}

#[test]
fn every_depth_of_wav_gives_the_same_samples() {
    for bits in [8, 16, 24, 32] {
        let unit = 1 << (bits - 2);
        let bytes = wav(spec(1, bits, SampleFormat::Int), |writer| {
            [0, unit, -unit, -2 * unit].iter().for_each(|sample| writer.write_sample(*sample).unwrap());
        });
        assert_eq!(read_bytes(&bytes).unwrap().audio.samples, [0.0, 0.5, -0.5, -1.0], "{bits} bits");
    }
    let bytes = wav(spec(1, 32, SampleFormat::Float), |writer| {
        [0.0, 0.1, -3.5].iter().for_each(|sample: &f32| writer.write_sample(*sample).unwrap());
    });
    assert_eq!(read_bytes(&bytes).unwrap().audio.samples, [0.0, 0.1, -3.5]);
    let double = [1.0f64, -0.1].map(f64::to_le_bytes).concat();
    let header = b"RIFF\x34\0\0\0WAVEfmt \x10\0\0\0\x03\0\x01\0\x80\x3e\0\0\0\xf4\x01\0\x08\0\x40\0data\x10\0\0\0";
    let recording = read_bytes(&[&header[..], &double].concat()).unwrap();
    assert_eq!(recording.format, "wave/pcm_f64le");
    assert_eq!(recording.audio, Audio { samples: vec![1.0, -0.1], sample_rate_hz: 16_000 });
}

#[test]
fn all_channels_weigh_the_same() {
    let samples = [8192, 16384, 0, -8192, 0, 32767];
    let bytes = |channels| {
        wav(spec(channels, 16, SampleFormat::Int), |writer| {
            samples.iter().for_each(|sample| writer.write_sample(*sample as i16).unwrap());
        })
    };
    assert_eq!(read_bytes(&bytes(2)).unwrap().audio.samples, [0.375, -0.125, 32767.0 / 65536.0]);
    assert_eq!(read_bytes(&bytes(3)).unwrap().audio.samples[0], 0.25);
    assert_eq!(read_bytes(&bytes(6)).unwrap().channels, 6);
}

#[test]
fn a_truncated_recording_gives_what_is_there() {
    let whole = mono_wav(&[1000; 4000]);
    assert_eq!(read_bytes(&whole[..44 + 2000]).unwrap().audio.samples, [1000.0 / 32768.0; 1000]);
    for name in ["two-tones-pipe.wav", "two-tones.aac", "two-tones.flac", "two-tones.mp3"] {
        let bytes = fs::read(data(name)).unwrap();
        let whole = read(&data(name), 10.0).unwrap().audio.samples.len();
        let part = read_bytes(&bytes[..bytes.len() * 3 / 4]).unwrap().audio.samples.len();
        assert!(part > whole / 4 && part < whole, "{name}: {part} of {whole} samples");
    }
}

#[test]
fn a_recording_that_cannot_be_understood_without_its_end_is_called_incomplete() {
    assert_eq!(found(&mono_wav(&[1000; 4000])[..30]), "it is incomplete");
    for name in ["two-tones.aiff", "two-tones.caf"] {
        let bytes = fs::read(data(name)).unwrap();
        assert_eq!(found(&bytes[..bytes.len() * 3 / 4]), "it is incomplete", "{name}");
    }
}

#[test]
fn what_is_not_audio_is_named() {
    assert_eq!(found(b""), "it is empty, and an audio file is wanted");
    assert_eq!(found("Guten Tag, schöne Welt\n".as_bytes()), "it is text, and an audio file is wanted");
    assert_eq!(found(b"\n <!DOCTYPE html>"), "it is HTML or XML, and an audio file is wanted");
    assert_eq!(found(b"{\"error\": \"not found\"}"), "it is JSON, and an audio file is wanted");
    let pointer = found(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    assert_eq!(pointer, "it is a Git LFS pointer, not the file it stands for, and an audio file is wanted");
    // The end of the part that is looked at cuts the last letter in two.
    assert_eq!(found(format!("a{}", "ö".repeat(1000)).as_bytes()), "it is text, and an audio file is wanted");
    assert_eq!(found(b"PK\x03\x04\0\0\0\0 a zip"), "it is in no known audio format, or incomplete");
    assert_eq!(found(&[0; 100_000]), "it is in no known audio format, or incomplete");
}

#[test]
fn paths_that_cannot_be_opened_are_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| format!("{:#}", read(path, 10.0).unwrap_err());
    let missing = folder.path().join("x.wav");
    assert_eq!(message(&missing), format!("cannot read `{}`: there is no such file", missing.display()));
    let expected = format!("cannot read `{}`: it is a folder, and an audio file is wanted", folder.path().display());
    assert_eq!(message(folder.path()), expected);
}

#[test]
fn headers_that_promise_nothing_or_the_impossible_are_refused() {
    assert_eq!(found(&mono_wav(&[])), "it holds no sound");
    let with = |at: usize, field: &[u8]| {
        let mut bytes = mono_wav(&[1; 4000]);
        bytes[at..at + field.len()].copy_from_slice(field);
        bytes
    };
    for (what, at, field) in [("no channels", 22, [0, 0]), ("no bits", 34, [0, 0]), ("5 bits", 34, [5, 0])] {
        let found = found(&with(at, &field));
        assert!(found.starts_with("it is damaged: "), "{what}: {found}");
    }
    for rate_hz in [0u32, 3999, 384_001, u32::MAX] {
        let expected = format!("its rate is {rate_hz} Hz, and 4000 to 384000 Hz are possible");
        assert_eq!(found(&with(24, &rate_hz.to_le_bytes())), expected);
    }
    for rate_hz in [4000u32, 384_000] {
        assert_eq!(read_bytes(&with(24, &rate_hz.to_le_bytes())).unwrap().audio.sample_rate_hz, rate_hz);
    }
}

#[test]
fn headers_that_would_reserve_much_memory_are_refused() {
    let refusal = |params: &AudioCodecParameters| find_decoder(params).err().unwrap();
    let mut params = AudioCodecParameters::new();
    params.with_channels(Channels::Discrete(300));
    assert_eq!(refusal(&params), "it has 300 channels, and 256 are possible");
    params.with_channels(Channels::Discrete(1)).with_max_frames_per_packet(u64::MAX);
    assert_eq!(refusal(&params), "it is damaged: its packets are too long");
}

#[test]
fn samples_that_are_not_numbers_are_damage() {
    for sample in [f32::NAN, f32::INFINITY] {
        let bytes = wav(spec(1, 32, SampleFormat::Float), |writer| {
            [0.0, sample].iter().for_each(|sample| writer.write_sample(*sample).unwrap());
        });
        assert_eq!(found(&bytes), "it is damaged: some samples are not finite numbers");
    }
}

#[test]
fn a_long_recording_is_refused_and_one_of_just_the_limit_is_not() {
    let just = mono_wav(&vec![1; 160_000]);
    assert_eq!(read_bytes(&just).unwrap().audio.duration_s(), 10.0);
    assert_eq!(found(&mono_wav(&vec![1; 160_001])), "it is longer than 10 s");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_read_like_a_file() {
    let (reader, mut writer) = io::pipe().unwrap();
    let bytes = fs::read(data("two-tones.m4a")).unwrap();
    let feeder = std::thread::spawn(move || writer.write_all(&bytes).unwrap());
    let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
    assert_eq!(read(Path::new(&path), 10.0).unwrap(), read(&data("two-tones.m4a"), 10.0).unwrap());
    feeder.join().unwrap();
}

fn holds_together(bytes: &[u8]) {
    match read_bytes(bytes) {
        Ok(Recording { audio, channels, .. }) => {
            assert!(channels > 0 && !audio.samples.is_empty());
            assert!(audio.samples.iter().all(|sample| sample.is_finite()));
            assert!(SAMPLE_RATES_HZ.contains(&audio.sample_rate_hz) && audio.duration_s() <= 10.0);
        }
        Err(error) => assert!(error.downcast_ref::<UserError>().is_some()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        holds_together(&bytes);
    }

    #[test]
    fn damaged_recordings_never_panic(
        name in prop::sample::select(&RECORDINGS[..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        near_start in any::<bool>(),
        len in any::<prop::sample::Index>(),
    ) {
        let mut bytes = fs::read(data(name)).unwrap();
        let reach = if near_start { 400 } else { bytes.len() };
        for (at, byte) in changes {
            bytes[at.index(reach)] = byte;
        }
        bytes.truncate(len.index(2 * bytes.len()));
        holds_together(&bytes);
    }
}
