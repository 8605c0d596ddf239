//! The exported codec against the PyTorch implementation of the same weights.

mod common;

use std::{num::NonZeroUsize, path::Path};

use anyhow::{Result, ensure};
use common::{Tensors, data, max_difference, reference_json};
use higgs_tts::{
    export::{
        codec::{self, CodecConfig},
        onnx::ModelWriter,
        weights::Weights,
    },
    graphs::Runtime,
};
use ort::{session::Session, value::Tensor};

const CHECKPOINT: &str = "tiny/checkpoint";

/// Exports one of the two graphs of the tiny codec and opens it.
fn open(
    describe: impl FnOnce(&CodecConfig, &codec::Lookup<'_>, &mut ModelWriter<'_>) -> Result<()>,
    tensors: impl FnOnce(&CodecConfig) -> Result<codec::Shapes>,
) -> Session {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("codec.onnx");
    let checkpoint = data().join(CHECKPOINT);
    let config = CodecConfig::read(&checkpoint).unwrap();
    let tensors = tensors(&config).unwrap();
    let weights = Weights::open(&checkpoint).unwrap();
    weights.check(&tensors.clone().into_iter().collect::<Vec<_>>()).unwrap();
    let lookup = |name: &str, shape: &[usize]| {
        ensure!(tensors[name] == shape, "{name} was not announced as {shape:?}");
        Ok(weights.tensor(name)?.to_vec())
    };
    let mut watch = |_| Ok(());
    let mut model = ModelWriter::create(&path, &mut watch);
    describe(&config, &lookup, &mut model).unwrap();
    model.finish().unwrap();
    let runtime = Runtime::start(NonZeroUsize::new(2).unwrap()).unwrap();
    Session::builder(runtime.environment()).unwrap().commit_from_file(path).unwrap()
}

/// `[batch, 8, frames]` → samples.
fn decode(session: &mut Session, batch: usize, codes: &[u16]) -> Result<Vec<f32>> {
    let codes: Vec<i64> = codes.iter().map(|&code| code.into()).collect();
    let shape = [batch, 8, codes.len() / 8 / batch];
    let outputs = session.run(ort::inputs!["audio_codes" => Tensor::from_array((shape, codes))?])?;
    let (shape, samples) = outputs["waveform"].try_extract_tensor::<f32>()?;
    assert_eq!(shape[..2], [batch as i64, 1]);
    Ok(samples.to_vec())
}

/// `[batch, 1, samples]` → codes in the order of codebooks.
fn encode(session: &mut Session, batch: usize, samples: &[f32]) -> Vec<u16> {
    let shape = [batch, 1, samples.len() / batch];
    let input = Tensor::from_array((shape, samples.to_vec())).unwrap();
    let outputs = session.run(ort::inputs!["input_values" => input]).unwrap();
    let (shape, codes) = outputs["audio_codes"].try_extract_tensor::<i64>().unwrap();
    assert_eq!(shape[..2], [batch as i64, 8]);
    codes.iter().map(|&code| u16::try_from(code).unwrap()).collect()
}

fn open_decoder() -> Session {
    open(codec::decoder, codec::decoder_tensors)
}

fn open_encoder() -> Session {
    open(codec::encoder, codec::encoder_tensors)
}

#[test]
fn codes_sound_as_they_do_in_pytorch() {
    let (mut decoder, tensors) = (open_decoder(), Tensors::read());
    let sound = decode(&mut decoder, 1, &tensors.codes("in.codec_codes_50")).unwrap();
    let difference = max_difference(&sound, &tensors.floats("out.wave_50"));
    assert!(difference < 1e-5, "{difference}");
}

#[test]
fn codes_are_decoded_together_as_alone() {
    let (mut decoder, tensors) = (open_decoder(), Tensors::read());
    let codes = tensors.codes("in.codec_codes_50");
    let others: Vec<u16> = codes.iter().rev().copied().collect();
    let alone = [&codes, &others].map(|codes| decode(&mut decoder, 1, codes).unwrap()).concat();
    let together = decode(&mut decoder, 2, &[codes, others].concat()).unwrap();
    assert!(max_difference(&alone, &together) < 1e-6);
}

