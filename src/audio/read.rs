//! Any recording to mono samples.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Cursor, Read, Seek};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result};
use symphonia::core::audio::Channels;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::registry::CodecRegistry;
use symphonia::core::errors::Error as SymphoniaError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use super::Audio;
use super::opus::OpusDecoder;
use crate::error::UserError;

/// Rates outside are damage, not sound: telephones use 8 kHz, and the fastest converters 384 kHz.
const SAMPLE_RATES_HZ: std::ops::RangeInclusive<u32> = 4_000..=384_000;

/// Decoders reserve memory for one packet of all channels before they have seen any, so a header must not ask for much.
const MAX_CHANNELS: usize = 256;

/// Twice the longest packet of any codec, which is one of FLAC.
const MAX_PACKET_FRAMES: u64 = 1 << 17;

/// Enough to tell text from sound.
const HEAD_BYTES: u64 = 512;

/// The most that is taken from a pipe, which has to be held in memory.
const MAX_PIPE_BYTES: u64 = 1 << 28;

/// A recording as read, still at its own rate.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// The mean of the channels.
    pub audio: Audio,
    /// Container and codec in short, such as `wave/pcm_s16le`, or one word where they are the same, such as `flac`.
    pub format: String,
    /// Channels before mixing.
    pub channels: usize,
    /// Packets that were damaged and are missing from the sound.
    pub damaged_packets: usize,
}

/// Reads a recording of any common format and mixes it to mono.
///
/// Formats: WAV, AIFF, CAF, FLAC, MP3, AAC; Vorbis, Opus, FLAC, AAC, ALAC and PCM in Ogg, MP4 and Matroska. The name
/// does not matter. A truncated file gives what is there, unless its format cannot be understood without the end. AAC
/// keeps the silence that its encoder put in front, some 20 to 50 ms.
///
/// Not much more than `max_duration_s` seconds are decoded, whatever the length of the file.
///
/// # Errors
///
/// A [`UserError`] if the file cannot be opened, is not audio, is longer than `max_duration_s`, or holds no sound,
/// samples that are not finite, or a rate outside 4 to 384 kHz.
pub fn read(path: &Path, max_duration_s: f64) -> Result<Recording> {
    // The decoders parse foreign bytes: should one of them panic, then the file is at fault and not the caller.
    catch_unwind(AssertUnwindSafe(|| decode(open(path)?, max_duration_s)))
        .unwrap_or_else(|_| Err("it is damaged: its decoder gave up".into()))
        .map_err(UserError::request)
        .with_context(|| format!("cannot read `{}`", path.display()))
}

/// What is wrong with a recording, to follow "cannot read `x`".
type Found = String;

fn damaged(error: impl Display) -> Found {
    format!("it is damaged: {error}")
}

fn open(path: &Path) -> Result<Box<dyn MediaSource>, Found> {
    let in_words = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        _ => error.to_string(),
    };
    let file = File::open(path).map_err(in_words)?;
    let metadata = file.metadata().map_err(in_words)?;
    if metadata.is_dir() {
        return Err("it is a folder, and an audio file is wanted".into());
    }
    let mut source: Box<dyn MediaSource> = if metadata.is_file() {
        Box::new(file)
    } else {
        let mut bytes = Vec::new();
        file.take(MAX_PIPE_BYTES).read_to_end(&mut bytes).map_err(in_words)?;
        Box::new(Cursor::new(bytes))
    };
    let mut head = Vec::new();
    source.by_ref().take(HEAD_BYTES).read_to_end(&mut head).map_err(in_words)?;
    source.rewind().map_err(in_words)?;
    match not_audio(&head) {
        Some(what) => Err(format!("it is {what}, and an audio file is wanted")),
        None => Ok(source),
    }
}

/// What a file is that starts with nothing, or with text: every header of audio holds bytes that text does not.
fn not_audio(head: &[u8]) -> Option<&'static str> {
    let text = match str::from_utf8(head) {
        Ok(text) => text,
        // The end of the head may cut a character.
        Err(error) if error.error_len().is_none() => str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default(),
        Err(_) => return None,
    };
    match text.trim_start_matches('\u{feff}').trim_start() {
        _ if head.is_empty() => Some("empty"),
        _ if text.contains(|c: char| c.is_control() && !c.is_whitespace()) => None,
        text if text.starts_with("version https://git-lfs") => Some("a Git LFS pointer, not the file it stands for"),
        text if text.starts_with('<') => Some("HTML or XML"),
        text if text.starts_with(['{', '[']) => Some("JSON"),
        _ => Some("text"),
    }
}

