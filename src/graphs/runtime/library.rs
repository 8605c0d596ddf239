//! Finding the shared library, and making sure of what it is before anything else is done with it.

use std::{
    env, error,
    ffi::CStr,
    fs,
    mem::ManuallyDrop,
    path::{self, Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, ensure};
use ort::sys::{ORT_API_VERSION, OrtApiBase};

use crate::error::UserError;

#[cfg(ort_bundled)]
use super::bundled::{self, Check};
#[cfg(target_os = "linux")]
use super::elf;

/// A shared library that is loaded and is an ONNX Runtime new enough.
#[derive(Debug)]
pub(super) struct Library {
    /// As the loader knows it.
    pub(super) path: PathBuf,
    pub(super) version: String,
    /// Where it came from, in words.
    pub(super) origin: String,
}

/// The library that the user asks for.
pub(super) fn named() -> Option<PathBuf> {
    env::var_os("ORT_DYLIB_PATH").filter(|name| !name.is_empty()).map(PathBuf::from)
}

impl Library {
    /// The library to use: see [the module](super).
    pub(super) fn find() -> Result<Self> {
        if let Some(name) = named() {
            let hint = if cfg!(ort_bundled) {
                "unset ORT_DYLIB_PATH to use the library inside this program"
            } else {
                "ORT_DYLIB_PATH names that library"
            };
            // Absolute, as the loader does not look for a bare name in the current folder.
            let path = if name.exists() { path::absolute(&name)? } else { beside_executable(&name) };
            let origin = format!("ORT_DYLIB_PATH {}", path.display());
            return Self::open(&path, origin).with_context(|| unusable(&path).with_hint(hint));
        }
        #[cfg(ort_bundled)]
        return Self::bundled();
        #[cfg(not(ort_bundled))]
        Self::installed()
    }

    #[cfg(ort_bundled)]
    fn bundled() -> Result<Self> {
        let on_disk = |check| {
            let path = bundled::on_disk(check)?;
            Self::open(&path, format!("bundled, unpacked to {}", path.display()))
        };
        // A copy that the loader refuses may be damaged: the second look finds out, and replaces it.
        let library = on_disk(Check::Length).or_else(|_| on_disk(Check::Content));
        #[cfg(target_os = "linux")]
        let library = library.or_else(|_| Self::open(&bundled::in_memory()?, "bundled, in memory".to_owned()));
        library.context(
            UserError::model("cannot load the ONNX Runtime inside this program")
                .with_hint("HIGGS_TTS_CACHE names the folder to unpack it in, ORT_DYLIB_PATH another library"),
        )
    }

    #[cfg(not(ort_bundled))]
    fn installed() -> Result<Self> {
        let path = beside_executable(Path::new(&libloading::library_filename("onnxruntime")));
        let place = if path.is_absolute() { "beside the executable" } else { "system" };
        Self::open(&path, format!("{place}, {}", path.display())).with_context(|| {
            unusable(&path).with_hint("this program has no ONNX Runtime inside: set ORT_DYLIB_PATH to a library")
        })
    }

    fn open(path: &Path, origin: String) -> Result<Self> {
        if path.is_absolute() {
            inspect(path)?;
        }
        let version = version(path)?;
        Ok(Self { path: path.to_owned(), version, origin })
    }
}

fn unusable(path: &Path) -> UserError {
    UserError::model(format!("cannot load ONNX Runtime from `{}`", path.display()))
}

/// The file of that name beside the executable, else the name alone, for the system's loader. ort looks in the same
/// order.
fn beside_executable(name: &Path) -> PathBuf {
    let beside = env::current_exe().ok().and_then(|executable| Some(executable.parent()?.join(name)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| name.to_owned())
}

/// Loads the library, for good, and asks for its version.
///
/// ort asks too, but panics at a library that answers with null.
#[expect(unsafe_code, reason = "a shared library is foreign code")]
fn version(path: &Path) -> Result<String> {
    // SAFETY: loading runs the library's initialisers, which is what the user wants from it. It is never unloaded, so
    // that nothing it started or handed out can dangle.
    let library = ManuallyDrop::new(unsafe { libloading::Library::new(path) }.map_err(|error| refusal(path, &error))?);
    // SAFETY: ONNX Runtime exports one function of this name, with this signature, since its first release.
    let base = unsafe {
        let entry = library.get::<unsafe extern "system" fn() -> *const OrtApiBase>("OrtGetApiBase");
        let entry = entry.map_err(|_| anyhow!("it is a shared library, but not ONNX Runtime"))?;
        entry().as_ref().context("it offers no interface")?
    };
    // SAFETY: the version is a C string that lives as long as the library.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) }.to_string_lossy().into_owned();
    let usable = is_new_enough(&version) && {
        // SAFETY: a library answers with null to the number of an interface that it does not have.
        let api = unsafe { (base.GetApi)(ORT_API_VERSION) };
        !api.is_null()
    };
    ensure!(usable, "it is ONNX Runtime {version}, and 1.{ORT_API_VERSION} or newer is needed");
    Ok(version)
}

/// Whether a version such as `1.32.0` should have the interface that this program is written for. Asked before the
/// library itself is, since an old one answers on stderr as well.
fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    (numbers.next().flatten(), numbers.next().flatten()) >= (Some(1), Some(ORT_API_VERSION))
}

/// Turns away what the loader would take badly: it waits for ever at a named pipe, crashes (SIGBUS) in a file that is
/// cut short, and reports one for another processor as missing.
fn inspect(path: &Path) -> Result<()> {
    let metadata = fs::metadata(path)?;
    ensure!(metadata.is_file(), "it is not a file");
    #[cfg(target_os = "linux")]
    {
        let header = elf::Header::read(path)?.context("it is not a shared library")?;
        let program = elf::Header::read(Path::new("/proc/self/exe")).ok().flatten();
        ensure!(program.is_none_or(|program| program.target == header.target), "it is built for another processor");
        ensure!(header.sections <= metadata.len(), "it is cut short");
    }
    Ok(())
}

/// Why the loader refuses the library, in one clause.
fn refusal(path: &Path, error: &libloading::Error) -> anyhow::Error {
    // The error alone says "dlopen failed"; its source begins with the path, which the message has already.
    let reason = error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    let prefix = format!("{}: ", path.display());
    anyhow!("{}", reason.strip_prefix(&prefix).unwrap_or(&reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for version in ["1.24.0", "1.24", "1.32.0", "1.100.0", "2.0.0", "1.25.0-dev"] {
            assert!(is_new_enough(version), "{version}");
        }
        for version in ["1.23.2", "1.9.0", "0.30.0", "1", "", "nonsense"] {
            assert!(!is_new_enough(version), "{version}");
        }
    }
}
