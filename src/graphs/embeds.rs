//! The tables around the decoder: text tokens and rows of codes in, logits out.

use anyhow::{Result, ensure};
use ndarray::{Array2, ArrayView1};

use super::{
    contract::LanguageContract,
    session::{OpenGraph, float_tensor, int_tensor},
};
use crate::codes::DelayedCodes;

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
    /// When the graph fails.
    pub fn embed(&mut self, rows: &DelayedCodes) -> Result<Array2<f32>> {
        self.embed_rows(rows.rows())
    }

    /// Embedding `[1, H]` of a single row.
    ///
    /// # Errors
    /// When the graph fails.
    pub fn embed_row(&mut self, row: &[u16]) -> Result<Array2<f32>> {
        self.embed_rows(std::iter::once(row))
    }

    fn embed_rows<'a>(&mut self, rows: impl ExactSizeIterator<Item = &'a [u16]>) -> Result<Array2<f32>> {
        let count = rows.len();
        let codes: Vec<i64> = rows.flatten().copied().map(i64::from).collect();
        ensure!(count > 0, "no rows to embed");
        let input = int_tensor(&[1, count, codes.len() / count], codes)?;
        let (_, values) = self.graph.run(vec![("codes", input)], "audio_embeds")?;
        Ok(Array2::from_shape_vec((count, self.hidden_size), values)?)
    }
}

/// Hidden state → logits of every codebook.
#[derive(Debug)]
pub struct AudioHeads {
    pub(super) graph: OpenGraph,
    pub(super) contract: LanguageContract,
}

impl AudioHeads {
    /// Logits `[codebooks, vocabulary]` of one hidden state `[H]`.
    ///
    /// # Errors
    /// When the graph fails.
    pub fn logits(&mut self, hidden: ArrayView1<'_, f32>) -> Result<Array2<f32>> {
        let input = float_tensor(&[1, 1, hidden.len()], &hidden.to_vec(), self.contract.heads_type)?;
        let (_, values) = self.graph.run(vec![("hidden_states", input)], "audio_logits")?;
        let codebooks = self.contract.codebooks;
        Ok(Array2::from_shape_vec((codebooks.count, codebooks.vocab_size()), values)?)
    }
}