#[test]
fn a_code_without_an_entry_is_an_error() {
    let mut decoder = open_decoder();
    for codebook in 0..8 {
        let mut codes = [0; 8];
        codes[codebook] = 1024;
        assert!(decode(&mut decoder, 1, &codes).is_err());
    }
}

#[test]
fn sounds_of_every_length_have_the_codes_that_they_have_in_pytorch() {
    let mut encoder = open_encoder();
    let wave = Tensors::read_file("reference/encoder_lengths.safetensors").floats("wave");
    let reference = reference_json("reference/encoder_lengths.json");
    let lengths = reference["lengths"].as_array().unwrap();
    assert_eq!(lengths.len(), 60);
    for length in lengths.iter().map(|length| length.as_u64().unwrap() as usize) {
        let frames = reference["codes"][length.to_string()].as_array().unwrap();
        let expected: Vec<u64> =
            (0..8).flat_map(|k| frames.iter().map(move |frame| frame[k].as_u64().unwrap())).collect();
        let found: Vec<u64> = encode(&mut encoder, 1, &wave[..length]).into_iter().map(u64::from).collect();
        assert_eq!(found, expected, "{length} samples");
    }
}

#[test]
fn whole_frames_have_the_codes_that_they_have_in_pytorch() {
    let (mut encoder, tensors) = (open_encoder(), Tensors::read());
    for frames in [1, 2, 25, 50] {
        let codes = encode(&mut encoder, 1, &tensors.floats(&format!("in.wave_{frames}")));
        assert_eq!(codes, tensors.codes(&format!("out.codes_{frames}")), "{frames} frames");
    }
}

#[test]
fn sounds_are_encoded_together_as_alone() {
    let mut encoder = open_encoder();
    let wave = Tensors::read_file("reference/encoder_lengths.safetensors").floats("wave");
    // The first length needs half a frame of zeros, the second does not.
    for length in [24_480, 24_960] {
        let sounds = [&wave[..length], &wave[9000..9000 + length]];
        let alone = sounds.map(|sound| encode(&mut encoder, 1, sound)).concat();
        assert_eq!(encode(&mut encoder, 2, &sounds.concat()), alone);
    }
}

#[test]
fn the_shortest_sounds_have_a_frame() {
    let mut encoder = open_encoder();
    let wave = Tensors::read_file("reference/encoder_lengths.safetensors").floats("wave");
    for (length, frames) in [(1, 1), (118, 1), (119, 1), (631, 1), (632, 1), (1078, 1), (1079, 2)] {
        assert_eq!(encode(&mut encoder, 1, &wave[..length]).len(), 8 * frames, "{length} samples");
    }
}

#[test]
fn a_missing_tensor_is_named() {
    let config = CodecConfig::published();
    let lookup = |name: &str, _: &[usize]| anyhow::bail!("there is no tensor {name}");
    let folder = tempfile::tempdir().unwrap();
    let mut watch = |_| Ok(());
    let mut model = ModelWriter::create(&folder.path().join("codec.onnx"), &mut watch);
    let error = codec::decoder(&config, &lookup, &mut model).unwrap_err();
    assert!(
        format!("{error:#}").contains("there is no tensor tied.embedding.modality_embeddings.0.model."),
        "{error:#}"
    );
}

#[test]
fn the_published_codec_is_made_of_the_tensors_that_it_should_be() {
    let count = |shapes: &codec::Shapes| shapes.values().map(|shape| shape.iter().product::<usize>()).sum::<usize>();
    let config = CodecConfig::published();
    let decoder = codec::decoder_tensors(&config).unwrap();
    assert_eq!((decoder.len(), count(&decoder)), (136, 21_557_281));
    let encoder = codec::encoder_tensors(&config).unwrap();
    assert_eq!(encoder["tied.embedding.modality_embeddings.0.model.fc.weight"], [1024, 1024]);
    let measured = |describe: fn(&CodecConfig, &codec::Lookup<'_>, &mut ModelWriter<'_>) -> Result<()>| {
        let unread = |name: &str, _: &[usize]| anyhow::bail!("{name} is read");
        let mut model = ModelWriter::measure(Path::new("codec.onnx"));
        describe(&config, &unread, &mut model).unwrap();
        model.finish().unwrap().data
    };
    assert_eq!(measured(codec::decoder) >> 20, 85);
    assert_eq!(measured(codec::encoder) >> 20, 629);
}
