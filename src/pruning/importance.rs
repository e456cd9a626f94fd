use crate::pruning::PrunedHeads;

/// What each head of a model is worth, by some measure: the larger, the more.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct HeadImportance(Vec<Vec<f64>>);

/// A head and what it is worth.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct RankedHead {
    /// The number of its layer.
    pub layer: usize,
    /// Its number in the layer.
    pub head: usize,
    /// What it is worth.
    pub score: f64,
}

impl HeadImportance {
    /// From a score for each head of each layer.
    pub fn new(scores: Vec<Vec<f64>>) -> Self {
        Self(scores)
    }

    /// A score for each head of each layer.
    pub fn scores(&self) -> &[Vec<f64>] {
        &self.0
    }

    /// Each layer's scores divided by the root of the sum of their squares, as
    /// [Michel 2019](https://arxiv.org/abs/1905.10650) compare the heads of different layers.
    #[must_use]
    pub fn normalised_by_layer(mut self) -> Self {
        for scores in &mut self.0 {
            let length = scores.iter().map(|score| score * score).sum::<f64>().sqrt();
            if length > 0.0 {
                scores.iter_mut().for_each(|score| *score /= length);
            }
        }
        self
    }

    /// All heads, the least important first; of equals the first of the model.
    pub fn ranking(&self) -> Vec<RankedHead> {
        let heads = self.0.iter().enumerate().flat_map(|(layer, scores)| {
            scores.iter().enumerate().map(move |(head, &score)| RankedHead { layer, head, score })
        });
        let mut heads: Vec<RankedHead> = heads.collect();
        heads.sort_by(|a, b| a.score.total_cmp(&b.score));
        heads
    }

    /// The `count` least important heads.
    pub fn least(&self, count: usize) -> PrunedHeads {
        self.ranking().into_iter().take(count).map(|head| (head.layer, head.head)).collect()
    }
}
