//! ONNX Runtime: found, loaded and started once per process.
//!
//! The shared library is the one that `ORT_DYLIB_PATH` names (a path, or a name for the system's loader). Without that
//! it is the one inside this program (feature `bundled`); a program without one takes the library beside the
//! executable, else the one the system's loader finds.

use std::{
    env,
    ffi::CStr,
    num::NonZeroUsize,
    path::Path,
    ptr, slice,
    sync::{Mutex, OnceLock, PoisonError},
};

use anyhow::{Context, Result};
use ort::environment::{Environment, GlobalThreadPoolOptions};

use self::library::Library;
use crate::error::UserError;

#[cfg(ort_bundled)]
mod bundled;
#[cfg(target_os = "linux")]
mod elf;
mod library;

/// ONNX Runtime, started.
#[derive(Debug)]
pub struct Runtime {
    environment: Environment,
    threads: NonZeroUsize,
    library: Library,
}

impl Runtime {
    /// Starts ONNX Runtime, or returns it if it runs. All sessions share one pool of `threads` threads, of which the
    /// caller's is one; more than there are processors only cost (a thousand take 20 s to start).
    ///
    /// A process has one environment, ever: a later call returns the same, whatever number it asks for
    /// ([`threads`](Self::threads) tells). After a failure it may be called again.
    ///
    /// Sets `ORT_DISABLE_TELEMETRY` in the process environment: call it before other threads read the environment
    /// through C.
    ///
    /// # Errors
    /// [`Fault::Model`](crate::error::Fault::Model) if there is no usable library.
    pub fn start(threads: NonZeroUsize) -> Result<&'static Self> {
        static STARTED: OnceLock<Runtime> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());

        let _turn = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = STARTED.get() {
            return Ok(runtime);
        }
        disable_telemetry();
        let library = Library::find()?;
        let environment = environment(&library.path, threads).context(UserError::model("cannot start ONNX Runtime"))?;
        Ok(STARTED.get_or_init(|| Self { environment, threads, library }))
    }

    /// What sessions are built with.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The number of threads that sessions compute with.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads
    }

    /// The version of the library, such as `1.32.0`.
    pub fn version(&self) -> &str {
        &self.library.version
    }

    /// How the library was built: branch, commit, compiler flags.
    pub fn build_info(&self) -> &'static str {
        ort::info()
    }

    /// Where the library came from, in words.
    pub fn library(&self) -> &str {
        &self.library.origin
    }

    /// The execution providers that the library was built with, such as `CPUExecutionProvider`.
    #[expect(unsafe_code, reason = "ort offers no list, only a question for each provider it knows")]
    pub fn providers(&self) -> Vec<String> {
        let api = ort::api();
        let (mut names, mut count) = (ptr::null_mut(), 0);
        // SAFETY: on success, `names` points to `count` C strings until they are released; on failure it stays null.
        unsafe {
            let listed = ort::Error::result_from_status((api.GetAvailableProviders)(&raw mut names, &raw mut count));
            if listed.is_err() || names.is_null() {
                return Vec::new();
            }
            let list = slice::from_raw_parts(names, usize::try_from(count).unwrap_or(0));
            let list = list.iter().map(|&name| CStr::from_ptr(name).to_string_lossy().into_owned()).collect();
            let _ = ort::Error::result_from_status((api.ReleaseAvailableProviders)(names, count));
            list
        }
    }

    /// Compares the unpacked copy of the library inside this program with what was packed, which [`start`](Self::start)
    /// leaves out for speed. There is nothing to compare if this program carries none, or `ORT_DYLIB_PATH` is set.
    ///
    /// # Errors
    /// [`Fault::Model`](crate::error::Fault::Model) if the copy is damaged.
    pub fn verify_library() -> Result<()> {
        #[cfg(ort_bundled)]
        if library::named().is_none() {
            return bundled::verify();
        }
        Ok(())
    }
}

/// The licence and the third-party notices of the ONNX Runtime inside this program; empty if it carries none, or one
/// that came without them.
///
/// # Errors
/// If this program is damaged.
pub fn licenses() -> Result<String> {
    #[cfg(ort_bundled)]
    return bundled::notices();
    #[cfg(not(ort_bundled))]
    Ok(String::new())
}

/// Official builds since 1.29 start an uploader and write to the user's home while the environment is created, so
/// [`with_telemetry(false)`](ort::environment::EnvironmentBuilder::with_telemetry) alone comes too late.
#[expect(unsafe_code, reason = "the library reads nothing but the process environment that early")]
fn disable_telemetry() {
    // SAFETY: Rust code reads and writes the environment under one lock; the only C code loaded so far is the system's
    // own library, and `start` tells its callers to come before threads that call into it.
    unsafe { env::set_var("ORT_DISABLE_TELEMETRY", "1") };
}

fn environment(library: &Path, threads: NonZeroUsize) -> Result<Environment> {
    let builder = ort::init_from(library)?;
    // One thread between operators: sessions run theirs in order, and the default is a second pool as large as the
    // machine.
    let pool = GlobalThreadPoolOptions::default().with_intra_threads(threads.get())?.with_inter_threads(1)?;
    Ok(builder.with_name("higgs-tts").with_telemetry(false).with_global_thread_pool(pool).build()?)
}
