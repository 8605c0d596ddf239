//! The draw: the Gumbel-max trick over a hash, as the reference implementation does for seeded requests
//! (SGLang-Omni, `apple_sampling.py`).
//!
//! Each code gets a number that depends only on the seed, the position of the draw and the code. So there is no state
//! to carry: a draw does not depend on the draws before it, on other utterances, or on a library's choice of generator.

use super::filter::Candidate;

/// Draws one code from `(code, probability)` pairs. The position counts draws: row × codebooks + codebook.
pub(super) fn draw(candidates: &[Candidate], seed: u64, position: usize) -> u16 {
    let mut best = (0, f64::NEG_INFINITY);
    for &(code, probability) in candidates {
        let score = gumbel(hash(seed, position as u32, u32::from(code))) + f64::from(probability).ln();
        if score > best.1 || (score == best.1 && code < best.0) {
            best = (code, score);
        }
    }
    best.0
}

/// The reference takes the low 31 bits of a seed.
pub(super) fn reference_seed(seed: u64) -> u64 {
    seed & 0x7fff_ffff
}

/// MurmurHash3 (x86, 32 bit, start 0) over the seed's two halves, the position and the code.
fn hash(seed: u64, position: u32, code: u32) -> u32 {
    let mut hash = 0u32;
    for block in [seed as u32, (seed >> 32) as u32, position, code] {
        let mixed = block.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        hash = (hash ^ mixed).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    hash ^= 16;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// A sample of the standard Gumbel distribution from 32 uniform bits.
fn gumbel(bits: u32) -> f64 {
    let uniform = f64::from(bits) / f64::from(u32::MAX);
    // A uniform of exactly 0 or 1 would give an infinity.
    let log = uniform.ln().clamp(-f64::MAX, -(2f64.powi(-32)));
    -(-log).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_and_gumbels_are_those_of_the_reference() {
        let vectors = [
            (0, 0, 0, 0x8134_cdf8, 0.380_137_563_330),
            (0, 0, 1, 0x0099_0201, -1.801_687_655_747),
            (42, 0, 0, 0x6f61_0fe4, 0.183_637_651_519),
            (42, 0, 1, 0x6ac7_e06f, 0.134_217_793_050),
            (42, 0, 1025, 0x9e8e_02d0, 0.735_892_673_343),
            (42, 1, 0, 0xadb9_3a5d, 0.947_491_915_564),
            (42, 7, 3, 0x399e_25cc, -0.399_679_414_711),
            (42, 8, 0, 0xc784_edb3, 1.389_231_826_015),
            (2_147_483_647, 16_383, 1025, 0x9099_3017, 0.559_985_636_531),
            (123_456_789, 100, 512, 0xa9af_da57, 0.888_621_284_617),
        ];
        for (seed, position, code, expected, expected_gumbel) in vectors {
            let bits = hash(seed, position, code);
            assert_eq!(bits, expected);
            assert!((gumbel(bits) - expected_gumbel).abs() < 1e-11);
        }
    }

    #[test]
    fn draws_from_equal_codes_are_those_of_the_reference() {
        let uniform: Vec<Candidate> = (0..1026).map(|code| (code, 1.0 / 1026.0)).collect();
        let drawn: Vec<u16> = (0..16).map(|position| draw(&uniform, 42, position)).collect();
        let expected = [807, 738, 882, 371, 817, 123, 624, 685, 9, 171, 275, 868, 120, 118, 776, 101];
        assert_eq!(drawn, expected);
        let drawn: Vec<u16> = (0..8).map(|position| draw(&uniform, 0, position)).collect();
        assert_eq!(drawn, [514, 580, 310, 435, 512, 671, 306, 831]);
    }

    #[test]
    fn codes_come_as_often_as_they_are_likely() {
        let candidates = [(3, 0.7), (9, 0.2), (20, 0.1)];
        let count = |code| (0..10_000).filter(|&position| draw(&candidates, 7, position) == code).count();
        for (code, probability) in candidates {
            // Four standard deviations of 10,000 draws are at most 185.
            assert!((count(code) as f32 - probability * 10_000.0).abs() < 185.0);
        }
    }

    #[test]
    fn a_gumbel_is_finite_for_every_hash() {
        for bits in [0, 1, u32::MAX - 1, u32::MAX] {
            assert!(gumbel(bits).is_finite());
        }
    }
}
