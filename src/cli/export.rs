//! `higgs-tts export`: from the published checkpoint to a model folder.

use std::{
    io::{self, Write},
    path::PathBuf,
    time::Instant,
};

use anyhow::{Context, Result};
use higgs_tts::{
    error::UserError,
    export::{
        AudioPrecision, Export, Importance, Options, Planned, Report, Source, Target,
        quantize::{BlockSize, Quantizer},
    },
    manifest::Part,
};
use indicatif::{DecimalBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use super::{Outcome, flags::flag_value, interrupt, say};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of the published checkpoint: config.json, tokenizer.json and safetensors
    #[arg(long, value_name = "DIR", required_unless_present = "random", help_heading = "Input")]
    checkpoint: Option<PathBuf>,
    /// Make weights up from a seed, for benchmarks: in the sizes of --checkpoint's config.json, or else the real ones
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0", help_heading = "Input")]
    random: Option<u64>,

    /// Model folder to make, such as onnx/cpu_int4
    #[arg(long, short, value_name = "DIR", help_heading = "Output")]
    out: PathBuf,
    /// What will run the model
    #[arg(long, value_name = "DEVICE", default_value = "cpu", help_heading = "Output")]
    device: DeviceArg,
    /// Precision of the language model; the codec is always fp32
    #[arg(long, value_name = "PRECISION", default_value = "int4", help_heading = "Output")]
    precision: PrecisionArg,
    /// Precision of the audio embeddings and heads [default: fp16, and fp32 with --precision fp32]
    #[arg(long, value_name = "PRECISION", help_heading = "Output")]
    audio_precision: Option<AudioPrecisionArg>,
    /// Round the rotary tables to bfloat16, as they were in training
    #[arg(long, help_heading = "Output")]
    rope_bf16: bool,
    /// Only these parts, separated by commas
    #[arg(long, value_name = "PARTS", value_delimiter = ',', help_heading = "Output")]
    components: Vec<PartArg>,

    /// How weights of 4 bits are made
    #[arg(long, value_name = "NAME", default_value = "search", help_heading = "Weights of 4 bits")]
    quantizer: QuantizerArg,
    /// Weights that share a scale: more make a smaller and coarser model
    #[arg(long, value_name = "N", default_value = "32", help_heading = "Weights of 4 bits")]
    block_size: BlockSizeArg,
    /// Layers to leave in 16 bits, by parts of their names such as `layers.0.` or `mlp*down`; may be given several times
    #[arg(long, value_name = "PATTERN", help_heading = "Weights of 4 bits")]
    keep_fp16: Vec<String>,
    /// Safetensors with how much each input matters: a vector [K] in F32 under each weight's name, as --json prints it
    #[arg(long, value_name = "FILE", help_heading = "Weights of 4 bits")]
    importance: Option<PathBuf>,

    /// Say what would be done and how large it would be, and do nothing
    #[arg(long, help_heading = "Manners")]
    dry_run: bool,
    /// Make parts anew that an earlier export with the same settings has finished
    #[arg(long, help_heading = "Manners")]
    force: bool,
    /// Print one JSON object, with the error of every quantised matrix
    #[arg(long, help_heading = "Manners")]
    json: bool,
    /// No progress and no summary, only warnings and errors
    #[arg(long, short, help_heading = "Manners")]
    quiet: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Device {
    Cpu,
    Cuda,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Precision {
    Int4,
    Fp16,
    Fp32,
}

flag_value! { DeviceArg(Device):
    "cpu" => Device::Cpu, "processors";
    "cuda" => Device::Cuda, "NVIDIA GPUs";
}
flag_value! { PrecisionArg(Precision):
    "int4" => Precision::Int4, "weights of 4 bits: the smallest";
    "fp16" => Precision::Fp16, "half precision, for GPUs";
    "fp32" => Precision::Fp32, "single precision, for processors";
}
flag_value! { AudioPrecisionArg(AudioPrecision):
    "fp16" => AudioPrecision::Fp16, "half precision";
    "fp32" => AudioPrecision::Fp32, "single precision";
    "int4" => AudioPrecision::Int4, "4 bits, as older folders have it: changes two rows of codes in three";
}
flag_value! { QuantizerArg(Quantizer):
    "search" => Quantizer::Search, "scales and zero points of least squared error";
    "search-symmetric" => Quantizer::SearchSymmetric, "scales of least squared error; a little smaller";
    "rtn" => Quantizer::Rtn, "plain rounding, bit for bit as onnxruntime-genai";
}
flag_value! { BlockSizeArg(BlockSize):
    "32" => BlockSize::B32, "largest and finest";
    "64" => BlockSize::B64, "a decoder smaller by a tenth";
    "128" => BlockSize::B128, "smallest and coarsest";
}
flag_value! { PartArg(Part):
    "text_embed" => Part::TextEmbed, "text embeddings";
    "audio_embed" => Part::AudioEmbed, "audio embeddings";
    "llm_decoder" => Part::LlmDecoder, "the decoder of the language model";
    "audio_heads" => Part::AudioHeads, "logits";
    "audio_tokenizer" => Part::AudioTokenizer, "codes to sound";
    "audio_encoder" => Part::AudioEncoder, "sound to codes, for cloning";
}

impl Args {
    fn target(&self) -> Result<Target> {
        match (self.device.0, self.precision.0) {
            (Device::Cpu, Precision::Int4) => Ok(Target::CpuInt4),
            (Device::Cpu, Precision::Fp32) => Ok(Target::CpuFp32),
            (Device::Cuda, Precision::Fp16) => Ok(Target::CudaFp16),
            (Device::Cuda, Precision::Int4) => Ok(Target::CudaInt4),
            _ => {
                let hint = "int4 and fp32 are made for --device cpu, int4 and fp16 for --device cuda";
                Err(UserError::request("--device and --precision do not go together").with_hint(hint).into())
            }
        }
    }

    fn options(&self) -> Result<Options> {
        let defaults = Options::new(self.target()?);
        Ok(Options {
            quantizer: self.quantizer.0,
            block_size: self.block_size.0,
            audio_precision: self.audio_precision.map_or(defaults.audio_precision, |precision| precision.0),
            rope_bf16: self.rope_bf16,
            keep: self.keep_fp16.clone(),
            importance: self.importance.as_deref().map(Importance::read).transpose()?,
            ..defaults
        })
    }

    fn source(&self) -> Result<Source> {
        match (self.random, &self.checkpoint) {
            (Some(seed), sizes) => Ok(Source::Random { seed, sizes: sizes.clone() }),
            (None, Some(checkpoint)) => Ok(Source::Checkpoint(checkpoint.clone())),
            (None, None) => Err(UserError::request("no --checkpoint is given").into()),
        }
    }

    fn parts(&self) -> Vec<Part> {
        let chosen = |part: &Part| self.components.is_empty() || self.components.iter().any(|chosen| chosen.0 == *part);
        Part::ALL.into_iter().filter(chosen).collect()
    }
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let start = Instant::now();
    let export = Export::open(&args.source()?, args.options()?, &args.parts(), &args.out)?;
    export.check_folder(args.force)?;
    let mut plan = export.plan()?;
    if args.force {
        plan.iter_mut().for_each(|planned| planned.is_done = false);
    }
    if args.dry_run {
        tell_plan(args, &plan)?;
        return Ok(Outcome::Done);
    }
    interrupt::is_checked();
    let _claim = export.prepare(plan.iter().filter(|planned| !planned.is_done).map(size).sum())?;
    let mut written = Vec::new();
    for planned in &plan {
        interrupt::check()?;
        let name = planned.part.name();
        if planned.is_done {
            tell(args, &format!("{name}: done already"));
            continue;
        }
        let start = Instant::now();
        let progress = progress(args, planned);
        let report = export.write(planned.part, &mut |bytes| {
            progress.inc(bytes);
            interrupt::check()
        })?;
        progress.finish_and_clear();
        let seconds = start.elapsed().as_secs_f64();
        let loss = match report.total() {
            Some(total) => format!(", relative RMS error {:.2} %", 100.0 * total.relative_rms()),
            None => String::new(),
        };
        tell(args, &format!("{name}: {} in {seconds:.1} s{loss}", DecimalBytes(size(planned))));
        written.push((planned, report, seconds));
    }
    export.finish()?;
    let (shown, bytes) = (args.out.display(), plan.iter().map(size).sum());
    let seconds = start.elapsed().as_secs_f64();
    tell(args, &format!("wrote {shown}: {} in {seconds:.1} s", DecimalBytes(bytes)));
    if args.json {
        let parts: Vec<Value> =
            written.iter().map(|(planned, report, seconds)| json(planned, report, *seconds)).collect();
        print(&json!({"out": args.out, "bytes": bytes, "seconds": seconds, "parts": parts}).to_string())?;
    }
    Ok(Outcome::Done)
}

fn size(planned: &Planned) -> u64 {
    planned.bytes.graph + planned.bytes.data
}

fn progress(args: &Args, planned: &Planned) -> ProgressBar {
    // indicatif itself draws nothing when stderr is not a terminal.
    let target = if args.quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let style = ProgressStyle::with_template("{msg}: {bar:30} {decimal_bytes} of {decimal_total_bytes}, {eta} left");
    ProgressBar::with_draw_target(Some(planned.bytes.data), target)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_message(planned.part.name())
}

fn tell(args: &Args, message: &str) {
    if !args.quiet {
        say(message);
    }
}

fn tell_plan(args: &Args, plan: &[Planned]) -> Result<()> {
    let total = plan.iter().map(size).sum();
    if args.json {
        let parts: Vec<Value> = plan
            .iter()
            .map(|planned| json!({"part": planned.part.name(), "bytes": size(planned), "done": planned.is_done}))
            .collect();
        return print(&json!({"out": args.out, "bytes": total, "parts": parts}).to_string());
    }
    for planned in plan {
        let done = if planned.is_done { "  done already" } else { "" };
        print(&format!("{:<16}{:>10}{done}", planned.part.name(), DecimalBytes(size(planned)).to_string()))?;
    }
    print(&format!("{:<16}{:>10}", "together", DecimalBytes(total).to_string()))
}

fn json(planned: &Planned, report: &Report, seconds: f64) -> Value {
    let matrices: Value = report.matrices.iter().map(|(name, error)| (name.clone(), error.relative_rms())).collect();
    json!({
        "part": planned.part.name(),
        "bytes": size(planned),
        "seconds": seconds,
        "quantization_error": report.total().map(|total| total.relative_rms()),
        "matrices": matrices,
    })
}

fn print(line: &str) -> Result<()> {
    writeln!(io::stdout().lock(), "{line}").context("cannot write to standard output")
}
