//! `higgs-tts doctor`: what a bug report needs.

use std::{
    env,
    io::{self, Write},
    thread,
};

use anyhow::Result;
use higgs_tts::{
    graphs::{
        Device, DeviceChoice, Runtime, contract,
        probe::{Probe, probe},
        resolve_devices,
    },
    manifest::{Manifest, Part},
    onnx::Graph,
    prompt::PromptBuilder,
};

use super::{Outcome, flags::ModelArgs, interrupt};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let mut out = io::stdout().lock();
    writeln!(out, "higgs-tts {} for {} {}", env!("CARGO_PKG_VERSION"), env::consts::OS, env::consts::ARCH)?;
    let cuda = if cfg!(feature = "cuda") { "built with CUDA" } else { "built without CUDA" };
    writeln!(out, "  {cuda}")?;
    writeln!(out, "processor: {}", processor())?;
    let usable = thread::available_parallelism().map_or(1, usize::from);
    writeln!(out, "  {usable} threads usable; {}", cpu_features().join(" "))?;

    // A damaged copy may bring the loader down, so it is looked at before it is loaded.
    Runtime::verify_library()?;
    let options = args.model.load_options();
    let runtime = options.start_runtime()?;
    writeln!(out, "ONNX Runtime {}: {}", runtime.version(), runtime.library())?;
    writeln!(out, "  {}", runtime.build_info())?;
    writeln!(out, "  providers: {}", runtime.providers().join(", "))?;

    let Some(folder) = args.model.named_folder() else {
        writeln!(out, "no model folder is given: --model-path checks one")?;
        return Ok(Outcome::Done);
    };
    let manifest = Manifest::read(&folder)?;
    let provider = manifest.execution_provider().unwrap_or("no provider in particular");
    writeln!(out, "model folder {}: {}, made for {provider}", folder.display(), manifest.description())?;
    let mut ills = Vec::new();
    let devices = resolve_devices(runtime, &manifest, options.device, options.codec_device).or_else(|error| {
        // The parts can be looked at all the same.
        ills.push("the device");
        writeln!(out, "  NOT USABLE: {error:#}")?;
        let cpu = Some(DeviceChoice::Only(Device::Cpu));
        resolve_devices(runtime, &manifest, cpu, cpu)
    })?;
    writeln!(out, "  language model on {}, codec on {}", devices.language, devices.codec)?;
    for note in &devices.notes {
        writeln!(out, "  {note}")?;
    }
    for part in Part::ALL {
        interrupt::check()?;
        let is_codec = matches!(part, Part::AudioTokenizer | Part::AudioEncoder);
        let device = if is_codec { devices.codec } else { devices.language };
        if part == Part::AudioEncoder && !manifest.has(part) {
            writeln!(out, "{}: not there, so voices cannot be cloned", part.name())?;
            continue;
        }
        if let Err(error) = examine(&mut out, runtime, &manifest, part, device) {
            writeln!(out, "  NOT USABLE: {error:#}")?;
            ills.push(part.name());
        }
    }
    // A part that cannot be used by itself has been told of.
    if ills.iter().all(|ill| *ill == "the device") {
        match fit_together(&manifest) {
            Ok(()) => writeln!(out, "the parts and the tokenizer fit together")?,
            Err(error) => {
                writeln!(out, "THE PARTS DO NOT FIT TOGETHER: {error:#}")?;
                ills.push("the whole");
            }
        }
    }
    if ills.is_empty() {
        writeln!(out, "all is well")?;
        return Ok(Outcome::Done);
    }
    writeln!(out, "not well: {}", ills.join(", "))?;
    Ok(Outcome::Unusable)
}

/// Describes a part and runs it on fixed inputs.
fn examine(out: &mut impl Write, runtime: &Runtime, manifest: &Manifest, part: Part, device: Device) -> Result<()> {
    writeln!(out, "{}", part.name())?;
    let graph = contract::read(manifest, part)?;
    describe(out, &graph)?;
    let probe = probe(runtime, manifest, part, device)?;
    writeln!(out, "  check on {device}: {}", probe.verdict().map_or_else(|| well(&probe), str::to_owned))?;
    anyhow::ensure!(probe.verdict().is_none(), "the check failed");
    Ok(())
}

fn well(probe: &Probe) -> String {
    let cosine =
        |name: &str, value: Option<f64>| value.map_or_else(String::new, |value| format!(", {name} {value:.6}"));
    format!(
        "well{}{}",
        cosine("cosine to the CPU", probe.cosine_to_cpu),
        cosine("one position", probe.cosine_of_one_position)
    )
}

fn describe(out: &mut impl Write, graph: &Graph) -> Result<()> {
    let file = graph.path.file_name().unwrap_or_default().display();
    writeln!(out, "  {file}, {:.1} MB with its data, opset {}", graph.bytes as f64 / 1e6, graph.opset)?;
    // The caches of all layers look the same: the first one stands for them.
    for (side, ports) in [("in", &graph.inputs), ("out", &graph.outputs)] {
        let (caches, others): (Vec<_>, Vec<_>) =
            ports.iter().partition(|port| port.name.starts_with("past_") || port.name.starts_with("present."));
        for port in others.iter().chain(caches.first()) {
            writeln!(out, "  {side:<4}{port}")?;
        }
        if caches.len() > 1 {
            writeln!(out, "      and {} more like the last", caches.len() - 1)?;
        }
    }
    let mut operators: Vec<_> = graph.operators().into_iter().collect();
    operators.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    let operators: Vec<String> = operators.iter().map(|(name, count)| format!("{count} {name}")).collect();
    writeln!(out, "  {} operators: {}", graph.nodes.len(), operators.join(", "))?;
    Ok(())
}

fn fit_together(manifest: &Manifest) -> Result<()> {
    let language = contract::check_language(manifest)?;
    PromptBuilder::of_folder(manifest, language.text_vocab_size)?;
    let codec = contract::check_codec_decoder(manifest)?;
    match manifest.has(Part::AudioEncoder) {
        true => contract::check_codec_encoder(manifest, &codec),
        false => Ok(()),
    }
}

/// The processor's name, where the system tells it.
fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    name.map_or_else(|| "name unknown".into(), |(_, name)| name.trim().to_owned())
}

/// The features that decide which kernels ONNX Runtime takes.
#[cfg(target_arch = "x86_64")]
fn cpu_features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look_for {
        ($($name:tt)+) => { $(if std::arch::is_x86_feature_detected!($name) { found.push($name); })+ };
    }
    look_for!("sse4.1" "avx" "avx2" "fma" "f16c" "avxvnni" "avx512f" "avx512bw" "avx512vl" "avx512vnni" "avx512bf16");
    found
}

#[cfg(target_arch = "aarch64")]
fn cpu_features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! look_for {
        ($($name:tt)+) => { $(if std::arch::is_aarch64_feature_detected!($name) { found.push($name); })+ };
    }
    look_for!("neon" "fp16" "dotprod" "i8mm" "bf16" "sve");
    found
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn cpu_features() -> Vec<&'static str> {
    Vec::new()
}
