//! The memory of the KV cache, and the views of it that the decoder is bound to.

use std::{collections::HashMap, ptr::NonNull};

use anyhow::{Result, bail, ensure};
use half::f16;
use ort::{
    AsPointer,
    memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType},
    session::{IoBinding, Session},
    value::{DynTensor, DynValue, Tensor, TensorElementType, Value},
};

use crate::{
    graphs::{Device, contract::LanguageContract},
    onnx::ElementType,
};

/// The keys and values of several utterances' positions: per layer `[slots, heads, capacity, head size]`, twice.
#[derive(Debug)]
pub struct KvCache {
    // The bindings hold views of the memory; fields are dropped in order, so they go first.
    bindings: HashMap<(usize, usize), IoBinding>,
    halves: Vec<Half>,
    allocator: Allocator,
    element_type: TensorElementType,
    kv_heads: usize,
    head_dim: usize,
    capacity: usize,
    lengths: Vec<usize>,
}

/// The keys or the values of one layer.
#[derive(Debug)]
struct Half {
    past: String,
    present: String,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    /// Zero pages of the system: what is not used takes no memory.
    Host(Vec<u64>),
    Device(DynTensor),
}

impl Memory {
    fn pointer(&mut self) -> *mut u8 {
        match self {
            Self::Host(words) => words.as_mut_ptr().cast(),
            Self::Device(tensor) => tensor.data_ptr().cast_mut().cast(),
        }
    }
}

impl Memory {
    fn host(&mut self) -> Result<&mut Vec<u64>> {
        match self {
            Self::Host(words) => Ok(words),
            Self::Device(_) => bail!("slots of a cache on a GPU cannot be copied"),
        }
    }
}

impl KvCache {
    pub(super) fn new(
        session: &Session,
        contract: &LanguageContract,
        device: Device,
        slots: usize,
        capacity: usize,
    ) -> Result<Self> {
        let LanguageContract { layers, kv_heads, head_dim, cache_type, .. } = *contract;
        let element_type =
            if cache_type == ElementType::Float16 { TensorElementType::Float16 } else { TensorElementType::Float32 };
        let allocator = match device {
            Device::Cpu => Allocator::default(),
            Device::Cuda => {
                let memory = MemoryInfo::new(AllocationDevice::CUDA, 0, AllocatorType::Device, MemoryType::Default)?;
                Allocator::new(session, memory)?
            }
        };
        let shape = [slots, kv_heads, capacity, head_dim];
        // So that a position begins and ends on a whole word, which copying takes for granted.
        let is_whole = (head_dim * size_of_element(element_type)).is_multiple_of(size_of::<u64>());
        ensure!(is_whole, "heads of {head_dim} are too short");
        let bytes = shape.iter().product::<usize>() * size_of_element(element_type);
        let memory = || -> Result<Memory> {
            Ok(match (device, element_type) {
                (Device::Cpu, _) => Memory::Host(vec![0; bytes.div_ceil(size_of::<u64>())]),
                (Device::Cuda, TensorElementType::Float16) => {
                    Memory::Device(Tensor::<f16>::new(&allocator, shape)?.upcast())
                }
                (Device::Cuda, _) => Memory::Device(Tensor::<f32>::new(&allocator, shape)?.upcast()),
            })
        };
        let mut halves = Vec::with_capacity(2 * layers);
        for layer in 0..layers {
            for half in ["key", "value"] {
                let (past, present) = (format!("past_key_values.{layer}.{half}"), format!("present.{layer}.{half}"));
                halves.push(Half { past, present, memory: memory()? });
            }
        }
        let (bindings, lengths) = (HashMap::new(), vec![0; slots]);
        Ok(Self { bindings, halves, allocator, element_type, kv_heads, head_dim, capacity, lengths })
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.lengths.len()
    }

    /// Positions that fit into a slot.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Positions of a slot that are filled.
    pub fn len(&self, slot: usize) -> usize {
        self.lengths[slot]
    }

    /// Whether no position of a slot is filled.
    pub fn is_empty(&self, slot: usize) -> bool {
        self.lengths[slot] == 0
    }

    /// Forgets the positions of a slot from `length` on.
    pub fn truncate(&mut self, slot: usize, length: usize) {
        self.lengths[slot] = self.lengths[slot].min(length);
    }

    pub(super) fn set_len(&mut self, slot: usize, length: usize) {
        self.lengths[slot] = length;
    }

