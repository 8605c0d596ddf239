//! The shared library inside this program, and its copy on disk.

use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, ensure};
use sha2::{Digest, Sha256};

use crate::error::UserError;

include!(concat!(env!("OUT_DIR"), "/onnxruntime.rs"));

/// How closely a copy that exists is looked at before it is used.
#[derive(Clone, Copy)]
pub(super) enum Check {
    /// Its length. Enough as a rule: only whole files are renamed into place.
    Length,
    /// Its SHA-256, in a tenth of a second.
    Content,
}

/// The path of the copy on disk. One that is missing or fails the check is written anew.
pub(super) fn on_disk(check: Check) -> Result<PathBuf> {
    let file = location()?;
    if !intact(&file, check) {
        write(&file).with_context(|| format!("cannot unpack it to `{}`", file.display()))?;
    }
    Ok(file)
}

/// A path that leads to the library in memory, for machines where no file can be written, or none in the cache folder
/// executed. Costs 0.15 s at every start.
#[cfg(target_os = "linux")]
pub(super) fn in_memory() -> Result<PathBuf> {
    use std::os::fd::IntoRawFd;

    use rustix::fs::{MemfdFlags, memfd_create};

    let mut file = File::from(memfd_create("onnxruntime", MemfdFlags::CLOEXEC)?);
    file.write_all(&library()?)?;
    // Left open: the path leads to the library for as long as the process lives.
    Ok(format!("/proc/self/fd/{}", file.into_raw_fd()).into())
}

/// Only Linux opens a library in memory.
#[cfg(not(target_os = "linux"))]
pub(super) fn in_memory() -> Result<PathBuf> {
    anyhow::bail!("no folder to unpack it in")
}

/// Compares the copy on disk, if there is one, with what this program carries.
pub(super) fn verify() -> Result<()> {
    let Ok(file) = location() else { return Ok(()) };
    if file.exists() && !intact(&file, Check::Content) {
        let error = UserError::model(format!("the ONNX Runtime unpacked to `{}` is damaged", file.display()));
        return Err(error.with_hint("remove that file: it is unpacked anew at the next start").into());
    }
    Ok(())
}

/// The texts that came with the library, each under its title.
pub(super) fn notices() -> Result<String> {
    let texts = NOTICES.iter().map(|(title, stream)| {
        let text = inflate(stream).with_context(|| format!("cannot read the {title} of ONNX Runtime"))?;
        Ok(format!("ONNX Runtime: {title}\n\n{}\n", String::from_utf8_lossy(&text)))
    });
    texts.collect()
}

/// Where the copy belongs. The folder is named after its content, so that different builds do not overwrite each
/// other's.
fn location() -> Result<PathBuf> {
    let cache = cache_folder(|name| env::var_os(name), env::home_dir()).context("there is no cache folder")?;
    Ok(std::path::absolute(cache)?.join("onnxruntime").join(&SHA256[..16]).join(FILE_NAME))
}

/// `HIGGS_TTS_CACHE` as it is, else `higgs-tts` in the user's cache folder.
fn cache_folder(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let (name, in_home) = match env::consts::OS {
        "windows" => ("LOCALAPPDATA", "AppData/Local"),
        "macos" => ("XDG_CACHE_HOME", "Library/Caches"),
        _ => ("XDG_CACHE_HOME", ".cache"),
    };
    folder("HIGGS_TTS_CACHE").or_else(|| {
        let user = folder(name).filter(|user| user.is_absolute());
        let user = user.or_else(|| home.filter(|home| home.is_absolute()).map(|home| home.join(in_home)));
        user.map(|user| user.join("higgs-tts"))
    })
}

/// Whether the file can be read and passes the check.
fn intact(file: &Path, check: Check) -> bool {
    match check {
        Check::Length => File::open(file).and_then(|file| file.metadata()).is_ok_and(|it| it.len() == LENGTH as u64),
        Check::Content => fs::read(file).is_ok_and(|bytes| sha256(&bytes) == SHA256),
    }
}

/// Writes under a random name first: whoever starts at the same time finds the whole library or none.
fn write(file: &Path) -> Result<()> {
    let folder = file.parent().context("no parent folder")?;
    fs::create_dir_all(folder)?;
    let mut part = part(folder)?;
    part.write_all(&library()?)?;
    part.as_file().sync_all()?;
    // Windows does not replace a library in use: then another process has just put the same one there.
    part.persist(file).map(drop).or_else(|error| if intact(file, Check::Length) { Ok(()) } else { Err(error.into()) })
}

/// Readable by all, as the folder may be shared between users.
fn part(folder: &Path) -> std::io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644));
    builder.tempfile_in(folder)
}

fn library() -> Result<Vec<u8>> {
    let library = inflate(LIBRARY)?;
    ensure!(sha256(&library) == SHA256, "this program is damaged");
    Ok(library)
}

fn inflate(stream: &[u8]) -> Result<Vec<u8>> {
    miniz_oxide::inflate::decompress_to_vec(stream).map_err(|error| anyhow!("this program is damaged: {error}"))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(variables: &[(&str, &str)], home: Option<&str>) -> Option<PathBuf> {
        let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        cache_folder(variable, home.map(PathBuf::from))
    }

    #[test]
    fn our_own_variable_names_the_folder_itself() {
        let variables = [("HIGGS_TTS_CACHE", "here"), ("XDG_CACHE_HOME", "/xdg")];
        assert_eq!(cache(&variables, Some("/home/a")), Some("here".into()));
    }

    #[test]
    #[cfg(unix)]
    fn the_user_cache_is_next_and_empty_or_relative_values_are_passed_over() {
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/xdg")], Some("/home/a")), Some("/xdg/higgs-tts".into()));
        let useless = [("HIGGS_TTS_CACHE", ""), ("XDG_CACHE_HOME", "relative")];
        assert!(cache(&useless, Some("/home/a")).unwrap().starts_with("/home/a"));
        assert_eq!(cache(&useless, Some("")), None);
        assert_eq!(cache(&[], None), None);
    }

    #[test]
    fn a_copy_is_written_whole_and_damage_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a").join(FILE_NAME);
        assert!(!intact(&file, Check::Length));
        write(&file).unwrap();
        assert!(intact(&file, Check::Length) && intact(&file, Check::Content));
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);

        fs::write(&file, vec![0; LENGTH]).unwrap();
        assert!(intact(&file, Check::Length) && !intact(&file, Check::Content));
        write(&file).unwrap();
        assert!(intact(&file, Check::Content));
    }

    #[test]
    fn the_notices_are_texts() {
        let notices = notices().unwrap();
        assert!(NOTICES.is_empty() || notices.starts_with("ONNX Runtime: LICENSE\n\nMIT License"));
    }
}
