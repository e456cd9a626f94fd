//! ALiBi: a penalty proportional to the distance between query and key.

use candle_core::Tensor;
use half::bf16;

use super::scheme::{BiasCall, LayerSizes, PositionScheme, SchemeTraits};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::setters;

/// The slope of each head.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AlibiSlopes {
    /// `2^(-bias_max · i / heads)` for `i` from 1, if the number of heads is a power of two. Otherwise the slopes of
    /// the next lower power of two, followed by every other slope of the next higher one. The paper's code, BLOOM,
    /// Falcon, MPT and Jina-BERT all compute these.
    Geometric {
        /// The negated exponent of the last head; 8 in the paper.
        bias_max: f64,
    },
    /// One slope per head.
    Given(Vec<f64>),
}

/// The formula of the bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AlibiFormula {
    /// `-slope · distance`, added to the scaled score.
    #[default]
    Distance,
    /// `slope · key position`, computed in bf16, added to the score and scaled with it. Falcon was trained with this
    /// formula, and transformers uses it. Up to rounding, the softmax is that of [`Distance`](Self::Distance).
    Falcon,
}

/// Attention with linear biases ([Press 2021](https://arxiv.org/abs/2108.12409)): `-slope · distance` is added to each
/// scaled score, where distance is the position of the query minus that of the key.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Alibi {
    /// The slope of each head; default geometric with `bias_max = 8`.
    pub slopes: AlibiSlopes,
    /// Whether the absolute distance counts (Jina-BERT); default false. Otherwise a key after the query has a negative
    /// distance, which matters only if no mask hides such keys.
    pub symmetric: bool,
    /// The formula of the bias; default by distance.
    pub formula: AlibiFormula,
}

impl Default for Alibi {
    fn default() -> Self {
        Self { slopes: AlibiSlopes::Geometric { bias_max: 8.0 }, symmetric: false, formula: AlibiFormula::default() }
    }
}

impl Alibi {
    setters! {
        /// Sets the slopes.
        with_slopes, slopes: AlibiSlopes = slopes;
        /// Sets whether the absolute distance counts.
        with_symmetric, symmetric: bool = symmetric;
        /// Sets the formula of the bias.
        with_formula, formula: AlibiFormula = formula;
    }

    /// The slopes of a layer with so many heads, one per head. [`AlibiSlopes::Given`] slopes are returned as they are.
    pub fn head_slopes(&self, heads: usize) -> Vec<f64> {
        let bias_max = match &self.slopes {
            AlibiSlopes::Given(slopes) => return slopes.clone(),
            AlibiSlopes::Geometric { bias_max } => *bias_max,
        };
        let sequence = |count: usize| (1..=count).map(move |i| (-bias_max * i as f64 / count as f64).exp2());
        let lower = if heads.is_power_of_two() { heads } else { heads.next_power_of_two() / 2 };
        sequence(lower).chain(sequence(2 * lower).step_by(2).take(heads - lower)).collect()
    }

    /// Falcon's unscaled biases of keys `0 .. keys`: `(heads, keys)`.
    fn falcon_biases(&self, heads: usize, keys: usize) -> Vec<f32> {
        let slopes = self.head_slopes(heads).into_iter().map(|slope| bf16::from_f64(slope).to_f32());
        slopes.flat_map(|slope| (0..keys).map(move |j| bf16::from_f32(slope * j as f32).to_f32())).collect()
    }
}

impl PositionScheme for Alibi {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        let heads = sizes.num_attention_heads;
        let slopes = self.head_slopes(heads);
        if slopes.len() != heads {
            return Err(Error::config("position", "given slopes", format!("{heads} of them, one per head")));
        }
        match slopes.iter().find(|slope| !(**slope as f32).is_finite()) {
            Some(slope) => Err(Error::config("position", format!("a slope of {slope}"), "finite slopes")),
            None => Ok(()),
        }
    }

    fn prune(&mut self, kept: &[usize], heads: usize) {
        let slopes = self.head_slopes(heads);
        self.slopes = AlibiSlopes::Given(kept.iter().map(|&head| slopes[head]).collect());
    }

    fn traits(&self) -> SchemeTraits {
        let runs_rows = self.formula == AlibiFormula::Distance;
        SchemeTraits { runs_ragged: true, runs_rows, ..SchemeTraits::default() }
    }

    fn bias(&self, call: &BiasCall) -> Result<Option<AttentionMask>> {
        let heads = call.heads;
        Ok(Some(match self.formula {
            AlibiFormula::Distance => AttentionMask::distances(self.head_slopes(heads), self.symmetric),
            AlibiFormula::Falcon => {
                let biases = self.falcon_biases(heads, call.s_kv);
                let biases = Tensor::from_vec(biases, (1, heads, 1, call.s_kv), call.device)?;
                AttentionMask::additive(&(biases * call.scale)?)?
            }
        }))
    }

    fn describe(&self) -> String {
        if self.symmetric { "alibi(symmetric)" } else { "alibi" }.to_string()
    }
}
