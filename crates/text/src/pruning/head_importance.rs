//! Scores of heads, and their ranking.

use candle_attention::pruning::PrunedHeads;

/// How the importance of heads is measured, by
/// [`SentenceEncoder::head_importance`](crate::SentenceEncoder::head_importance). No method needs labels: each looks at
/// the embedding of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImportanceMethod {
    /// How fast the embedding changes when a head is scaled down: the mean over the texts of `|∂⟨r, embedding⟩ / ∂ξ|`,
    /// with `ξ` the head's scale and `r` a fixed sequence of random signs ([Michel
    /// 2019](https://arxiv.org/abs/1905.10650), with a loss instead of `⟨r, embedding⟩`). Costs one forward and one
    /// backward pass.
    Gradient,
    /// How far the embedding moves when a head is removed: the mean over the texts of `1 − cosine`. Costs one forward
    /// pass per head.
    Ablation,
    /// How focused a head is: the mean over texts and tokens of `1 − entropy / ln(tokens)`, 0 where all tokens get the
    /// same attention weight and 1 where one token gets all. Costs one forward pass.
    Entropy,
}

/// Importance scores of all heads of a model; larger means more important.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct HeadImportance(Vec<Vec<f64>>);

/// A head and its importance.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct RankedHead {
    /// Index of the layer in the model, from 0.
    pub layer: usize,
    /// Index of the head in its layer, from 0, as the model is now: earlier pruning has shifted it.
    pub head: usize,
    /// Importance score.
    pub score: f64,
}

impl HeadImportance {
    /// Scores per layer, then per head.
    pub fn new(scores: Vec<Vec<f64>>) -> Self {
        Self(scores)
    }

    /// Scores per layer, then per head.
    pub fn scores(&self) -> &[Vec<f64>] {
        &self.0
    }

    /// Each layer's scores divided by their Euclidean norm, the normalization with which
    /// [Michel 2019](https://arxiv.org/abs/1905.10650) compares heads of different layers.
    #[must_use]
    pub fn normalized_by_layer(mut self) -> Self {
        for scores in &mut self.0 {
            let in_units_of = |unit: f64| unit * scores.iter().map(|score| (score / unit).powi(2)).sum::<f64>().sqrt();
            // Squares of very large scores overflow, those of very small ones vanish.
            let norm = match in_units_of(1.0) {
                norm if norm.is_normal() => norm,
                _ => in_units_of(scores.iter().fold(0.0, |largest, score| score.abs().max(largest))),
            };
            if norm > 0.0 {
                scores.iter_mut().for_each(|score| *score /= norm);
            }
        }
        self
    }

    /// All heads, the least important first; heads with equal scores in the order of the model.
    pub fn ranking(&self) -> Vec<RankedHead> {
        let heads = self.0.iter().enumerate().flat_map(|(layer, scores)| {
            scores.iter().enumerate().map(move |(head, &score)| RankedHead { layer, head, score })
        });
        let mut heads: Vec<RankedHead> = heads.collect();
        heads.sort_by(|a, b| a.score.total_cmp(&b.score));
        heads
    }

    /// The `count` least important heads.
    pub fn least_important(&self, count: usize) -> PrunedHeads {
        self.ranking().into_iter().take(count).map(|head| (head.layer, head.head)).collect()
    }
}
