use half::bf16;

/// The slopes of the heads.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AlibiSlopes {
    /// `2^(-bias_max · i / heads)` for `i` from 1, where there are a power of two heads. Otherwise those of the next lower
    /// power, then every other one of the next higher (the paper's code, BLOOM, Falcon; MPT and Jina by other words).
    Geometric {
        /// The exponent of the last head; 8 in the paper.
        bias_max: f64,
    },
    /// One a head.
    Given(Vec<f64>),
}

/// Attention with linear biases ([Press 2021](https://arxiv.org/abs/2108.12409)): `-slope · distance` is added to the
/// scaled score, the distance being that between the positions of query and key.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Alibi {
    /// Which slopes.
    pub slopes: AlibiSlopes,
    /// Keys after the query count by their distance too (Jina-BERT); otherwise, a key after the query has a negative
    /// distance, which matters only where nothing hides it.
    pub symmetric: bool,
    /// `slope · key position`, computed in bf16 and scaled like the scores (Falcon in transformers, which was trained so).
    /// Up to that rounding the same as by distance.
    pub falcon: bool,
}

impl Default for Alibi {
    fn default() -> Self {
        Self { slopes: AlibiSlopes::Geometric { bias_max: 8.0 }, symmetric: false, falcon: false }
    }
}

impl Alibi {
    crate::macros::setters! {
        /// Sets the slopes.
        with_slopes, slopes: AlibiSlopes = slopes;
        /// Sets whether keys after the query count by their distance too.
        with_symmetric, symmetric: bool = symmetric;
        /// Sets whether it is computed as in Falcon.
        with_falcon, falcon: bool = falcon;
    }

    /// One slope a head.
    pub fn of_heads(&self, heads: usize) -> Vec<f64> {
        let bias_max = match &self.slopes {
            AlibiSlopes::Given(slopes) => return slopes.clone(),
            AlibiSlopes::Geometric { bias_max } => *bias_max,
        };
        let sequence = |count: usize| (1..=count).map(move |i| (-bias_max * i as f64 / count as f64).exp2());
        let lower = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
        sequence(lower).chain(sequence(2 * lower).step_by(2).take(heads - lower)).collect()
    }

    /// What Falcon adds to the score of each key `0 .. keys`, before scaling, one head after the other.
    pub(crate) fn falcon_biases(&self, heads: usize, keys: usize) -> Vec<f32> {
        let slopes = self.of_heads(heads).into_iter().map(|slope| bf16::from_f64(slope).to_f32());
        slopes.flat_map(|slope| (0..keys).map(move |j| bf16::from_f32(slope * j as f32).to_f32())).collect()
    }
}
