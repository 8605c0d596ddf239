//! The weights of a checkpoint, by memory map; or made-up ones of the same names and shapes.

mod random;

use std::{
    collections::{BTreeSet, HashMap},
    ffi::OsStr,
    fs::File,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use half::{bf16, f16};
use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::UserError;

/// Tensors by name.
pub struct Weights {
    maps: Vec<Mmap>,
    tensors: HashMap<String, Entry>,
    /// Tensors of other types; some may be there that no part needs.
    unreadable: HashMap<String, Dtype>,
    origin: String,
}

struct Entry {
    shape: Vec<usize>,
    values: Place,
}

/// Where the values of a tensor come from.
enum Place {
    File { map: usize, start: usize, end: usize, format: Format },
    Random(random::Source),
}

#[derive(Clone, Copy)]
enum Format {
    BFloat16,
    Float16,
    Float32,
}

/// How many missing or wrong tensors are named.
const NAMED: usize = 3;

impl Weights {
    /// Maps the checkpoint in a folder: `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// A [`UserError`] when a file is missing, incomplete or something else.
    pub fn open(folder: &Path) -> Result<Self> {
        let (mut maps, mut tensors, mut hash) = (Vec::new(), HashMap::new(), Sha256::new());
        let mut unreadable = HashMap::new();
        let paths = shards(folder)?;
        for path in &paths {
            let map = map(path)?;
            let (header, metadata) =
                SafeTensors::read_metadata(&map).map_err(|error| incomplete(path, &map, &error))?;
            let data = 8 + header;
            for (name, info) in metadata.tensors() {
                let format = match info.dtype {
                    Dtype::BF16 => Format::BFloat16,
                    Dtype::F16 => Format::Float16,
                    Dtype::F32 => Format::Float32,
                    other => {
                        unreadable.insert(name, other);
                        continue;
                    }
                };
                let (start, end) = (data + info.data_offsets.0, data + info.data_offsets.1);
                let values = Place::File { map: maps.len(), start, end, format };
                tensors.insert(name, Entry { shape: info.shape.clone(), values });
            }
            fingerprint(&mut hash, &map, data);
            maps.push(map);
        }
        // The configs are part of what a checkpoint is: they hold constants that no tensor shows.
        for config in ["config.json", super::codec::CONFIG_FILE] {
            hash.update(std::fs::read(folder.join(config)).unwrap_or_default());
        }
        let digest: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { maps, tensors, unreadable, origin: format!("sha256-sampled:{digest}") })
    }

    /// Makes up weights of these names and shapes. The same seed makes the same weights.
    pub fn random(seed: u64, weights: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self {
        let entry = |(name, shape): (String, Vec<usize>)| {
            let values = Place::Random(random::Source::new(seed, &name, &shape));
            (name, Entry { shape, values })
        };
        let tensors = weights.into_iter().map(entry).collect();
        Self { maps: Vec::new(), tensors, unreadable: HashMap::new(), origin: format!("random:{seed}") }
    }

    /// What the weights are, in a word that differs where they do: a hash over the headers, the sizes and samples of
    /// the data, since hashing gigabytes would take longer than exporting them.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether the weights are made up.
    pub fn is_random(&self) -> bool {
        self.maps.is_empty()
    }

    /// Checks that all these tensors are there in their shapes; others do not matter.
    ///
    /// # Errors
    /// A [`UserError`] that names the first ones and says how many there are.
    pub fn check(&self, wanted: &[(String, Vec<usize>)]) -> Result<()> {
        let faults: Vec<String> = wanted
            .iter()
            .filter_map(|(name, shape)| match self.tensors.get(name) {
                None => Some(match self.unreadable.get(name) {
                    Some(found) => format!("{name} is of type {found:?}"),
                    None => format!("{name} is missing"),
                }),
                Some(found) if found.shape != *shape => {
                    Some(format!("{name} has the shape {:?}, expected {shape:?}", found.shape))
                }
                Some(_) => None,
            })
            .collect();
        if faults.is_empty() {
            return Ok(());
        }
        let rest = match faults.len().saturating_sub(NAMED) {
            0 => String::new(),
            rest => format!(", and {rest} more"),
        };
        let named = faults[..faults.len().min(NAMED)].join(", ");
        let message = format!("the checkpoint does not fit its config.json: {named}{rest}");
        Err(UserError::request(message).with_hint("is it the whole checkpoint, in BF16, F16 or F32?").into())
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// When it is not there.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>> {
        let (name, entry) = self.tensors.get_key_value(name).with_context(|| format!("there is no tensor {name}"))?;
        let values = match entry.values {
            Place::File { map, start, end, format } => Values::File { map: &self.maps[map], start, end, format },
            Place::Random(source) => Values::Random(source),
        };
        Ok(Tensor { name, shape: &entry.shape, values })
    }
}

/// A tensor whose values are read piece by piece, as single-precision numbers.
#[derive(Clone, Copy)]
pub struct Tensor<'w> {
    name: &'w str,
    shape: &'w [usize],
    values: Values<'w>,
}

#[derive(Clone, Copy)]
enum Values<'w> {
    File { map: &'w Mmap, start: usize, end: usize, format: Format },
    Random(random::Source),
}

