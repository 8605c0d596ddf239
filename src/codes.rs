//! Codes and the delay pattern.
//!
//! The codec turns 40 ms of sound into one *frame* of codes, one per codebook. The language model does not see frames:
//! codebook k is delayed by k rows, so that each of its steps makes one *row* whose entry k belongs to frame row − k.
//! The two orders are two types, so that delayed codes cannot reach the codec by mistake.
//!
//! With three codebooks (a, b, c) and two frames, B and E standing for BOC and EOC:
//!
//! ```text
//! frames        rows
//! a0 b0 c0      a0 B  B
//! a1 b1 c1      a1 b0 B
//!               E  b1 c0
//!               E  E  c1
//! ```

use anyhow::{Result, ensure};

/// How many codebooks there are, and how many codes each has.
///
/// The two special entries of the language model's vocabulary follow the codes: BOC fills a row before a codebook has
/// begun, EOC after it has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codebooks {
    /// Number of codebooks; number 0 leads.
    pub count: usize,
    /// Number of codes in each, without the specials.
    pub size: u16,
}

impl std::fmt::Display for Codebooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} codebooks of {} codes", self.count, self.size)
    }
}

impl Codebooks {
    /// Begin of codebook: stands in a row for a codebook that has not begun.
    pub fn boc(self) -> u16 {
        self.size
    }

    /// End of codebook: on codebook 0 it ends the speech.
    pub fn eoc(self) -> u16 {
        self.size + 1
    }

    /// Number of entries that the language model chooses from: the codes and the two specials.
    pub fn vocab_size(self) -> usize {
        usize::from(self.size) + 2
    }

    /// Rows that a number of frames takes when delayed.
    pub fn rows_of(self, frames: usize) -> usize {
        frames.saturating_add(self.count - 1)
    }

    /// Whole frames in a number of rows.
    pub fn frames_of(self, rows: usize) -> usize {
        (rows + 1).saturating_sub(self.count)
    }
}

/// Frames of codes as the codec knows them, `[frames, codebooks]`. Every entry is a code, never a special.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Codes {
    codebooks: Codebooks,
    entries: Vec<u16>,
}

impl Codes {
    /// Takes frames in order, `codebooks.count` entries each.
    ///
    /// # Errors
    /// When the last frame is not whole, or an entry is not a code.
    pub fn new(codebooks: Codebooks, entries: Vec<u16>) -> Result<Self> {
        ensure!(
            entries.len().is_multiple_of(codebooks.count),
            "{} entries are not whole frames of {} codes",
            entries.len(),
            codebooks.count
        );
        if let Some(code) = entries.iter().find(|&&code| code >= codebooks.size) {
            anyhow::bail!("{code} is not a code: the codebooks have {} codes", codebooks.size);
        }
        Ok(Self { codebooks, entries })
    }

    /// The codebooks that the entries belong to.
    pub fn codebooks(&self) -> Codebooks {
        self.codebooks
    }

    /// Number of frames.
    pub fn len(&self) -> usize {
        self.entries.len() / self.codebooks.count
    }

    /// Whether there is no frame at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps the first frames only.
    pub fn truncate(&mut self, frames: usize) {
        self.entries.truncate(frames * self.codebooks.count);
    }

    /// The frames in order, one code per codebook each.
    pub fn frames(&self) -> impl ExactSizeIterator<Item = &[u16]> {
        self.entries.chunks_exact(self.codebooks.count)
    }

    /// The delay pattern applied: `len() + codebooks − 1` rows, with BOC before each codebook begins and EOC after it
    /// has ended. This is the form in which a reference recording enters the prompt.
    pub fn delayed(&self) -> DelayedCodes {
        let Codebooks { count, .. } = self.codebooks;
        let frames = self.len();
        let mut rows = DelayedCodes::new(self.codebooks);
        for row in 0..self.codebooks.rows_of(frames) {
            rows.entries.extend((0..count).map(|k| match row.checked_sub(k) {
                None => self.codebooks.boc(),
                Some(frame) if frame < frames => self.entries[frame * count + k],
                Some(_) => self.codebooks.eoc(),
            }));
        }
        rows
    }
}

/// Rows of codes as the language model knows them, `[rows, codebooks]`, delayed and with specials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DelayedCodes {
    codebooks: Codebooks,
    entries: Vec<u16>,
}

