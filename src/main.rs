//! `higgs-tts`: speech from text on your own machine.

#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cli;

use std::{io, process::ExitCode};

use higgs_tts::error::{Fault, UserError};

/// Exit codes besides 0 (done) and 2 (also given by the parser of the command line).
const FAILED: u8 = 1;
const WRONG_REQUEST: u8 = 2;
const UNUSABLE_MODEL: u8 = 3;
const NOT_HEALTHY: u8 = 4;
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let outcome = cli::run();
    if cli::interrupt::was_triggered() {
        return ExitCode::from(INTERRUPTED);
    }
    match outcome {
        Ok(cli::Outcome::Done) => ExitCode::SUCCESS,
        Ok(cli::Outcome::NotHealthy) => NOT_HEALTHY.into(),
        Ok(cli::Outcome::Unusable) => UNUSABLE_MODEL.into(),
        Ok(cli::Outcome::Usage(code)) => code.into(),
        // Whoever reads our output has had enough: not an error, as with every program in a pipe.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            cli::print_error(&error);
            let fault = error.downcast_ref::<UserError>().map(UserError::fault);
            ExitCode::from(match fault {
                Some(Fault::Request) => WRONG_REQUEST,
                Some(Fault::Model) => UNUSABLE_MODEL,
                None => FAILED,
            })
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<io::Error>().map(io::Error::kind);
    error.chain().any(|cause| kind(cause) == Some(io::ErrorKind::BrokenPipe))
}
