//! The tables around the decoder: text tokens and rows of codes in, logits out.

use anyhow::{Result, ensure};
use ndarray::{Array2, Array3, ArrayView2};

use super::{
    contract::LanguageContract,
    session::{OpenGraph, float_tensor, int_tensor},
};

/// Text token ids → embeddings.
#[derive(Debug)]
pub struct TextEmbed {
    pub(super) graph: OpenGraph,
    pub(super) vocab_size: usize,
    pub(super) hidden_size: usize,
}

impl TextEmbed {
    /// Embeddings `[ids, H]` of text tokens.
    ///
    /// # Errors
    /// When an id is outside the table, or the graph fails.
    pub fn embed(&mut self, ids: &[i64]) -> Result<Array2<f32>> {
        if let Some(id) = ids.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= self.vocab_size)) {
            anyhow::bail!("token {id} is outside the table of {} text embeddings", self.vocab_size);
        }
        let input = int_tensor(&[1, ids.len()], ids.to_vec())?;
        let (_, values) = self.graph.run(vec![("input_ids", input)], "inputs_embeds")?;
        Ok(Array2::from_shape_vec((ids.len(), self.hidden_size), values)?)
    }
}

/// Rows of codes → embeddings: the sum of one table row per codebook.
#[derive(Debug)]
pub struct AudioEmbed {
    pub(super) graph: OpenGraph,
    pub(super) hidden_size: usize,
}

impl AudioEmbed {
    /// Embeddings `[rows, H]` of rows of codes.
    ///
    /// # Errors
    /// When there is no row, or the graph fails.
    pub fn embed<'a>(&mut self, rows: impl ExactSizeIterator<Item = &'a [u16]>) -> Result<Array2<f32>> {
        let count = rows.len();
        ensure!(count > 0, "no rows to embed");
        let codes: Vec<i64> = rows.flatten().copied().map(i64::from).collect();
        let input = int_tensor(&[1, count, codes.len() / count], codes)?;
        let (_, values) = self.graph.run(vec![("codes", input)], "audio_embeds")?;
        Ok(Array2::from_shape_vec((count, self.hidden_size), values)?)
    }
}

/// Hidden states → logits of every codebook.
#[derive(Debug)]
pub struct AudioHeads {
    pub(super) graph: OpenGraph,
    pub(super) contract: LanguageContract,
}

impl AudioHeads {
    /// Logits `[n, codebooks, vocabulary]` of hidden states `[n, H]`.
    ///
    /// # Errors
    /// When the graph fails.
    pub fn logits(&mut self, hidden: ArrayView2<'_, f32>) -> Result<Array3<f32>> {
        let (count, hidden_size) = hidden.dim();
        let values: Vec<f32> = hidden.iter().copied().collect();
        let input = float_tensor(&[1, count, hidden_size], &values, self.contract.heads_type)?;
        let (_, values) = self.graph.run(vec![("hidden_states", input)], "audio_logits")?;
        let codebooks = self.contract.codebooks;
        Ok(Array3::from_shape_vec((count, codebooks.count, codebooks.vocab_size()), values)?)
    }
}