impl DelayedCodes {
    /// No rows yet.
    pub fn new(codebooks: Codebooks) -> Self {
        Self { codebooks, entries: Vec::new() }
    }

    /// The codebooks that the entries belong to.
    pub fn codebooks(&self) -> Codebooks {
        self.codebooks
    }

    /// Adds a row, one entry per codebook.
    ///
    /// # Panics
    /// When the row has another number of entries.
    pub fn push(&mut self, row: &[u16]) {
        assert_eq!(row.len(), self.codebooks.count, "a row has one entry per codebook");
        self.entries.extend_from_slice(row);
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.entries.len() / self.codebooks.count
    }

    /// Whether there is no row at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The rows in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[u16]> + DoubleEndedIterator {
        self.entries.chunks_exact(self.codebooks.count)
    }

    /// The last row, if there is one.
    pub fn last(&self) -> Option<&[u16]> {
        self.rows().next_back()
    }

    /// The delay pattern undone: the `len() − codebooks + 1` whole frames, and how many specials stood inside them.
    /// The codec has no entry for a special, so it becomes code 0, as in the reference implementation.
    pub fn undelayed(&self) -> (Codes, usize) {
        let Codebooks { count, size } = self.codebooks;
        let mut specials = 0;
        let mut entries = Vec::with_capacity(self.entries.len());
        for frame in 0..self.codebooks.frames_of(self.len()) {
            for k in 0..count {
                let code = self.entries[(frame + k) * count + k];
                specials += usize::from(code >= size);
                entries.push(if code < size { code } else { 0 });
            }
        }
        (Codes { codebooks: self.codebooks, entries }, specials)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOOKS: Codebooks = Codebooks { count: 8, size: 1024 };

    #[test]
    fn two_frames_of_three_codebooks_take_four_rows() {
        let books = Codebooks { count: 3, size: 10 };
        let codes = Codes::new(books, vec![1, 2, 3, 4, 5, 6]).unwrap();
        let (b, e) = (books.boc(), books.eoc());
        let rows: Vec<_> = codes.delayed().rows().map(<[u16]>::to_vec).collect();
        assert_eq!(rows, [[1, b, b], [4, 2, b], [e, 5, 3], [e, e, 6]]);
    }

    #[test]
    fn specials_inside_become_code_zero_and_are_counted() {
        let mut rows = Codes::new(BOOKS, vec![7; 16]).unwrap().delayed();
        rows.entries[8 + 1] = BOOKS.eoc(); // row 1, codebook 1: frame 0
        let (codes, specials) = rows.undelayed();
        assert_eq!(specials, 1);
        assert_eq!(codes.frames().next().unwrap(), [7, 0, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn eight_rows_hold_one_frame_and_seven_hold_none() {
        let mut rows = DelayedCodes::new(BOOKS);
        for _ in 0..7 {
            rows.push(&[0; 8]);
        }
        assert!(rows.undelayed().0.is_empty());
        rows.push(&[0; 8]);
        assert_eq!(rows.undelayed().0.len(), 1);
    }

    #[test]
    fn rows_and_frames_are_counted_without_overflow() {
        assert_eq!((BOOKS.rows_of(1), BOOKS.rows_of(usize::MAX)), (8, usize::MAX));
        assert_eq!((BOOKS.frames_of(0), BOOKS.frames_of(7), BOOKS.frames_of(8)), (0, 0, 1));
    }

    #[test]
    fn a_special_or_a_broken_frame_is_no_code() {
        let error = Codes::new(BOOKS, vec![0, 1, 2, 3, 4, 5, 6, 1024]).unwrap_err();
        assert_eq!(error.to_string(), "1024 is not a code: the codebooks have 1024 codes");
        let error = Codes::new(BOOKS, vec![0; 9]).unwrap_err();
        assert_eq!(error.to_string(), "9 entries are not whole frames of 8 codes");
    }

    proptest! {
        #[test]
        fn undoing_the_delay_gives_the_codes_back(entries in prop::collection::vec(0u16..1024, 0..40)) {
            let entries: Vec<u16> = entries.iter().copied().flat_map(|code| [code; 8]).collect();
            let codes = Codes::new(BOOKS, entries).unwrap();
            prop_assert_eq!(codes.delayed().undelayed(), (codes.clone(), 0));
        }
    }
}
