//! The transformer and its KV cache.
//!
//! Past and present of the cache are the same memory: the decoder is bound to it once and writes the new positions in
//! place, so a step neither copies the cache nor allocates for it. How much of it is valid is told by the length of
//! the attention mask alone; what lies behind is never read.

use anyhow::{Context, Result, ensure};
use half::f16;
use ndarray::{Array2, ArrayView2};
use ort::{
    memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType},
    session::IoBinding,
    value::{PrimitiveTensorElementType, Tensor},
};

use super::{
    Device,
    contract::LanguageContract,
    session::{OpenGraph, float_tensor, floats, int_tensor},
};
use crate::onnx::ElementType;

/// Embeddings → hidden states.
#[derive(Debug)]
pub struct Decoder {
    pub(super) graph: OpenGraph,
    pub(super) contract: LanguageContract,
    pub(super) device: Device,
}

/// The keys and values of one utterance's positions.
#[derive(Debug)]
pub struct KvCache {
    binding: IoBinding,
    capacity: usize,
    length: usize,
}

impl KvCache {
    /// Positions that are filled.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no position is filled.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Positions that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets the positions from `length` on.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Decoder {
    /// Memory for the keys and values of so many positions.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub fn allocate(&self, capacity: usize) -> Result<KvCache> {
        let session = &self.graph.session;
        let allocator = match self.device {
            Device::Cpu => Allocator::default(),
            Device::Cuda => Allocator::new(
                session,
                MemoryInfo::new(AllocationDevice::CUDA, 0, AllocatorType::Device, MemoryType::Default)?,
            )?,
        };
        let mut binding = session.create_binding()?;
        for layer in 0..self.contract.layers {
            for half in ["key", "value"] {
                let names = (format!("past_key_values.{layer}.{half}"), format!("present.{layer}.{half}"));
                match self.contract.cache_type {
                    ElementType::Float16 => self.bind_shared::<f16>(&mut binding, &allocator, names, capacity),
                    _ => self.bind_shared::<f32>(&mut binding, &allocator, names, capacity),
                }
                .with_context(|| format!("no memory for a KV cache of {capacity} positions"))?;
            }
        }
        Ok(KvCache { binding, capacity, length: 0 })
    }

    /// Binds one tensor as the past and as the present. It must be an owned one: a borrowed tensor would be copied on
    /// binding, and past and present would silently part ways.
    fn bind_shared<T: PrimitiveTensorElementType + std::fmt::Debug>(
        &self,
        binding: &mut IoBinding,
        allocator: &Allocator,
        (past, present): (String, String),
        capacity: usize,
    ) -> Result<()> {
        let shape = [1, self.contract.kv_heads, capacity, self.contract.head_dim];
        let tensor = Tensor::<T>::new(allocator, shape)?;
        binding.bind_input(past, &tensor)?;
        binding.bind_output(present, tensor)?;
        Ok(())
    }

    /// Appends embeddings `[L, H]` to the positions in the cache and gives their hidden states `[L, H]`.
    ///
    /// With one embedding this is a decode step, with more a prefill.
    ///
    /// # Errors
    /// When the cache has no room, or the graph fails or is interrupted.
    pub fn forward(&mut self, embeds: ArrayView2<'_, f32>, cache: &mut KvCache) -> Result<Array2<f32>> {
        let (length, hidden_size) = embeds.dim();
        let total = cache.length + length;
        ensure!(total <= cache.capacity, "the KV cache has room for {} positions, not {total}", cache.capacity);
        let embeds = embeds.as_standard_layout();
        let values = embeds.as_slice().context("embeddings are contiguous")?;
        let input = float_tensor(&[1, length, hidden_size], values, self.contract.embeds_type)?;
        cache.binding.bind_input("inputs_embeds", &input)?;
        cache.binding.bind_input("attention_mask", &int_tensor(&[1, total], vec![1; total])?)?;
        // Bound anew each time: its shape changes between prefill and decode steps.
        cache.binding.bind_output_to_device("hidden_states", &MemoryInfo::default())?;
        let OpenGraph { session, interrupt, .. } = &mut self.graph;
        let outputs =
            session.run_binding_with_options(&cache.binding, interrupt.options()).context("llm_decoder failed")?;
        let hidden = outputs.get("hidden_states").context("llm_decoder gave no `hidden_states`")?;
        let hidden = Array2::from_shape_vec((length, hidden_size), floats(hidden)?)?;
        cache.length = total;
        Ok(hidden)
    }
}
