//! The tiny model against the PyTorch implementation of the same weights.

mod common;

use common::{
    BOOKS, Tensors, cosine, data,
    language::{CASES, GREEDY, ON_CPU, follow, prompt},
    max_difference, reference_json, tiny,
};
use higgs_tts::{
    audio,
    codes::Codes,
    graphs::{
        Device, Interrupt,
        contract::check_language,
        decoder::Decoder,
        embeds::{AudioEmbed, TextEmbed},
        open_language,
    },
    manifest::Manifest,
    model::{LoadOptions, Model},
    prompt::{PromptBuilder, Segment},
    sampler::Sampling,
    utterance::StopReason,
};
use ndarray::{Array2, Axis, concatenate, s};
use tempfile::TempDir;

fn load(name: &str) -> (TempDir, Model) {
    let folder = tiny(name);
    let model = Model::load(folder.path(), &ON_CPU).unwrap();
    (folder, model)
}

/// The language model's graphs by themselves, to look at the cache.
struct Graphs {
    text_embed: TextEmbed,
    audio_embed: AudioEmbed,
    decoder: Decoder,
    prompt: PromptBuilder,
    _folder: TempDir,
}

impl Graphs {
    fn open(name: &str) -> Self {
        let folder = tiny(name);
        let manifest = Manifest::read(folder.path()).unwrap();
        let contract = check_language(&manifest).unwrap();
        let runtime = LoadOptions::default().start_runtime().unwrap();
        let interrupt = Interrupt::new(runtime).unwrap();
        let (text_embed, audio_embed, decoder, _) =
            open_language(runtime, &interrupt, &manifest, &contract, Device::Cpu).unwrap();
        let prompt = PromptBuilder::open(&manifest.tokenizer()).unwrap();
        Self { text_embed, audio_embed, decoder, prompt, _folder: folder }
    }

    fn embed(&mut self, segments: &[Segment]) -> Array2<f32> {
        let embeds: Vec<_> = segments
            .iter()
            .map(|segment| match segment {
                Segment::Tokens(ids) => self.text_embed.embed(ids).unwrap(),
                Segment::Codes(rows) => self.audio_embed.embed(rows.rows()).unwrap(),
            })
            .collect();
        concatenate(Axis(0), &embeds.iter().map(|embeds| embeds.view()).collect::<Vec<_>>()).unwrap()
    }
}

#[test]
fn greedy_rows_of_fp32_are_those_of_pytorch() {
    let (tensors, cases) = (Tensors::read(), reference_json("reference/torch_fp32.json"));
    let (_folder, mut model) = load("cpu_fp32");
    for case in CASES {
        let prompt = prompt(model.prompt(), case, &tensors);
        let expected = tensors.rows(&format!("{case}.rows"));
        let utterance = model.draw(&prompt, GREEDY(), 40).unwrap();
        assert_eq!(utterance.rows(), &expected, "{case}");
        let stop = if case == "zs0" { StopReason::EndOfSpeech } else { StopReason::LengthCap };
        assert_eq!(utterance.stop_reason(), Some(stop), "{case}");
        let (codes, specials) = utterance.rows().undelayed();
        assert_eq!(specials as u64, cases["cases"][case]["specials_leaked"].as_u64().unwrap(), "{case}");
        assert_eq!(codes.len() as u64, cases["cases"][case]["frames"].as_u64().unwrap(), "{case}");
    }
}

#[test]
fn hidden_states_of_fp32_are_those_of_pytorch() {
    let tensors = Tensors::read();
    let (_folder, mut model) = load("cpu_fp32");
    for case in CASES {
        let (prefill, drawn_from) = follow(&mut model, case, &tensors);
        assert!(max_difference(&prefill, &tensors.floats(&format!("{case}.prefill_hidden"))) < 1e-4, "{case}");
        assert!(max_difference(&drawn_from, &tensors.floats(&format!("{case}.hidden"))) < 1e-4, "{case}");
    }
    let prompt = prompt(model.prompt(), "zs0", &tensors);
    let followed = model.follow(&prompt, &tensors.rows("zs0.rows")).unwrap();
    let logits: Vec<f32> = followed.logits.index_axis(Axis(0), 0).iter().copied().collect();
    assert!(max_difference(&logits, &tensors.floats("zs0.logits_step0")) < 1e-4);
}