impl Tensor<'_> {
    /// Its name in the checkpoint.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        self.shape
    }

    /// How many values it has.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Reads as many values as `out` holds, from the flat index `start` on.
    ///
    /// # Panics
    /// When the tensor ends before.
    pub fn read(&self, start: usize, out: &mut [f32]) {
        fn each<const N: usize>(bytes: &[u8], out: &mut [f32], start: usize, value: impl Fn([u8; N]) -> f32) {
            // Safetensors aligns nothing, so values are put together from bytes.
            let bytes = &bytes[N * start..][..N * out.len()];
            out.iter_mut().zip(bytes.as_chunks::<N>().0).for_each(|(out, &bytes)| *out = value(bytes));
        }
        let (bytes, format) = match self.values {
            Values::File { map, start, end, format } => (&map[start..end], format),
            Values::Random(source) => return source.read(start, out),
        };
        match format {
            Format::BFloat16 => each(bytes, out, start, |b| bf16::from_le_bytes(b).to_f32()),
            Format::Float16 => each(bytes, out, start, |b| f16::from_le_bytes(b).to_f32()),
            Format::Float32 => each(bytes, out, start, f32::from_le_bytes),
        }
    }

    /// Lets go of the memory that reading has filled. The system would take it when it needs it, but counts it as this
    /// program's until then.
    pub(super) fn release(&self) {
        #[cfg(unix)]
        if let Values::File { map, start, end, .. } = self.values {
            // SAFETY: the map is of a file and never written to, so that what is dropped is read again when it is used.
            #[expect(unsafe_code, reason = "a checkpoint of gigabytes is let go piece by piece")]
            let advised = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, end - start) };
            // Advice that is not taken changes nothing.
            let _ = advised;
        }
    }

    /// Reads all values.
    pub fn to_vec(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.count()];
        self.read(0, &mut values);
        values
    }
}

/// The files that hold the tensors.
fn shards(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join("model.safetensors.index.json");
    let single = folder.join("model.safetensors");
    if !index.is_file() {
        return match single.is_file() {
            true => Ok(vec![single]),
            false => {
                let message = format!("{} has no model.safetensors", folder.display());
                let hint = "name the folder that the published checkpoint was downloaded to";
                Err(UserError::request(message).with_hint(hint).into())
            }
        };
    }
    let unusable = || UserError::request(format!("{} cannot be used", index.display())).with_hint(DOWNLOAD);
    let json: Value = serde_json::from_slice(&std::fs::read(&index).with_context(unusable)?).with_context(unusable)?;
    let files = json["weight_map"].as_object().context("it has no `weight_map`").with_context(unusable)?;
    // Shards lie in the folder: a name that leads elsewhere is a mistake or worse.
    let is_plain = |name: &&str| Path::new(name).file_name() == Some(OsStr::new(name));
    let names = files.iter().map(|(tensor, file)| {
        file.as_str()
            .filter(is_plain)
            .with_context(|| format!("its file {file} of {tensor} is not the name of a file in the folder"))
    });
    let names = names.collect::<Result<BTreeSet<&str>>>().with_context(unusable)?;
    ensure!(!names.is_empty(), unusable());
    let missing: Vec<&str> = names.iter().copied().filter(|name| !folder.join(name).is_file()).collect();
    if let Some(first) = missing.first() {
        let (missing, all) = (missing.len(), names.len());
        let message = format!("{} of {all} checkpoint files are missing in {}: {first}", missing, folder.display());
        return Err(UserError::request(message).with_hint(DOWNLOAD).into());
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

const DOWNLOAD: &str = "download the checkpoint again; a download that was broken off can be resumed";

fn map(path: &Path) -> Result<Mmap> {
    let shown = path.display();
    let file = File::open(path).with_context(|| UserError::request(format!("cannot open {shown}")))?;
    // SAFETY: the map is read-only, and read as bytes only. Somebody who truncates the checkpoint while it is exported
    // gets a bus error, as with every program that maps its weights.
    #[expect(unsafe_code, reason = "a checkpoint of gigabytes is mapped, not read")]
    let map = unsafe { Mmap::map(&file) };
    map.with_context(|| UserError::request(format!("{shown} cannot be mapped")).with_hint(DOWNLOAD))
}

/// What is wrong with a file whose header and size do not fit.
fn incomplete(path: &Path, map: &[u8], error: &SafeTensorError) -> UserError {
    let what = if map.starts_with(b"version https://git-lfs") {
        "it is a git-lfs pointer, not the file itself".to_owned()
    } else {
        match needed_bytes(map) {
            Some(needed) if needed == map.len() as u64 => format!("its header is wrong: {error}"),
            Some(needed) => format!("it has {} bytes, and its header promises {needed}", map.len()),
            None => format!("its {} bytes do not begin with a header of safetensors", map.len()),
        }
    };
    UserError::request(format!("{} cannot be used: {what}", path.display())).with_hint(DOWNLOAD)
}

/// Bytes of the whole file by its header.
fn needed_bytes(map: &[u8]) -> Option<u64> {
    let (length, rest) = map.split_first_chunk()?;
    let length = u64::from_le_bytes(*length);
    let header: Value = serde_json::from_slice(rest.get(..usize::try_from(length).ok()?)?).ok()?;
    let ends = header.as_object()?.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    Some(8 + length + ends.max()?)
}

/// Adds a file to the hash: its length, its header, and pages from all over its data.
fn fingerprint(hash: &mut Sha256, map: &[u8], data: usize) {
    const PAGES: usize = 64;
    const PAGE: usize = 4096;
    hash.update((map.len() as u64).to_le_bytes());
    hash.update(&map[..data]);
    for page in 0..PAGES {
        let start = data + (map.len() - data) / PAGES * page;
        hash.update(&map[start..map.len().min(start + PAGE)]);
    }
}

#[cfg(test)]
mod tests;
