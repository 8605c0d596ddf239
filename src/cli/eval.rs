//! `higgs-tts eval`: how near a folder comes to one of higher precision.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use anyhow::Result;
use clap::builder::RangedU64ValueParser;
use higgs_tts::{
    eval::{self, Agreement, Report},
    text,
};
use serde_json::{Value, json};

use super::{Outcome, flags::ModelArgs};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Model folder of higher precision to judge it by, such as onnx/cpu_fp32
    #[arg(long, value_name = "DIR")]
    reference: PathBuf,
    /// Text to say; may be given several times [default: four sentences]
    #[arg(long, value_name = "TEXT")]
    text: Vec<String>,
    /// Rows of each text to follow
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = RangedU64ValueParser::<usize>::new().range(10..=2000))]
    rows: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let texts = match args.text.as_slice() {
        [] => eval::TEXTS.map(str::to_owned).to_vec(),
        texts => texts.iter().map(|text| Ok(text::clean(text)?.text)).collect::<Result<_>>()?,
    };
    let options = args.model.load_options();
    let report = eval::compare(&args.model.folder()?, &args.reference, &texts, args.rows, &options)?;
    let mut out = io::stdout().lock();
    if args.json {
        writeln!(out, "{}", to_json(&report))?;
    } else {
        print(&mut out, &report)?;
    }
    Ok(Outcome::Done)
}

fn print(out: &mut impl Write, report: &Report) -> Result<()> {
    writeln!(out, "{:<28}{:>10}  {:>14}", "", "cosine", "max difference")?;
    for (name, Agreement { cosine, max_difference }) in agreements(report) {
        writeln!(out, "{name:<28}{cosine:>10.6}  {max_difference:>14.3e}")?;
    }
    let percents = |shares: &[f64]| {
        let percents: Vec<String> = shares.iter().map(|share| format!("{:.0}", 100.0 * share)).collect();
        percents.join(" ")
    };
    writeln!(out, "likeliest codes equal, % for each codebook: {}", percents(&report.argmax))?;
    let (equal, all) = report.greedy_rows;
    writeln!(out, "greedy rows equal before the first difference: {equal} of {all}")?;
    let (median, greatest) = report.eoc_rank_error;
    writeln!(out, "error of the rank of EOC on codebook 0: median {median}, greatest {greatest}")?;
    match &report.codec_encode {
        Some(shares) => writeln!(out, "encoder codes equal, % for each codebook: {}", percents(shares))?,
        None => writeln!(out, "encoder: not in both folders")?,
    }
    Ok(())
}

fn agreements(report: &Report) -> [(&'static str, Agreement); 5] {
    [
        ("text embeddings", report.text_embed),
        ("audio embeddings", report.audio_embed),
        ("hidden states, prompt", report.prefill),
        ("hidden states, rows", report.rows),
        ("sound of the same codes", report.codec_decode),
    ]
}

fn to_json(report: &Report) -> Value {
    let agreement = |a: Agreement| json!({"cosine": a.cosine, "max_difference": a.max_difference});
    json!({
        "text_embed": agreement(report.text_embed),
        "audio_embed": agreement(report.audio_embed),
        "prefill_hidden": agreement(report.prefill),
        "row_hidden": agreement(report.rows),
        "argmax_equal": report.argmax,
        "greedy_rows_equal": report.greedy_rows.0,
        "greedy_rows": report.greedy_rows.1,
        "eoc_rank_error_median": report.eoc_rank_error.0,
        "eoc_rank_error_max": report.eoc_rank_error.1,
        "codec_decode": agreement(report.codec_decode),
        "codec_encode_equal": report.codec_encode,
    })
}