/// The gap of 4 bits is the rounding of random weights, not a fault; it was measured as 0.944 to 0.974 on a processor
/// with VNNI, and other kernels differ a little.
#[test]
fn hidden_states_of_every_precision_are_near_those_of_pytorch() {
    let tensors = Tensors::read();
    for (name, prefill_bar, row_bar) in
        [("cpu_int4", 0.93, 0.955), ("cuda_fp16", 0.99999, 0.99999), ("cuda_int4", 0.93, 0.955)]
    {
        let (_folder, mut model) = load(name);
        for case in CASES {
            let (prefill, drawn_from) = follow(&mut model, case, &tensors);
            let found = cosine(&prefill, &tensors.floats(&format!("{case}.prefill_hidden")));
            assert!(found > prefill_bar, "{name} {case}: prefill {found}");
            let found = cosine(&drawn_from, &tensors.floats(&format!("{case}.hidden")));
            assert!(found > row_bar, "{name} {case}: rows {found}");
        }
    }
}

#[test]
fn a_prefill_and_a_step_are_a_longer_prefill() {
    let tensors = Tensors::read();
    for name in ["cpu_fp32", "cuda_fp16"] {
        let mut graphs = Graphs::open(name);
        let segments = prompt(&graphs.prompt, "clone", &tensors);
        let embeds = graphs.embed(&segments);
        let length = embeds.nrows();
        let mut whole = graphs.decoder.allocate(1, length).unwrap();
        let expected = graphs.decoder.prefill(embeds.view(), &mut whole, 0).unwrap();
        let mut parts = graphs.decoder.allocate(1, length + 100).unwrap();
        graphs.decoder.prefill(embeds.slice(s![..length - 1, ..]), &mut parts, 0).unwrap();
        let step = graphs.decoder.step(embeds.slice(s![length - 1.., ..]), &mut parts).unwrap();
        assert_eq!(parts.len(0), length);
        let (step, expected) = (step.into_iter().collect::<Vec<_>>(), expected.row(length - 1).to_vec());
        // A single row takes another matrix kernel, which adds in another order.
        let tolerance = if name == "cpu_fp32" { 1e-5 } else { 1e-2 };
        assert!(max_difference(&step, &expected) < tolerance, "{name}");
    }
}

#[test]
fn the_cache_has_room_for_its_capacity_and_no_more() {
    let mut graphs = Graphs::open("cpu_int4");
    let embeds = graphs.text_embed.embed(&[1, 2, 3, 4]).unwrap();
    let mut cache = graphs.decoder.allocate(1, 6).unwrap();
    graphs.decoder.prefill(embeds.view(), &mut cache, 0).unwrap();
    let error = graphs.decoder.prefill(embeds.view(), &mut cache, 0).unwrap_err();
    assert_eq!(error.to_string(), "the KV cache has room for 6 positions, not 8");
    assert_eq!(cache.len(0), 4);
    graphs.decoder.prefill(embeds.slice(s![..2, ..]), &mut cache, 0).unwrap();
}

#[test]
fn another_draw_begins_where_the_prompt_ended() {
    let (_folder, mut model) = load("cpu_int4");
    let prompt = model.prompt().build("Hello, this is a test.", None).unwrap();
    let sampling = Sampling { seed: 11, ..Sampling::default() };
    let mut cache = model.allocate(1, 100).unwrap();
    let mut utterance = model.prefill(&mut cache, 0, &prompt, sampling, 50).unwrap();
    let mut draw = |seed| {
        cache.truncate(0, utterance.prompt_len());
        utterance.restart(Sampling { seed, ..sampling });
        while utterance.stop_reason().is_none() {
            model.decode_step(&mut cache, &mut [&mut utterance]).unwrap();
        }
        utterance.rows().clone()
    };
    let (first, second, again) = (draw(11), draw(12), draw(11));
    assert_eq!(first.len(), 50);
    assert_ne!(first, second);
    assert_eq!(first, again);
}