fn decode(source: Box<dyn MediaSource>, max_duration_s: f64) -> Result<Recording, Found> {
    let mut container = find_container(source)?;
    let track = container.default_track(TrackType::Audio).ok_or("it has no audio track")?;
    let track_id = track.id;
    let params = track.codec_params.as_ref().and_then(|params| params.audio()).ok_or("its codec is unknown")?;
    let mut decoder = find_decoder(params)?;
    let (container_name, codec) = (container.format_info().short_name, decoder.codec_info().short_name);
    let mut recording = Recording {
        audio: Audio { samples: Vec::new(), sample_rate_hz: 0 },
        format: if container_name == codec { codec.into() } else { format!("{container_name}/{codec}") },
        channels: 0,
        damaged_packets: 0,
    };
    while let Some(packet) = next_packet(&mut *container)? {
        if packet.track_id == track_id {
            recording.append_packet(&packet, &mut *decoder)?;
        }
        if recording.audio.duration_s() > max_duration_s {
            return Err(format!("it is longer than {max_duration_s} s"));
        }
    }
    match &recording.audio.samples[..] {
        [] if recording.damaged_packets > 0 => Err(damaged("none of it can be decoded")),
        [] => Err("it holds no sound".into()),
        samples if samples.iter().all(|sample| sample.is_finite()) => Ok(recording),
        _ => Err(damaged("some samples are not finite numbers")),
    }
}

fn find_container(source: Box<dyn MediaSource>) -> Result<Box<dyn FormatReader>, Found> {
    let stream = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
    symphonia::default::get_probe()
        .probe(&Hint::new(), stream, FormatOptions::default(), MetadataOptions::default())
        .map_err(|error| match error {
            SymphoniaError::Unsupported(_) => "it is in no known audio format, or incomplete".into(),
            SymphoniaError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => "it is incomplete".into(),
            error => damaged(error),
        })
}

fn find_decoder(params: &AudioCodecParameters) -> Result<Box<dyn AudioDecoder>, Found> {
    let channels = params.channels.as_ref().map_or(0, Channels::count);
    if channels > MAX_CHANNELS {
        return Err(format!("it has {channels} channels, and {MAX_CHANNELS} are possible"));
    }
    if params.max_frames_per_packet.is_some_and(|frames| frames > MAX_PACKET_FRAMES) {
        return Err(damaged("its packets are too long"));
    }
    let mut codecs = CodecRegistry::new();
    symphonia::default::register_enabled_codecs(&mut codecs);
    codecs.register_audio_decoder::<OpusDecoder>();
    codecs
        .make_audio_decoder(params, &AudioDecoderOptions::default())
        .map_err(|error| format!("its sound cannot be decoded: {error}"))
}

/// The next packet; nothing at the end, even if the file ends earlier than its header says.
fn next_packet(container: &mut dyn FormatReader) -> Result<Option<Packet>, Found> {
    match container.next_packet() {
        Ok(packet) => Ok(packet),
        Err(SymphoniaError::IoError(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(SymphoniaError::ResetRequired) => Err("it is several recordings in one, and a single one is wanted".into()),
        Err(error) => Err(damaged(error)),
    }
}

impl Recording {
    fn append_packet(&mut self, packet: &Packet, decoder: &mut dyn AudioDecoder) -> Result<(), Found> {
        let buffer = match decoder.decode(packet) {
            Ok(buffer) if buffer.is_empty() => return Ok(()),
            Ok(buffer) => buffer,
            Err(SymphoniaError::DecodeError(_) | SymphoniaError::IoError(_)) => {
                self.damaged_packets += 1;
                return Ok(());
            }
            Err(error) => return Err(damaged(error)),
        };
        let Audio { samples, sample_rate_hz } = &mut self.audio;
        let rate_hz = buffer.spec().rate();
        if !SAMPLE_RATES_HZ.contains(&rate_hz) {
            return Err(format!("its rate is {rate_hz} Hz, and 4000 to 384000 Hz are possible"));
        }
        if !samples.is_empty() && *sample_rate_hz != rate_hz {
            return Err(format!("its rate changes from {sample_rate_hz} to {rate_hz} Hz"));
        }
        *sample_rate_hz = rate_hz;
        self.channels = buffer.num_planes();
        let mut interleaved = Vec::<f32>::new();
        buffer.copy_to_vec_interleaved(&mut interleaved);
        samples.extend(interleaved.chunks_exact(self.channels).map(mean));
        Ok(())
    }
}

fn mean(frame: &[f32]) -> f32 {
    frame.iter().sum::<f32>() / frame.len() as f32
}

#[cfg(test)]
mod tests;
