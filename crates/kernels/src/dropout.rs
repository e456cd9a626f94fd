//! Dropout by a hash of a seed and the place of a number ([Srivastava
//! 2014](https://jmlr.org/papers/v15/srivastava14a.html)): the same on every device, with any number of threads, and in
//! a forward pass and its backward pass, which keeps no mask.

use super::error::{Error, Result};

/// The step of SplitMix64 ([Steele 2014](https://doi.org/10.1145/2660193.2660195)).
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Dropout with a probability and a seed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// The state before the first number.
    state: u64,
    /// Numbers of 53 bits below this one drop.
    limit: u64,
    /// The factor on what is kept.
    factor: f32,
}

impl Dropout {
    /// Drops with probability `p`.
    ///
    /// # Errors
    /// A probability outside `[0, 1)`.
    pub fn new(p: f64, seed: u64) -> Result<Self> {
        if !(0.0..1.0).contains(&p) {
            return Err(Error::value("the probability of dropout", p, "a number from 0 and less than 1"));
        }
        // The sequences of neighboring seeds would overlap if the seed were the starting state as it is.
        let (state, limit) = (mix(seed), (p * (1u64 << 53) as f64).ceil() as u64);
        Ok(Self { state, limit, factor: (1.0 / (1.0 - p)) as f32 })
    }

    /// The factors on the numbers from place `first` on: 0, or `1 / (1 - p)`.
    #[inline(always)]
    pub fn factors(&self, first: u64, to: &mut [f32]) {
        let first = self.state.wrapping_add(first.wrapping_add(1).wrapping_mul(STEP));
        for (i, to) in to.iter_mut().enumerate() {
            let random = mix(first.wrapping_add((i as u64).wrapping_mul(STEP))) >> 11;
            *to = if random < self.limit { 0.0 } else { self.factor };
        }
    }
}

#[inline(always)]
fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the published generator, whose state starts at `mix(seed)` here: the first numbers for the state 0, by
    /// Vigna's `splitmix64.c`.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        assert_eq!(mix(0), 0);
        let numbers = [0xe220_a839_7b1d_cdaf_u64, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f];
        for (i, number) in numbers.into_iter().enumerate() {
            let p = (number >> 11) as f64 / 2f64.powi(53);
            for (p, dropped) in [(p, false), (p + 2f64.powi(-53), true)] {
                let mut factor = [f32::NAN];
                Dropout::new(p, 0).unwrap().factors(i as u64, &mut factor);
                assert_eq!(factor[0] == 0.0, dropped, "number {i} is not less than itself");
            }
        }
        assert!(Dropout::new(1.0, 0).is_err() && Dropout::new(f64::NAN, 0).is_err());
    }
}
