//! The language model in the cases of the reference implementation.

use higgs_tts::{
    codes::Codes,
    graphs::{Device, DeviceChoice},
    model::{LoadOptions, Model},
    prompt::{PromptBuilder, Segment, Voice},
    sampler::{Rules, Sampling},
};

use super::{BOOKS, Tensors, reference_json};

/// Always the likeliest code, by the rules of the reference implementation.
pub(crate) const GREEDY: fn() -> Sampling =
    || Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0, rules: Rules::Reference };

/// The folders made for CUDA run on the CPU as well, when they are told to.
pub(crate) const ON_CPU: LoadOptions =
    LoadOptions { device: Some(DeviceChoice::Only(Device::Cpu)), codec_device: None, threads: None };

/// Utterances of the reference implementation.
pub(crate) const CASES: [&str; 5] = ["zs0", "zs1", "zs2", "clone", "clone_notext"];

/// The prompt of a reference case. The reference recording is shorter than the second that a product pads to, so its
/// stored codes are used.
pub(crate) fn prompt(builder: &PromptBuilder, case: &str, tensors: &Tensors) -> Vec<Segment> {
    let case = &reference_json("reference/torch_fp32.json")["cases"][case];
    let voice = (case["kind"] == "clone").then(|| Voice {
        codes: Codes::new(BOOKS, tensors.codes("out.ref_codes")).unwrap(),
        transcript: case["ref_text"].as_str().map(str::to_owned),
    });
    builder.build(case["text"].as_str().unwrap(), voice.as_ref()).unwrap()
}

/// Hidden states of the prompt, and those from which the rows of the reference were drawn.
pub(crate) fn follow(model: &mut Model, case: &str, tensors: &Tensors) -> (Vec<f32>, Vec<f32>) {
    let prompt = prompt(model.prompt(), case, tensors);
    let followed = model.follow(&prompt, &tensors.rows(&format!("{case}.rows"))).unwrap();
    (followed.prompt.into_iter().collect(), followed.drawn_from.into_iter().collect())
}
