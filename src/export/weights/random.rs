//! Weights made up from a seed, each from its own index, so that any piece can be made at any time by any thread.

/// The source of one tensor.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// The same value everywhere.
    Constant(f32),
    /// Approximately Gaussian values of the standard deviation [`STD`].
    Gaussian(u64),
}

/// Standard deviation with which models of this kind begin their training; hidden states stay sane with it.
const STD: f32 = 0.02;

impl Source {
    /// The source of a tensor: scales are 1, biases 0, and matrices random.
    pub(super) fn new(seed: u64, name: &str, shape: &[usize]) -> Self {
        if name.ends_with(".bias") {
            return Self::Constant(0.0);
        }
        // Snake's α and the length of normalised weights are scales of more than one axis.
        if shape.len() < 2 || name.ends_with(".alpha") || name.ends_with(".original0") {
            return Self::Constant(1.0);
        }
        // FNV-1a over the name.
        let name = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self::Gaussian(mix(name ^ mix(seed)))
    }

    pub(super) fn read(self, start: usize, out: &mut [f32]) {
        let key = match self {
            Self::Constant(value) => return out.fill(value),
            Self::Gaussian(key) => key,
        };
        let odd = start % 2;
        let (first, rest) = out.split_at_mut(odd.min(out.len()));
        first.iter_mut().for_each(|out| *out = pair(key, start as u64 / 2)[1]);
        let from = (start + odd) as u64 / 2;
        let (pairs, last) = rest.as_chunks_mut::<2>();
        pairs.iter_mut().zip(from..).for_each(|(out, n)| *out = pair(key, n));
        last.iter_mut().for_each(|out| *out = pair(key, from + pairs.len() as u64)[0]);
    }
}

/// Two values from one word of 64 random bits: each is the sum of four bytes, which is nearly Gaussian (Irwin–Hall) and
/// takes about a nanosecond.
fn pair(key: u64, n: u64) -> [f32; 2] {
    const BYTES: u64 = 0x00ff_00ff_00ff_00ff;
    const WORDS: u64 = 0x0000_ffff_0000_ffff;
    /// Mean and standard deviation of the sum of four uniform bytes.
    const MEAN: f32 = 510.0;
    const DEVIATION: f32 = 147.8;
    let bits = mix(key.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let twos = (bits & BYTES) + (bits >> 8 & BYTES);
    let fours = (twos & WORDS) + (twos >> 16 & WORDS);
    [fours as u32, (fours >> 32) as u32].map(|sum| (sum as i32 as f32 - MEAN) * (STD / DEVIATION))
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood 2014).
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}
