//! What is shown while the person waits: on stderr, only on a terminal, and not with `--quiet`.

use std::{path::Path, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget};

pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(quiet: bool) -> Self {
        // indicatif itself draws nothing when stderr is not a terminal.
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    pub(super) fn loading(&self, folder: &Path) {
        self.0.set_message(format!("loading {}", folder.display()));
    }

    pub(super) fn encoding(&self) {
        self.0.set_message("listening to the reference recording");
    }

    pub(super) fn prefill(&self) {
        self.0.set_message("reading the text");
    }

    /// Begins a draw that will take about so many seconds of sound.
    pub(super) fn speaking(&self, expected_s: f64) {
        self.0.reset();
        self.0.set_message(format!("speaking, about {expected_s:.0} s"));
    }

    /// So many frames are drawn.
    pub(super) fn spoken(&self, frames: usize, frame_s: f64) {
        let (seconds, elapsed_s) = (frames as f64 * frame_s, self.0.elapsed().as_secs_f64());
        let speed = seconds / elapsed_s.max(f64::MIN_POSITIVE);
        self.0.set_message(format!("speaking: {frames} frames, {seconds:.1} s of sound, {speed:.2} × real time"));
    }

    /// Prints something without tearing the line.
    pub(super) fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
