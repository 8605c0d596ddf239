//! Ctrl-C: while nothing is being spoken or written it ends the program at once. Later the first one lets the graphs or
//! the export stop and everything be tidied up, and the second ends the program.

#[cfg(unix)]
use std::sync::Arc;
use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, bail};
use higgs_tts::graphs::Interrupt;

static TRIGGERED: AtomicBool = AtomicBool::new(false);
static CHECKED: AtomicBool = AtomicBool::new(false);
static GRAPHS: Mutex<Option<Interrupt>> = Mutex::new(None);

/// Begins to listen, for SIGINT, SIGTERM and SIGHUP.
pub(crate) fn listen() -> Result<()> {
    // A file that grows beyond the limit of the process is an error like a full disk, not a sudden death that leaves
    // half a file behind.
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default())?;
    ctrlc::set_handler(|| {
        let again = TRIGGERED.swap(true, Ordering::SeqCst);
        match &*GRAPHS.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(graphs) if !again => graphs.trigger(),
            None if !again && CHECKED.load(Ordering::SeqCst) => {}
            #[expect(clippy::exit, reason = "there is nothing to tidy up, or the person has asked twice")]
            _ => std::process::exit(130),
        }
    })?;
    Ok(())
}

/// From now on the work itself calls [`check`] every now and then, and tidies up.
pub(crate) fn is_checked() {
    CHECKED.store(true, Ordering::SeqCst);
}

/// From now on an interruption stops these graphs.
///
/// # Errors
/// When it has come already.
pub(crate) fn stops(graphs: Interrupt) -> Result<()> {
    *GRAPHS.lock().unwrap_or_else(PoisonError::into_inner) = Some(graphs);
    check()
}

/// Fails if an interruption has come.
pub(crate) fn check() -> Result<()> {
    if was_triggered() {
        bail!("interrupted");
    }
    Ok(())
}

/// Whether an interruption has come.
pub(crate) fn was_triggered() -> bool {
    TRIGGERED.load(Ordering::SeqCst)
}
