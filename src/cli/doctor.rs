//! doctor
use anyhow::Result;

use super::{Outcome, speak::ModelArgs};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(_args: &Args) -> Result<Outcome> {
    Ok(Outcome::Done)
}
