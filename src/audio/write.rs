//! Samples to a WAV file that appears whole or not at all, or to a stream.

use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

use super::Audio;
use crate::error::UserError;

/// How a sample is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SampleFormat {
    /// Integers of 16 bits: clipped to -1 to 1, times 32767, rounded to the nearest.
    ///
    /// The reference implementation truncates towards zero; rounding halves the largest error.
    #[default]
    Pcm16,
    /// IEEE floats of 32 bits: unchanged, and so also beyond -1 to 1.
    Float32,
}

impl SampleFormat {
    fn bytes(self) -> u16 {
        match self {
            Self::Pcm16 => 2,
            Self::Float32 => 4,
        }
    }
}

/// Where sound goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A file, or through its name a device or a named pipe.
    File(PathBuf),
    /// Standard output.
    Stdout,
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "`{}`", path.display()),
            Self::Stdout => f.write_str("standard output"),
        }
    }
}

/// What became of the samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Samples beyond -1 to 1 that were clipped; none in floats.
    pub clipped_samples: usize,
}

/// Finds out whether [`write()`] will be able to write there, before minutes go into the sound; leaves nothing behind.
///
/// # Errors
///
/// A [`UserError`] if the folder does not exist or cannot be written to, or if the path is a folder or a read-only file.
pub fn check(output: &Output) -> Result<()> {
    match output {
        Output::Stdout => Ok(()),
        Output::File(path) => Target::find(path).map(drop).with_context(|| format!("cannot write {output}")),
    }
}

/// Writes the sound as a mono WAV file.
///
/// A file appears whole or not at all: it grows under another name beside its own and is renamed when it is safe on the
/// disk. A file that was there before stays until then, and passes on its permissions; a symbolic link is followed.
///
/// # Errors
///
/// As for [`check`]; also if a sample is not a finite number, if there are more than 4 GiB of them, or if the disk is
/// full. When the reader of a pipe is gone, an [`io::Error`] of the kind `BrokenPipe` is in the chain.
pub fn write(output: &Output, audio: &Audio, format: SampleFormat) -> Result<Written> {
    encode_and_send(output, audio, format).with_context(|| format!("cannot write {output}"))
}

fn encode_and_send(output: &Output, audio: &Audio, format: SampleFormat) -> Result<Written> {
    let (bytes, written) = encode(audio, format)?;
    match output {
        Output::Stdout => send(&mut io::stdout().lock(), &bytes)?,
        Output::File(path) => Target::find(path)?.fill(|file| send(file, &bytes))?,
    }
    Ok(written)
}

/// The header of a mono WAV file, up to the first sample; `data_bytes` of `None` is for a stream of unknown length,
/// whose sizes are 0xFFFFFFFF.
///
/// 44 bytes for integers. Floats take 58, as every format but PCM needs an extension size and a `fact` chunk.
pub fn wav_header(format: SampleFormat, sample_rate_hz: u32, data_bytes: Option<u32>) -> Vec<u8> {
    let sample_bytes = format.bytes();
    let (tag, extension): (u16, &[u8]) = match format {
        SampleFormat::Pcm16 => (1, &[]),
        SampleFormat::Float32 => (3, &[0, 0]),
    };
    let mut chunks = b"WAVEfmt ".to_vec();
    chunks.extend((16 + extension.len() as u32).to_le_bytes());
    chunks.extend(tag.to_le_bytes());
    chunks.extend(1u16.to_le_bytes());
    chunks.extend(sample_rate_hz.to_le_bytes());
    chunks.extend(sample_rate_hz.wrapping_mul(sample_bytes.into()).to_le_bytes());
    chunks.extend(sample_bytes.to_le_bytes());
    chunks.extend((8 * sample_bytes).to_le_bytes());
    chunks.extend(extension);
    if format == SampleFormat::Float32 {
        chunks.extend(b"fact\x04\0\0\0");
        chunks.extend(data_bytes.map_or(u32::MAX, |bytes| bytes / u32::from(sample_bytes)).to_le_bytes());
    }
    chunks.extend(b"data");
    chunks.extend(data_bytes.unwrap_or(u32::MAX).to_le_bytes());
    let riff_bytes = data_bytes.map_or(u32::MAX, |bytes| bytes.saturating_add(chunks.len() as u32));
    [b"RIFF", &riff_bytes.to_le_bytes()[..], &chunks].concat()
}