    /// Copies the filled positions of one slot to another.
    ///
    /// # Errors
    /// When the cache lies on a GPU.
    pub fn copy(&mut self, from: usize, to: usize) -> Result<()> {
        ensure!(from < self.slots() && to < self.slots(), "there are {} slots", self.slots());
        let (filled, head) = (self.words(self.lengths[from]), self.words(self.capacity));
        for half in &mut self.halves {
            let words = half.memory.host()?;
            for n in 0..self.kv_heads {
                let source = (from * self.kv_heads + n) * head;
                words.copy_within(source..source + filled, (to * self.kv_heads + n) * head);
            }
        }
        self.lengths[to] = self.lengths[from];
        Ok(())
    }

    /// Copies the filled positions of all slots of another cache, which has as many slots and no more capacity.
    ///
    /// # Errors
    /// When a cache lies on a GPU, or does not fit.
    pub(super) fn take_over(&mut self, other: &mut Self) -> Result<()> {
        ensure!(other.slots() == self.slots() && other.capacity <= self.capacity, "the caches do not fit");
        let (target_head, source_head) = (self.words(self.capacity), other.words(other.capacity));
        for slot in 0..self.slots() {
            let filled = self.words(other.lengths[slot]);
            for (target, source) in self.halves.iter_mut().zip(&mut other.halves) {
                let (target, source) = (target.memory.host()?, source.memory.host()?);
                for n in slot * self.kv_heads..(slot + 1) * self.kv_heads {
                    let (to, from) = (n * target_head, n * source_head);
                    target[to..to + filled].copy_from_slice(&source[from..from + filled]);
                }
            }
        }
        self.lengths.clone_from(&other.lengths);
        Ok(())
    }

    /// Fills the memory with NaN, which whatever is read of it would show.
    #[cfg(test)]
    pub(super) fn fill_with_nan(&mut self) {
        for half in &mut self.halves {
            if let Memory::Host(words) = &mut half.memory {
                words.fill(u64::MAX);
            }
        }
    }

    /// Words that so many positions of one head take.
    fn words(&self, positions: usize) -> usize {
        positions * self.head_dim * size_of_element(self.element_type) / size_of::<u64>()
    }

    /// The binding of the decoder to `count` slots from `first` on, made when it is first needed.
    pub(super) fn binding(&mut self, session: &Session, first: usize, count: usize) -> Result<&mut IoBinding> {
        ensure!(first + count <= self.slots(), "the KV cache has {} slots, not {}", self.slots(), first + count);
        if !self.bindings.contains_key(&(first, count)) {
            let mut binding = session.create_binding()?;
            let shape = [count, self.kv_heads, self.capacity, self.head_dim].map(|length| length as i64);
            let slot = self.kv_heads * self.capacity * self.head_dim * size_of_element(self.element_type);
            for half in &mut self.halves {
                // SAFETY: the slots from `first` to `first + count` lie inside the memory, which neither moves nor goes
                // before the bindings do.
                #[expect(unsafe_code, reason = "a slot is a part of a tensor, and ort has no view of a part")]
                let view = unsafe {
                    view(half.memory.pointer().add(first * slot), &shape, self.element_type, &self.allocator)?
                };
                binding.bind_input(&half.past, &view)?;
                binding.bind_output(&half.present, view)?;
            }
            self.bindings.insert((first, count), binding);
        }
        let binding = self.bindings.get_mut(&(first, count));
        binding.ok_or_else(|| anyhow::anyhow!("the binding is there"))
    }
}

fn size_of_element(element_type: TensorElementType) -> usize {
    if element_type == TensorElementType::Float16 { size_of::<f16>() } else { size_of::<f32>() }
}

/// A tensor over memory that somebody else owns. It counts as an owned one, which ort binds without a copy; a borrowed
/// one would be copied on binding, and past and present would silently part ways.
///
/// # Safety
/// The memory must hold that many elements for as long as the value or a binding of it lives.
#[expect(unsafe_code, reason = "ort has no safe way to bind a part of a tensor")]
unsafe fn view(
    data: *mut u8,
    shape: &[i64],
    element_type: TensorElementType,
    allocator: &Allocator,
) -> Result<DynValue> {
    let bytes = shape.iter().product::<i64>().unsigned_abs() as usize * size_of_element(element_type);
    let mut value = std::ptr::null_mut();
    // SAFETY: the pointers are valid for the call, and the caller vouches for the data.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            allocator.memory_info().ptr(),
            data.cast(),
            bytes,
            shape.as_ptr(),
            shape.len(),
            element_type.into(),
            &mut value,
        )
    };
    // SAFETY: the status comes from the call above.
    unsafe { ort::Error::result_from_status(status) }?;
    let value = NonNull::new(value).ok_or_else(|| anyhow::anyhow!("ONNX Runtime made no tensor"))?;
    // SAFETY: a value that was just created, and that nobody else releases.
    Ok(unsafe { Value::from_ptr(value, Some(allocator)) })
}
