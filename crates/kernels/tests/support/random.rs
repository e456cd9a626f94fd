//! Random numbers for tests, the same in every run.

use candle_attention_kernels::Element;

use super::downcast;

/// A random number generator (xorshift64*, Vigna 2016). The seed is not zero.
pub struct Random(pub u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Uniform in `[-1, 1)`.
    #[allow(clippy::should_implement_trait, reason = "an iterator would never end")]
    pub fn next(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() >> 33) as usize % bound
    }

    /// Random values in `[-2, 2)`.
    pub fn values<T: Element>(&mut self, count: usize) -> Vec<T> {
        let values: Vec<f32> = (0..count).map(|_| self.next() * 2.0).collect();
        downcast(&values)
    }
}