#[test]
fn the_codec_decodes_and_encodes_like_pytorch() {
    let tensors = Tensors::read();
    let folder = tiny("cpu_int4");
    let mut codec = Model::load_codec(folder.path(), &ON_CPU).unwrap();
    let codes = Codes::new(BOOKS, tensors.frames("in.codec_codes_50")).unwrap();
    let wave = codec.decode(&codes).unwrap();
    assert!(max_difference(&wave, &tensors.floats("out.wave_50")) < 1e-4);
    let (spoken, specials) = tensors.rows("zs0.rows").undelayed();
    assert_eq!(specials, 0);
    assert!(max_difference(&codec.decode(&spoken).unwrap(), &tensors.floats("zs0.waveform")) < 1e-4);
    for frames in [1, 2, 25, 50] {
        let found = codec.encode(&tensors.floats(&format!("in.wave_{frames}"))).unwrap();
        let expected = tensors.frames(&format!("out.codes_{frames}"));
        assert_eq!(found, Codes::new(BOOKS, expected).unwrap(), "{frames} frames");
    }
}

#[test]
fn a_reference_recording_becomes_the_delayed_rows_of_pytorch() {
    let tensors = Tensors::read();
    let codes = Codes::new(BOOKS, tensors.codes("out.ref_codes")).unwrap();
    assert_eq!(codes.delayed(), tensors.rows("out.ref_rows_delayed"));
    let delay = reference_json("reference/delay.json");
    let table = |key: &str| serde_json::from_value::<Vec<Vec<u16>>>(delay[key].clone()).unwrap();
    let codes = Codes::new(BOOKS, table("codes").concat()).unwrap();
    assert_eq!(codes.delayed().rows().map(<[u16]>::to_vec).collect::<Vec<_>>(), table("delayed"));
    assert_eq!(codes.delayed().undelayed().0.frames().map(<[u16]>::to_vec).collect::<Vec<_>>(), table("undone"));
}

#[test]
fn cloning_goes_the_whole_way_of_the_python_loop() {
    let baseline = reference_json("clone/baseline.json");
    let table = |key: &str| serde_json::from_value::<Vec<Vec<u16>>>(baseline[key].clone()).unwrap();
    let (_folder, mut model) = load("cpu_fp32");
    let recording = audio::read(&data().join("clone/reference.wav"), 100.0).unwrap();
    let transcript = baseline["ref_text"].as_str().map(str::to_owned);
    let voice = model.encode_voice(&recording.audio, transcript).unwrap();
    assert_eq!(voice.codes.frames().map(<[u16]>::to_vec).collect::<Vec<_>>(), table("codes"));
    let prompt = model.prompt().build(baseline["text"].as_str().unwrap(), Some(&voice)).unwrap();
    let utterance = model.draw(&prompt, GREEDY(), 40).unwrap();
    assert_eq!(utterance.prompt_len() as u64, baseline["prompt_positions"].as_u64().unwrap());
    assert_eq!(utterance.rows().rows().map(<[u16]>::to_vec).collect::<Vec<_>>(), table("rows"));
    let audio = model.decode(&utterance.rows().undelayed().0).unwrap();
    assert_eq!(audio.samples.len() as u64, baseline["samples"].as_u64().unwrap());
    let rms = (audio.samples.iter().map(|s| f64::from(s * s)).sum::<f64>() / audio.samples.len() as f64).sqrt();
    assert!((rms - baseline["rms"].as_f64().unwrap()).abs() < 1e-5);
}

#[test]
fn a_short_recording_is_filled_to_one_second_and_a_long_one_refused() {
    let (_folder, mut model) = load("cpu_int4");
    let sound = |seconds: f64| audio::Audio {
        samples: (0..(seconds * 24_000.0) as usize).map(|n| (n as f32 * 0.05).sin() * 0.3).collect(),
        sample_rate_hz: 24_000,
    };
    assert_eq!(model.encode_voice(&sound(0.2), None).unwrap().codes.len(), 25);
    assert_eq!(model.encode_voice(&sound(1.001), None).unwrap().codes.len(), 26);
    let error = model.encode_voice(&sound(100.5), None).unwrap_err();
    assert_eq!(error.to_string(), "the reference recording lasts 100.5 s, at most 100 s can be used");
}
