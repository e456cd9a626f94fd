//! The configuration of a training run.

use candle_attention::{Error, Result, setters};

use crate::TextModelConfig;

/// The warm-up is never longer than one step in this many.
pub(super) const STEPS_PER_WARMUP_STEP: usize = 10;

/// The default warm-up of a long run, in steps.
const WARMUP_STEPS: usize = 250;

/// Standard deviation of freshly initialized matrices.
pub(super) const INITIALIZER_RANGE: f64 = 0.05;

/// The kind of model that is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StudentKind {
    /// A BERT encoder.
    Encoder,
    /// One vector per token and their mean, without context: the baseline that an encoder has to beat.
    Static,
}

/// Sizes and hyperparameters of a training run. The default is the run that made the model in `weights/`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct TrainConfig {
    /// Kind of model.
    pub kind: StudentKind,
    /// Largest size of the WordPiece vocabulary, including the five special tokens. If the texts give fewer tokens, the
    /// vocabulary has those: [`Trainer::config`](crate::train::Trainer::config) has its size.
    pub vocab_size: usize,
    /// Dimension of the hidden states and of the embeddings.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of attention heads per layer.
    pub num_attention_heads: usize,
    /// Inner dimension of the feed-forward layers.
    pub intermediate_size: usize,
    /// Maximum length of a text for the finished model, in tokens; longer texts are truncated.
    pub max_position_embeddings: usize,
    /// Maximum length of a text in training, in tokens; longer texts are truncated.
    pub max_length: usize,
    /// Number of texts per step.
    pub batch_size: usize,
    /// Total number of steps.
    pub steps: usize,
    /// Number of steps in which the learning rate rises linearly from 0; after them it falls to 0 along a cosine. At
    /// most a tenth of the steps; if `None`, 250 or a tenth of the steps, whichever is less.
    pub warmup_steps: Option<usize>,
    /// Peak learning rate.
    pub learning_rate: f64,
    /// Decoupled weight decay of matrices; biases and norms have none.
    pub weight_decay: f64,
    /// Gradients are clipped to this global norm.
    pub max_grad_norm: f64,
    /// With a teacher: the weight of the loss of pairwise similarities, relative to the loss of each text's direction.
    pub similarity_weight: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            kind: StudentKind::Encoder,
            vocab_size: 9_000,
            hidden_size: 128,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 256,
            max_position_embeddings: 128,
            max_length: 64,
            batch_size: 128,
            steps: 9_000,
            warmup_steps: None,
            learning_rate: 2e-3,
            weight_decay: 0.01,
            max_grad_norm: 1.0,
            similarity_weight: 30.0,
            seed: 0,
        }
    }
}

impl TrainConfig {
    setters! {
        /// Sets the kind of model.
        with_kind, kind: StudentKind = kind;
        /// Sets the largest size of the vocabulary.
        with_vocab_size, vocab_size: usize = vocab_size;
        /// Sets the dimension of the hidden states.
        with_hidden_size, hidden_size: usize = hidden_size;
        /// Sets the number of layers.
        with_num_hidden_layers, num_hidden_layers: usize = num_hidden_layers;
        /// Sets the number of attention heads per layer.
        with_num_attention_heads, num_attention_heads: usize = num_attention_heads;
        /// Sets the inner dimension of the feed-forward layers.
        with_intermediate_size, intermediate_size: usize = intermediate_size;
        /// Sets the maximum length of a text for the finished model, in tokens.
        with_max_position_embeddings, max_position_embeddings: usize = max_position_embeddings;
        /// Sets the maximum length of a text in training, in tokens.
        with_max_length, max_length: usize = max_length;
        /// Sets the number of texts per step.
        with_batch_size, batch_size: usize = batch_size;
        /// Sets the total number of steps.
        with_steps, steps: usize = steps;
        /// Sets the number of warmup steps.
        with_warmup_steps, warmup_steps: usize = Some(warmup_steps);
        /// Sets the peak learning rate.
        with_learning_rate, learning_rate: f64 = learning_rate;
        /// Sets the weight decay of matrices.
        with_weight_decay, weight_decay: f64 = weight_decay;
        /// Sets the global norm that gradients are clipped to.
        with_max_grad_norm, max_grad_norm: f64 = max_grad_norm;
        /// Sets the weight of the loss of pairwise similarities.
        with_similarity_weight, similarity_weight: f64 = similarity_weight;
        /// Sets the seed.
        with_seed, seed: u64 = seed;
    }

    /// The number of warm-up steps.
    pub fn resolved_warmup_steps(&self) -> usize {
        self.warmup_steps.unwrap_or_else(|| WARMUP_STEPS.min(self.steps / STEPS_PER_WARMUP_STEP))
    }

    /// The `config.json` of the model.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "architectures": ["BertModel"],
            "attention_probs_dropout_prob": 0.0,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "hidden_size": self.hidden_size,
            "initializer_range": INITIALIZER_RANGE,
            "intermediate_size": self.intermediate_size,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": self.max_position_embeddings,
            "model_type": "bert",
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "type_vocab_size": 2,
            "vocab_size": self.vocab_size,
        })
    }

    pub(super) fn bert(&self) -> Result<TextModelConfig> {
        serde_json::from_value(self.json()).map_err(|e| Error::value("config.json", e, "a valid configuration of BERT"))
    }

    /// The learning rate of a step, which counts from 0.
    pub(super) fn learning_rate_at(&self, step: usize) -> f64 {
        let warmup_steps = self.resolved_warmup_steps();
        if step < warmup_steps {
            return self.learning_rate * (step + 1) as f64 / warmup_steps as f64;
        }
        let all = self.steps.saturating_sub(warmup_steps).max(1);
        let done = (step - warmup_steps) as f64 / all as f64;
        self.learning_rate * 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_to_its_peak_and_falls_to_zero() {
        let config = TrainConfig::default().with_learning_rate(1.0).with_warmup_steps(4).with_steps(8);
        let rates = (0..9).map(|step| config.learning_rate_at(step));
        let half = std::f64::consts::FRAC_1_SQRT_2 / 2.0;
        let want = [0.25, 0.5, 0.75, 1.0, 1.0, 0.5 + half, 0.5, 0.5 - half, 0.0];
        for (got, want) in rates.zip(want) {
            assert!((got - want).abs() < 1e-12, "{got}, want {want}");
        }
        assert!(TrainConfig::default().with_steps(5).learning_rate_at(0) > 0.0);
    }
}
