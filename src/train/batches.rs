//! Which texts a step gets: a function of seed and step, so that a resumed run goes on where it was.

use fastrand::Rng;

/// Batches whose lengths are sorted together: more spares padding, fewer mixes better.
const SORTED: usize = 32;

/// The texts of each step, in an order that is drawn anew each time all have been seen.
pub(super) struct Batches {
    lengths: Vec<usize>,
    size: usize,
    seed: u64,
    /// Which round `order` is of.
    round: usize,
    order: Vec<Vec<u32>>,
}

impl Batches {
    /// Batches of `size` of the texts that have these lengths, or of all if they are fewer.
    pub fn new(lengths: Vec<usize>, size: usize, seed: u64) -> Self {
        let mut batches = Self { size: size.min(lengths.len()), lengths, seed, round: 0, order: Vec::new() };
        batches.order = batches.draw(0);
        batches
    }

    /// The texts of a step.
    pub fn at(&mut self, step: usize) -> &[u32] {
        let each = self.order.len();
        let round = step / each;
        if round != self.round {
            self.order = self.draw(round);
            self.round = round;
        }
        &self.order[step % each]
    }

    /// All batches of a round. Texts that do not fill the last one wait for another round.
    fn draw(&self, round: usize) -> Vec<Vec<u32>> {
        let mut rng = generator(self.seed, round);
        let mut texts: Vec<u32> = (0..self.lengths.len() as u32).collect();
        rng.shuffle(&mut texts);
        for together in texts.chunks_mut(SORTED * self.size) {
            together.sort_by_key(|&text| self.lengths[text as usize]);
        }
        let mut batches: Vec<Vec<u32>> = texts.chunks_exact(self.size).map(<[u32]>::to_vec).collect();
        rng.shuffle(&mut batches);
        batches
    }
}

/// Random numbers that depend on the seed and a count alone.
pub(super) fn generator(seed: u64, count: usize) -> Rng {
    Rng::with_seed(seed ^ (count as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}
