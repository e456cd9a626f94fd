//! The batch of each step: a function of the seed and the step, so that a resumed run continues as if it had not
//! stopped.

use fastrand::Rng;

/// Number of batches whose texts are sorted by length together. More of them need less padding, fewer mix the texts
/// better.
const SORTED_BATCHES: usize = 32;

/// The batch of each step. An epoch is a random order of all texts; the next epoch has another.
pub(super) struct Batches {
    lengths: Vec<usize>,
    size: usize,
    seed: u64,
    /// The epoch that `batches` belong to.
    epoch: usize,
    batches: Vec<Vec<u32>>,
}

impl Batches {
    /// Batches of `size` texts, or of all texts if there are fewer; `lengths` are their numbers of tokens.
    pub fn new(lengths: Vec<usize>, size: usize, seed: u64) -> Self {
        let mut batches = Self { size: size.min(lengths.len()), lengths, seed, epoch: 0, batches: Vec::new() };
        batches.batches = batches.draw(0);
        batches
    }

    /// The indices of the texts of a step, which counts from 0.
    pub fn at(&mut self, step: usize) -> &[u32] {
        let steps_per_epoch = self.batches.len();
        let epoch = step / steps_per_epoch;
        if epoch != self.epoch {
            self.batches = self.draw(epoch);
            self.epoch = epoch;
        }
        &self.batches[step % steps_per_epoch]
    }

    /// All batches of an epoch. Texts left over after the last full batch wait for another epoch.
    fn draw(&self, epoch: usize) -> Vec<Vec<u32>> {
        let mut rng = generator(self.seed, epoch);
        let mut texts: Vec<u32> = (0..self.lengths.len() as u32).collect();
        rng.shuffle(&mut texts);
        for chunk in texts.chunks_mut(SORTED_BATCHES * self.size) {
            chunk.sort_by_key(|&text| self.lengths[text as usize]);
        }
        let mut batches: Vec<Vec<u32>> = texts.chunks_exact(self.size).map(<[u32]>::to_vec).collect();
        rng.shuffle(&mut batches);
        batches
    }
}

/// A random number generator that depends on the seed and a count alone.
pub(super) fn generator(seed: u64, count: usize) -> Rng {
    Rng::with_seed(seed ^ (count as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_epoch_has_an_order_of_its_own() {
        let mut batches = Batches::new(vec![1; 64], 4, 7);
        let mut epoch = |epoch: usize| (0..16).flat_map(|i| batches.at(16 * epoch + i).to_vec()).collect::<Vec<u32>>();
        let (first, second) = (epoch(0), epoch(1));
        assert_ne!(first, second);
        assert_eq!(epoch(0), first, "a function of the step alone");
        let sorted = |mut texts: Vec<u32>| {
            texts.sort();
            texts
        };
        assert_eq!(sorted(first), (0..64).collect::<Vec<u32>>());
        assert_eq!(sorted(second), (0..64).collect::<Vec<u32>>());
    }
}
