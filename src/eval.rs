//! How near a model folder comes to another one of higher precision.
//!
//! Both folders follow the same rows, which the reference folder has drawn with the default settings: greedy rows of
//! this model stick on a code and would say little. The folders are loaded one after the other, so that the memory of
//! the larger one is enough.

use std::path::Path;

use anyhow::{Result, ensure};
use ndarray::{Array2, ArrayView1, ArrayView2};

use crate::{
    audio::Audio,
    codes::{Codebooks, Codes, DelayedCodes},
    error::UserError,
    model::{Followed, LoadOptions, Model},
    prompt::{Segment, Voice},
    sampler::{Rules, Sampling},
};

/// What is said in a comparison, unless the caller names something else.
pub const TEXTS: [&str; 4] = [
    "Hello, this is a test.",
    "The quick brown fox jumps over the lazy dog.",
    "On the 3rd of May 1984, forty-two people waited in the rain.",
    "Schöne Grüße aus Köln, und bis bald!",
];

/// Two sets of numbers that should be the same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreement {
    /// Cosine of the angle between them.
    pub cosine: f64,
    /// Greatest difference of two numbers.
    pub max_difference: f32,
}

/// How often two sets of codes are the same, for each codebook from 0 to 1.
pub type Shares = Vec<f64>;

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Embeddings of text tokens.
    pub text_embed: Agreement,
    /// Embeddings of rows.
    pub audio_embed: Agreement,
    /// Hidden states of the prompts.
    pub prefill: Agreement,
    /// Hidden states from which the rows are drawn.
    pub rows: Agreement,
    /// How often the likeliest entry is the same.
    pub argmax: Shares,
    /// Of how many rows, drawn greedily by both folders, how many are the same before the first that is not.
    pub greedy_rows: (usize, usize),
    /// By how many places the rank of EOC on codebook 0 differs, once it may come: median and greatest.
    pub eoc_rank_error: (usize, usize),
    /// Sound of the same codes.
    pub codec_decode: Agreement,
    /// How often the codes of the same sound are equal, if both folders have an encoder.
    pub codec_encode: Option<Shares>,
}

/// What one folder makes of the texts.
struct Trace {
    codebooks: Codebooks,
    text_embeds: Vec<f32>,
    audio_embeds: Vec<f32>,
    followed: Vec<Followed>,
    greedy: Vec<DelayedCodes>,
    sound: Vec<f32>,
    voice: Option<Voice>,
}

/// Rows and sound that both folders are given.
struct Lesson {
    rows: Vec<DelayedCodes>,
    codes: Codes,
    sound: Audio,
}

/// Compares the folder `candidate` with the folder `reference` on these texts, `length` rows of each.
///
/// # Errors
/// As [`Model::load`]; also when the folders do not hold the same kind of model.
pub fn compare(
    candidate: &Path,
    reference: &Path,
    texts: &[String],
    length: usize,
    options: &LoadOptions,
) -> Result<Report> {
    let mut model = Model::load(reference, options)?;
    let lesson = lesson(&mut model, texts, length)?;
    let expected = trace(&mut model, texts, &lesson)?;
    drop(model);
    let mut model = Model::load(candidate, options)?;
    let (found, wanted) = (model.contract(), expected.text_embeds.len());
    let ids = wanted / found.hidden_size.max(1);
    let other =
        || UserError::request("the two folders hold different models").with_hint("compare folders of one model");
    ensure!(found.codebooks == expected.codebooks && ids * found.hidden_size == wanted, other());
    let found = trace(&mut model, texts, &lesson)?;
    ensure!(found.text_embeds.len() == wanted, other());
    Ok(report(&found, &expected, &lesson))
}

fn lesson(model: &mut Model, texts: &[String], length: usize) -> Result<Lesson> {
    let sampling = Sampling { seed: 1, ..Sampling::default() };
    let rows = texts.iter().map(|text| draw(model, text, sampling, length)).collect::<Result<Vec<_>>>()?;
    let longest = rows.iter().max_by_key(|rows| rows.len());
    let (codes, _) = longest.ok_or_else(|| UserError::request("no text is given"))?.undelayed();
    let sound = model.decode(&codes)?;
    Ok(Lesson { rows, codes, sound })
}

fn draw(model: &mut Model, text: &str, sampling: Sampling, length: usize) -> Result<DelayedCodes> {
    let prompt = model.prompt().build(text, None)?;
    Ok(model.draw(&prompt, sampling, length)?.rows().clone())
}

fn trace(model: &mut Model, texts: &[String], lesson: &Lesson) -> Result<Trace> {
    let greedy = Sampling { temperature: 0.0, rules: Rules::Reference, ..Sampling::default() };
    let prompts: Vec<Vec<Segment>> =
        texts.iter().map(|text| model.prompt().build(text, None)).collect::<Result<_>>()?;
    let flat = |embeds: Array2<f32>| embeds.into_iter().collect::<Vec<f32>>();
    let mut text_embeds = Vec::new();
    for prompt in &prompts {
        text_embeds.extend(flat(model.embed(prompt)?));
    }
    let mut audio_embeds = Vec::new();
    for rows in &lesson.rows {
        audio_embeds.extend(flat(model.embed(&[Segment::Codes(rows.clone())])?));
    }
    let followed = prompts.iter().zip(&lesson.rows).map(|(prompt, rows)| model.follow(prompt, rows));
    let followed = followed.collect::<Result<_>>()?;
    let greedy = texts.iter().zip(&lesson.rows).map(|(text, rows)| draw(model, text, greedy, rows.len()));
    let greedy = greedy.collect::<Result<_>>()?;
    let sound = model.decode(&lesson.codes)?.samples;
    let voice = if model.has_encoder() { Some(model.encode_voice(&lesson.sound, None)?) } else { None };
    let codebooks = model.contract().codebooks;
    Ok(Trace { codebooks, text_embeds, audio_embeds, followed, greedy, sound, voice })
}

