//! The transformer and its KV cache.
//!
//! The cache has a fixed number of *slots*, each with room for the positions of one utterance, in one piece of memory
//! per layer. Past and present are the same memory: the decoder is bound to it once and writes new positions in place,
//! so a step neither copies the cache nor allocates for it. How much of a slot is valid is told by the attention mask
//! alone; what lies behind is never read. A step runs the first n slots together, whatever their lengths; each gets
//! what it would get alone.

mod cache;

use anyhow::{Context, Result, ensure};
use ndarray::{Array2, ArrayView2};
use ort::memory::MemoryInfo;

pub use self::cache::KvCache;
use super::{
    Device,
    contract::LanguageContract,
    session::{OpenGraph, float_tensor, floats, int_tensor},
};

/// Embeddings → hidden states.
#[derive(Debug)]
pub struct Decoder {
    pub(super) graph: OpenGraph,
    pub(super) contract: LanguageContract,
    pub(super) device: Device,
}

impl Decoder {
    /// A cache of so many slots with room for so many positions each.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn allocate(&self, slots: usize, capacity: usize) -> Result<KvCache> {
        KvCache::new(&self.graph.session, &self.contract, self.device, slots, capacity)
            .with_context(|| format!("no memory for a KV cache of {slots} × {capacity} positions"))
    }

    /// Gives a cache room for more positions, keeping what is in it.
    ///
    /// # Errors
    /// When the memory cannot be had, or the cache lies on a GPU. It is unchanged then.
    pub fn grow(&self, cache: &mut KvCache, capacity: usize) -> Result<()> {
        let mut grown = self.allocate(cache.slots(), capacity)?;
        grown.take_over(cache)?;
        *cache = grown;
        Ok(())
    }

    /// Appends embeddings `[L, H]` to one slot and gives their hidden states `[L, H]`.
    ///
    /// # Errors
    /// When the slot has no room, or the graph fails or is interrupted.
    pub fn prefill(&mut self, embeds: ArrayView2<'_, f32>, cache: &mut KvCache, slot: usize) -> Result<Array2<f32>> {
        let (length, hidden_size) = embeds.dim();
        let total = cache.len(slot) + length;
        let hidden = self.run(embeds, [1, length, hidden_size], cache, slot, &[total])?;
        cache.set_len(slot, total);
        Ok(hidden)
    }

    /// Appends one embedding to each of the first slots, `[slots, H]`, and gives their hidden states `[slots, H]`.
    ///
    /// # Errors
    /// When a slot has no room, or the graph fails or is interrupted.
    pub fn step(&mut self, embeds: ArrayView2<'_, f32>, cache: &mut KvCache) -> Result<Array2<f32>> {
        let (slots, hidden_size) = embeds.dim();
        let totals: Vec<usize> = (0..slots).map(|slot| cache.len(slot) + 1).collect();
        let hidden = self.run(embeds, [slots, 1, hidden_size], cache, 0, &totals)?;
        for (slot, total) in totals.into_iter().enumerate() {
            cache.set_len(slot, total);
        }
        Ok(hidden)
    }

    /// Runs embeddings `[slots, L, H]` on the slots from `first` on, which will then be filled up to `totals`.
    fn run(
        &mut self,
        embeds: ArrayView2<'_, f32>,
        shape: [usize; 3],
        cache: &mut KvCache,
        first: usize,
        totals: &[usize],
    ) -> Result<Array2<f32>> {
        let longest = totals.iter().copied().max().context("no slot to run")?;
        ensure!(longest <= cache.capacity(), "the KV cache has room for {} positions, not {longest}", cache.capacity());
        let embeds = embeds.as_standard_layout();
        let values = embeds.as_slice().context("embeddings are contiguous")?;
        // The operator takes a row's length from the sum of its mask, wherever the ones stand.
        let mask = totals.iter().flat_map(|&total| (0..longest).map(move |at| i64::from(at < total))).collect();
        let OpenGraph { session, interrupt, .. } = &mut self.graph;
        let binding = cache.binding(session, first, totals.len())?;
        binding.bind_input("inputs_embeds", &float_tensor(&shape, values, self.contract.embeds_type)?)?;
        binding.bind_input("attention_mask", &int_tensor(&[totals.len(), longest], mask)?)?;
        // Bound anew each time: its shape changes between prefill and decode steps.
        binding.bind_output_to_device("hidden_states", &MemoryInfo::default())?;
        let outputs = session.run_binding_with_options(binding, interrupt.options()).context("llm_decoder failed")?;
        let hidden = outputs.get("hidden_states").context("llm_decoder gave no `hidden_states`")?;
        Ok(Array2::from_shape_vec((shape[0] * shape[1], shape[2]), floats(hidden)?)?)
    }
}

