//! How much each input of the quantised products matters, from a file of safetensors.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result, ensure};
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};

use super::architecture::Architecture;
use crate::error::UserError;

/// One number for each input of a product, such as the mean square of what comes in there. Products that are not named
/// weigh all inputs evenly.
#[derive(Debug, Clone, PartialEq)]
pub struct Importance {
    /// By the weight's name in the graph, such as `model.layers.0.mlp.down_proj.MatMul.weight`.
    vectors: BTreeMap<String, Vec<f32>>,
    digest: String,
}

impl Importance {
    /// Reads a file with one vector `[K]` in F32 for each product, under the name of its weight.
    ///
    /// # Errors
    /// A [`UserError`] when the file is something else, or a number is negative or not finite.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let bytes = std::fs::read(path).with_context(|| UserError::request(format!("cannot open {shown}")))?;
        Self::parse(&bytes).with_context(|| UserError::request(format!("{shown} cannot be used")))
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let mut vectors = BTreeMap::new();
        for (name, tensor) in SafeTensors::deserialize(bytes)?.iter() {
            let (found, shape) = (tensor.dtype(), tensor.shape());
            let fits = found == Dtype::F32 && shape.len() == 1;
            ensure!(fits, "{name} is of {found:?} in the shape {shape:?}, expected one axis of F32");
            let values: Vec<f32> = tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            let sound = values.iter().all(|value| value.is_finite() && *value >= 0.0);
            ensure!(sound, "{name} has numbers that are negative or not finite");
            vectors.insert(name.to_owned(), values);
        }
        let digest = Sha256::digest(bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { vectors, digest })
    }

    /// Every vector must belong to a product, and fit it.
    pub(super) fn check(&self, architecture: &Architecture) -> Result<()> {
        let inputs: BTreeMap<String, usize> =
            architecture.products().into_iter().map(|(layer, inputs)| (product_weight(&layer), inputs)).collect();
        for (name, vector) in &self.vectors {
            let Some(&expected) = inputs.get(name) else {
                let hint = format!("they are called like {}", inputs.keys().next().map_or("", |name| name));
                return Err(UserError::request(format!("no product has the weight `{name}`")).with_hint(hint).into());
            };
            let message = || format!("the importance of {name} has {} numbers, expected {expected}", vector.len());
            ensure!(vector.len() == expected, UserError::request(message()));
        }
        Ok(())
    }

    /// Of the inputs of a product.
    pub(super) fn of(&self, weight: &str) -> Option<&[f32]> {
        self.vectors.get(weight).map(Vec::as_slice)
    }

    /// What the file is, in a word.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }
}

/// Name in the graph of a layer's weight.
pub(super) fn product_weight(layer: &str) -> String {
    format!("{layer}.MatMul.weight")
}