fn report(found: &Trace, expected: &Trace, lesson: &Lesson) -> Report {
    let both = || found.followed.iter().zip(&expected.followed);
    let pairs = || both().flat_map(|(found, expected)| found.logits.outer_iter().zip(expected.logits.outer_iter()));
    let argmax = shares(expected.codebooks.count, pairs().map(|(a, b)| (likeliest(a), likeliest(b))));
    let greedy_equal = found.greedy.iter().zip(&expected.greedy).map(|(found, expected)| {
        found.rows().zip(expected.rows()).take_while(|(found, expected)| found == expected).count()
    });
    let eoc = usize::from(expected.codebooks.eoc());
    let ramp_in = expected.codebooks.count;
    let mut rank_errors: Vec<usize> = both()
        .flat_map(|(found, expected)| found.logits.outer_iter().zip(expected.logits.outer_iter()).skip(ramp_in))
        .map(|(found, expected)| rank(found, eoc).abs_diff(rank(expected, eoc)))
        .collect();
    rank_errors.sort_unstable();
    let codes = |voice: &Option<Voice>| voice.as_ref().map(|voice| voice.codes.clone());
    let codec_encode = codes(&found.voice).zip(codes(&expected.voice)).map(|(found, expected)| {
        let frames = found.frames().zip(expected.frames()).map(|(a, b)| (a.to_vec(), b.to_vec()));
        shares(lesson.codes.codebooks().count, frames)
    });
    let hidden =
        |part: fn(&Followed) -> Vec<f32>, trace: &Trace| trace.followed.iter().flat_map(part).collect::<Vec<_>>();
    let agree = |part: fn(&Followed) -> Vec<f32>| agreement(&hidden(part, found), &hidden(part, expected));
    Report {
        text_embed: agreement(&found.text_embeds, &expected.text_embeds),
        audio_embed: agreement(&found.audio_embeds, &expected.audio_embeds),
        prefill: agree(|followed| followed.prompt.iter().copied().collect()),
        rows: agree(|followed| followed.drawn_from.iter().copied().collect()),
        argmax,
        greedy_rows: (greedy_equal.sum(), expected.greedy.iter().map(DelayedCodes::len).sum()),
        eoc_rank_error: (
            rank_errors.get(rank_errors.len() / 2).copied().unwrap_or(0),
            rank_errors.last().copied().unwrap_or(0),
        ),
        codec_decode: agreement(&found.sound, &expected.sound),
        codec_encode,
    }
}

/// The likeliest entry of each codebook, the lowest on ties.
fn likeliest(logits: ArrayView2<'_, f32>) -> Vec<u16> {
    let best = |logits: ArrayView1<'_, f32>| {
        (0..)
            .zip(logits)
            .fold((0, f32::NEG_INFINITY), |best, (at, &logit)| if logit > best.1 { (at, logit) } else { best })
            .0
    };
    logits.outer_iter().map(best).collect()
}

/// How many entries of codebook 0 are likelier than this one.
fn rank(logits: ArrayView2<'_, f32>, entry: usize) -> usize {
    let logits = logits.row(0);
    logits.iter().filter(|&&logit| logit > logits[entry]).count()
}

/// How often the two halves of the pairs agree, codebook by codebook.
fn shares(codebooks: usize, pairs: impl Iterator<Item = (Vec<u16>, Vec<u16>)>) -> Shares {
    let (mut equal, mut all) = (vec![0usize; codebooks], 0usize);
    for (found, expected) in pairs {
        all += 1;
        for (equal, (found, expected)) in equal.iter_mut().zip(found.iter().zip(&expected)) {
            *equal += usize::from(found == expected);
        }
    }
    equal.into_iter().map(|equal| equal as f64 / all.max(1) as f64).collect()
}

fn agreement(found: &[f32], expected: &[f32]) -> Agreement {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    let cosine = dot(found, expected) / (dot(found, found) * dot(expected, expected)).sqrt();
    let max_difference = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    Agreement { cosine, max_difference }
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    #[test]
    fn ranks_and_likeliest_entries_follow_the_logits() {
        let logits = array![[0.0, 3.0, 1.0, 3.0], [9.0, 0.0, 0.0, 0.0]];
        assert_eq!(likeliest(logits.view()), [1, 0]);
        assert_eq!([1, 2, 0].map(|entry| rank(logits.view(), entry)), [0, 2, 3]);
    }

    #[test]
    fn shares_count_each_codebook_by_itself() {
        let pairs = [(vec![1, 2], vec![1, 3]), (vec![4, 5], vec![4, 5])];
        assert_eq!(shares(2, pairs.into_iter()), [1.0, 0.5]);
    }

    #[test]
    fn equal_numbers_agree_and_opposite_ones_do_not() {
        let same = agreement(&[1.0, 2.0], &[1.0, 2.0]);
        assert!((same.cosine - 1.0).abs() < 1e-12);
        assert_eq!(same.max_difference, 0.0);
        let opposite = agreement(&[1.0, 0.0], &[-1.0, 0.0]);
        assert!((opposite.cosine + 1.0).abs() < 1e-12);
        assert_eq!(opposite.max_difference, 2.0);
    }
}