#[cfg(test)]
mod tests {
    use std::{num::NonZeroUsize, path::Path};

    use ndarray::{Array2, ArrayView2, Axis, s};

    use super::*;
    use crate::{
        graphs::{Interrupt, Runtime, contract::check_language, open_language},
        manifest::Manifest,
    };

    fn decoder() -> Decoder {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tiny/cpu_fp32");
        let runtime = Runtime::start(NonZeroUsize::MIN).unwrap();
        let manifest = Manifest::read(&folder).unwrap();
        let contract = check_language(&manifest).unwrap();
        let interrupt = Interrupt::new(runtime).unwrap();
        open_language(runtime, &interrupt, &manifest, &contract, Device::Cpu).unwrap().2
    }

    fn embeds(rows: usize, seed: usize) -> Array2<f32> {
        Array2::from_shape_fn((rows, 64), |(row, at)| ((row * 64 + at) as f32 * 0.37 + seed as f32).sin())
    }

    fn differ(a: ArrayView2<'_, f32>, b: ArrayView2<'_, f32>) -> f32 {
        assert_eq!(a.dim(), b.dim());
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    /// Slots of a cache full of NaN, of different lengths, one of them filled anew half way: each is as if alone.
    #[test]
    fn slots_do_not_see_each_other_nor_what_was_there_before() {
        let mut decoder = decoder();
        let mut alone = |prompt: &Array2<f32>, steps: &Array2<f32>| {
            let mut cache = decoder.allocate(1, 40).unwrap();
            let mut hidden = decoder.prefill(prompt.view(), &mut cache, 0).unwrap();
            for step in steps.axis_chunks_iter(Axis(0), 1) {
                hidden.append(Axis(0), decoder.step(step, &mut cache).unwrap().view()).unwrap();
            }
            hidden
        };
        let prompts = [embeds(5, 1), embeds(17, 2), embeds(2, 3), embeds(9, 4)];
        let steps: Vec<_> = (0..4).map(|n| embeds(6, 10 + n)).collect();
        let expected: Vec<_> = prompts.iter().zip(&steps).map(|(prompt, steps)| alone(prompt, steps)).collect();

        let mut cache = decoder.allocate(3, 30).unwrap();
        cache.fill_with_nan();
        for (slot, prompt) in prompts.iter().take(3).enumerate() {
            let hidden = decoder.prefill(prompt.view(), &mut cache, slot).unwrap();
            assert!(differ(hidden.view(), expected[slot].slice(s![..prompt.nrows(), ..])) < 1e-5);
        }
        // The last slot holds the third utterance for three steps, then the fourth.
        let mut told = [5, 17, 2];
        let mut who = [0, 1, 2];
        for n in 0..6 {
            if n == 3 {
                cache.truncate(2, 0);
                decoder.prefill(prompts[3].view(), &mut cache, 2).unwrap();
                (who[2], told[2]) = (3, 9);
            }
            let row = |slot: usize| steps[who[slot]].row(told[slot] - prompts[who[slot]].nrows());
            let rows = ndarray::stack(Axis(0), &[row(0), row(1), row(2)]).unwrap();
            let hidden = decoder.step(rows.view(), &mut cache).unwrap();
            for slot in 0..3 {
                let expected = expected[who[slot]].slice(s![told[slot]..=told[slot], ..]);
                assert!(differ(hidden.slice(s![slot..=slot, ..]), expected) < 1e-5, "step {n}, slot {slot}");
                told[slot] += 1;
            }
        }
    }

    #[test]
    fn a_copied_slot_and_a_grown_cache_go_on_as_before() {
        let mut decoder = decoder();
        let (prompt, step) = (embeds(7, 1), embeds(1, 2));
        let mut cache = decoder.allocate(2, 8).unwrap();
        cache.fill_with_nan();
        decoder.prefill(prompt.view(), &mut cache, 1).unwrap();
        cache.copy(1, 0).unwrap();
        assert_eq!(cache.len(0), 7);
        let expected = decoder.step(step.view(), &mut cache).unwrap();
        cache.truncate(0, 7);
        decoder.grow(&mut cache, 100).unwrap();
        assert_eq!((cache.capacity(), cache.len(0), cache.len(1)), (100, 7, 7));
        let rows = ndarray::concatenate(Axis(0), &[step.view(), step.view()]).unwrap();
        let hidden = decoder.step(rows.view(), &mut cache).unwrap();
        for slot in 0..2 {
            assert!(differ(hidden.slice(s![slot..=slot, ..]), expected.view()) < 1e-5);
        }
    }
}