fn encode(audio: &Audio, format: SampleFormat) -> Result<(Vec<u8>, Written)> {
    let Audio { samples, sample_rate_hz } = audio;
    ensure!(samples.iter().all(|sample| sample.is_finite()), "some samples are not finite numbers");
    let data_bytes = samples.len().saturating_mul(format.bytes().into());
    let data_bytes = u32::try_from(data_bytes).context("a WAV file holds 4 GiB at most")?;
    let mut bytes = wav_header(format, *sample_rate_hz, Some(data_bytes));
    let clipped_samples = match format {
        SampleFormat::Pcm16 => {
            bytes.extend(samples.iter().flat_map(|sample| pcm16(*sample).to_le_bytes()));
            samples.iter().filter(|sample| sample.abs() > 1.0).count()
        }
        SampleFormat::Float32 => {
            bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
            0
        }
    };
    Ok((bytes, Written { clipped_samples }))
}

fn pcm16(sample: f32) -> i16 {
    (sample.clamp(-1.0, 1.0) * 32767.0).round() as i16
}

fn send(sink: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    sink.write_all(bytes)?;
    sink.flush()
}

/// What a path leads to.
enum Target {
    /// A device or a named pipe, which is written to as it is.
    Stream(PathBuf),
    /// A file: its future content, its path, and the permissions it has already.
    File { part: NamedTempFile, path: PathBuf, permissions: Option<Permissions> },
}

impl Target {
    fn find(path: &Path) -> Result<Self> {
        let permissions = match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return refuse("it is a folder, and a file is wanted"),
            Ok(metadata) if !metadata.is_file() => return Ok(Self::Stream(path.into())),
            Ok(metadata) if metadata.permissions().readonly() => return refuse("it is read-only"),
            Ok(metadata) => Some(metadata.permissions()),
            Err(_) => None,
        };
        let path = follow_links(path)?;
        let part = create_part(&path)?;
        Ok(Self::File { part, path, permissions })
    }

    fn fill(self, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::Stream(path) => content(&mut OpenOptions::new().write(true).open(path)?),
            Self::File { mut part, path, permissions } => {
                content(part.as_file_mut())?;
                if let Some(permissions) = permissions {
                    part.as_file().set_permissions(permissions)?;
                }
                part.as_file().sync_all()?;
                part.persist(path)?;
                Ok(())
            }
        }
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(UserError::request(why).into())
}

/// A file beside `path` for its content until that is complete, removed when dropped.
fn create_part(path: &Path) -> Result<NamedTempFile> {
    let Some(name) = path.file_name() else {
        return refuse("it is not the name of a file");
    };
    // As with `new/`, which would fail only when the sound is renamed.
    if !path.as_os_str().as_encoded_bytes().ends_with(name.as_encoded_bytes()) {
        return refuse("it is not the name of a file");
    }
    let folder = folder_of(path);
    match fs::metadata(folder) {
        Ok(metadata) if !metadata.is_dir() => return refuse(format!("`{}` is not a folder", folder.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return refuse(format!("the folder `{}` does not exist", folder.display()));
        }
        _ => {}
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".higgs-tts.").suffix(".part");
    // Temporary files are private by default; this one becomes an ordinary file, within what the umask allows.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let unwritable = || UserError::request(format!("no file can be created in the folder `{}`", folder.display()));
    // The error's own text names the temporary file, which nobody asked for.
    builder.tempfile_in(folder).map_err(|error| io::Error::from(error.kind())).with_context(unwritable)
}

/// The folder that a path is in, `.` for a bare name.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The path at the end of a chain of symbolic links, even if nothing is there yet. Renaming onto a link would replace
/// the link, and leave what it points to as it was.
fn follow_links(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_path_buf();
    // As many as Linux follows.
    for _ in 0..40 {
        match fs::read_link(&path) {
            Ok(next) => path = folder_of(&path).join(next),
            Err(_) => return Ok(path),
        }
    }
    refuse("there are too many symbolic links on the way")
}

#[cfg(test)]
mod tests;
