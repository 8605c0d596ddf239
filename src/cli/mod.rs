//! The command line: flags, help, progress, and what is said on stderr.

mod doctor;
mod eval;
mod export;
mod flags;
pub(crate) mod interrupt;
mod speak;

use std::io::Write;

use anyhow::Result;
use clap::{Parser, Subcommand};
use higgs_tts::{error::UserError, graphs::runtime};

/// How a run ended that did not fail.
pub(crate) enum Outcome {
    /// All is well.
    Done,
    /// Sound was written, but it is cut off or otherwise not healthy.
    NotHealthy,
    /// A check found that the model or the runtime cannot be used, and said so.
    Unusable,
    /// Help was printed or the command line is wrong; with the exit code.
    Usage(u8),
}

/// Speech from text with Higgs Audio v3 (Higgs TTS 3), on your own machine.
#[derive(Parser)]
#[command(
    name = "higgs-tts",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Exit codes: 0 done, 1 failure, 2 wrong request, 3 model or runtime cannot be used,\n\
                  4 written but not healthy (cut off or a fault was heard), 130 interrupted."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    speak: speak::Args,
}

#[derive(Subcommand)]
enum Command {
    /// Show what a bug report needs: runtime, processor, and a check of every part of a model folder
    Doctor(doctor::Args),
    /// Compare a model folder with one of higher precision
    Eval(eval::Args),
    /// Make a model folder from the published checkpoint
    Export(export::Args),
    /// Print the licences of this program and of the ONNX Runtime inside it
    Licenses,
}

/// Does what the command line says.
pub(crate) fn run() -> Result<Outcome> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing better can be done when even the help cannot be printed.
            let _ = error.print();
            return Ok(Outcome::Usage(u8::try_from(error.exit_code()).unwrap_or(2)));
        }
    };
    interrupt::listen()?;
    match cli.command {
        None => speak::run(&cli.speak),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Eval(args)) => eval::run(&args),
        Some(Command::Export(args)) => export::run(&args),
        Some(Command::Licenses) => {
            let own = [include_str!("../../LICENSE"), include_str!("../../NOTICE")];
            let mut out = std::io::stdout().lock();
            writeln!(out, "{}\n{}\n{}", own[0], own[1], runtime::licenses()?)?;
            Ok(Outcome::Done)
        }
    }
}

/// Prints an error with its causes and, if there is one, a hint.
pub(crate) fn print_error(error: &anyhow::Error) {
    say(&format!("higgs-tts: {error:#}"));
    if let Some(hint) = error.downcast_ref::<UserError>().and_then(UserError::hint) {
        say(&format!("hint: {hint}"));
    }
}

/// Tells the person something that does not stop the work.
fn warn(message: &str) {
    say(&format!("higgs-tts: warning: {message}"));
}

/// Tells the person how it went. Nothing better can be done when stderr is closed or full, and the work goes on.
fn say(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{message}");
}
