//! The header of executables and shared libraries on Linux.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// What can be told from the first 64 bytes.
pub(super) struct Header {
    /// Word size, byte order, processor.
    pub(super) target: [u8; 4],
    /// Where the table of sections begins, in bytes. It lies at the end of the file; 0 if there is none.
    pub(super) sections: u64,
}

impl Header {
    /// `None` if the file is of another kind.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(64).read_to_end(&mut bytes)?;
        Ok(bytes.first_chunk().and_then(Self::parse))
    }

    fn parse(bytes: &[u8; 64]) -> Option<Self> {
        let target = [bytes[4], bytes[5], bytes[18], bytes[19]];
        let little_endian = bytes[40..48].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        // Elsewhere the offset lies or reads otherwise.
        let sections = if target.starts_with(&[2, 1]) { little_endian } else { 0 };
        bytes.starts_with(b"\x7fELF").then_some(Self { target, sections })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_and_end_are_read_from_the_header() {
        let mut bytes = [0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[18..20].copy_from_slice(&[183, 0]);
        bytes[40..48].copy_from_slice(&0x0102_0304_u64.to_le_bytes());
        let header = Header::parse(&bytes).unwrap();
        assert_eq!((header.target, header.sections), ([2, 1, 183, 0], 0x0102_0304));

        bytes[4] = 1;
        assert_eq!(Header::parse(&bytes).unwrap().sections, 0, "a 32-bit file");
        bytes[0] = 0;
        assert!(Header::parse(&bytes).is_none());
    }
}
