//! Dropout of attention weights, reproducible if a seed is given.

use candle_core::{Device, Tensor};

use crate::error::Result;

/// `weights` with each element dropped with probability `p`, the others divided by `1 - p`
/// ([Srivastava 2014](https://jmlr.org/papers/v15/srivastava14a.html)).
///
/// Without a seed the generator of the device decides, which on the CPU cannot be seeded. With one, each element is decided
/// by a hash of the seed and its index (SplitMix64, [Steele 2014](https://doi.org/10.1145/2660193.2660195)), on the CPU: the
/// same on every device, with any number of threads and in every version.
pub(super) fn dropout(weights: &Tensor, p: f64, seed: Option<u64>) -> Result<Tensor> {
    let Some(seed) = seed else { return Ok(candle_nn::ops::dropout(weights, p as f32)?) };
    let factor = (1.0 / (1.0 - p)) as f32;
    let factors = (0..weights.elem_count() as u64).map(|i| if uniform(seed, i) < p { 0.0 } else { factor });
    let factors = Tensor::from_iter(factors, &Device::Cpu)?.reshape(weights.shape())?;
    Ok((weights * factors.to_dtype(weights.dtype())?.to_device(weights.device())?)?)
}

/// A number in `[0, 1)`: number `i` of the sequence that belongs to `seed`.
fn uniform(seed: u64, i: u64) -> f64 {
    // The sequences of neighboring seeds would overlap if the seed were the starting state as it is.
    let mixed = mix(mix(seed).wrapping_add(i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the published generator, whose state starts at `mix(seed)` here: the first numbers for the state 0, by Vigna's
    /// `splitmix64.c`.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        assert_eq!(mix(0), 0);
        let want = [0xe220_a839_7b1d_cdaf_u64, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        for (i, want) in want.into_iter().enumerate() {
            assert_eq!(uniform(0, i as u64), (want >> 11) as f64 / 2f64.powi(53));
        }
    }
}
