//! A file that appears whole or not at all.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use tempfile::NamedTempFile;

use crate::error::UserError;

/// A file that grows under another name beside its own, and gets its own when it is safe on the disk. Dropped before
/// that, it leaves nothing behind.
///
/// The other name is always the same, so that the remains of a killed process, which may be gigabytes, go with the next
/// attempt.
pub(super) struct NewFile {
    part: NamedTempFile,
    path: PathBuf,
}

impl NewFile {
    /// Begins a file; its folder must exist.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let shown = path.display();
        let name = path.file_name().with_context(|| format!("{shown} is not the name of a file"))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _ = fs::remove_file(folder.join(name).with_added_extension("part"));
        let mut builder = tempfile::Builder::new();
        builder.prefix(name).suffix(".part").rand_bytes(0);
        // Temporary files are private by default; this one becomes an ordinary file, within what the umask allows.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let part = builder.tempfile_in(folder).with_context(|| format!("cannot create {shown}"))?;
        Ok(Self { part, path: path.to_owned() })
    }

    /// Where it will be.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its name.
    pub(super) fn finish(self) -> Result<()> {
        let Self { part, path } = self;
        let failed = || format!("cannot write {}", path.display());
        part.as_file().sync_all().with_context(failed)?;
        part.persist(&path).map_err(|error| error.error).with_context(failed)?;
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        File::flush(self.part.as_file_mut())
    }
}

/// Writes a small file.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(bytes).with_context(|| format!("cannot write {}", path.display()))?;
    file.finish()
}

/// The right to write to a folder, until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Claim {
    /// The folder itself, locked: nothing is left behind, even by a process that is killed.
    _folder: Option<File>,
}

impl Claim {
    /// Claims a folder, where the system can lock one.
    pub(super) fn take(folder: &Path) -> Result<Self> {
        let opened = File::open(folder).ok();
        if let Some(Err(TryLockError::WouldBlock)) = opened.as_ref().map(File::try_lock) {
            let message = format!("another export writes to {} just now", folder.display());
            return Err(UserError::request(message).into());
        }
        Ok(Self { _folder: opened })
    }
}

/// Removes a file if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot replace {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Bytes that the disk of a folder has room for, where the system says so.
pub(super) fn free_bytes(folder: &Path) -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let disk = rustix::fs::statvfs(folder).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        None
    }
}
