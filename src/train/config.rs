use crate::encoder::BertConfig;
use crate::error::{Error, Result};
use crate::macros::setters;

/// What is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A BERT.
    Encoder,
    /// A vector a token and their mean, nothing else: what an encoder has to be better than.
    Static,
}

/// Sizes and settings of a run. The default is the run that made `weights/`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct TrainConfig {
    /// What is trained.
    pub kind: Kind,
    /// WordPieces of the vocabulary, the five special ones included.
    pub vocab_size: usize,
    /// Width of the model, and of its embeddings.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of heads.
    pub num_attention_heads: usize,
    /// Width of the feed-forward part.
    pub intermediate_size: usize,
    /// The longest text that the finished model reads, in tokens; longer ones are cut off.
    pub max_position_embeddings: usize,
    /// The longest text in training, in tokens; longer ones are cut off.
    pub max_length: usize,
    /// Texts of a step.
    pub batch_size: usize,
    /// Steps in all.
    pub steps: usize,
    /// Steps in which the learning rate rises from 0; from there it falls to 0 with a cosine.
    pub warmup_steps: usize,
    /// The largest learning rate.
    pub learning_rate: f64,
    /// Decay of matrices towards 0; biases and norms do not decay.
    pub weight_decay: f64,
    /// A gradient that is longer is shortened to this.
    pub max_grad_norm: f64,
    /// With a teacher: the weight of the similarities within a batch against each text's own direction.
    pub similarity_weight: f64,
    /// Where all random numbers come from.
    pub seed: u64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            kind: Kind::Encoder,
            vocab_size: 9_000,
            hidden_size: 128,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 256,
            max_position_embeddings: 128,
            max_length: 64,
            batch_size: 128,
            steps: 9_000,
            warmup_steps: 250,
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
        /// Sets what is trained.
        with_kind, kind: Kind = kind;
        /// Sets the number of WordPieces.
        with_vocab_size, vocab_size: usize = vocab_size;
        /// Sets the width.
        with_hidden_size, hidden_size: usize = hidden_size;
        /// Sets the number of layers.
        with_num_hidden_layers, num_hidden_layers: usize = num_hidden_layers;
        /// Sets the number of heads.
        with_num_attention_heads, num_attention_heads: usize = num_attention_heads;
        /// Sets the width of the feed-forward part.
        with_intermediate_size, intermediate_size: usize = intermediate_size;
        /// Sets the longest text of the finished model.
        with_max_position_embeddings, max_position_embeddings: usize = max_position_embeddings;
        /// Sets the longest text in training.
        with_max_length, max_length: usize = max_length;
        /// Sets the number of texts of a step.
        with_batch_size, batch_size: usize = batch_size;
        /// Sets the number of steps.
        with_steps, steps: usize = steps;
        /// Sets the number of steps in which the learning rate rises.
        with_warmup_steps, warmup_steps: usize = warmup_steps;
        /// Sets the largest learning rate.
        with_learning_rate, learning_rate: f64 = learning_rate;
        /// Sets the weight of similarities.
        with_similarity_weight, similarity_weight: f64 = similarity_weight;
        /// Sets the seed.
        with_seed, seed: u64 = seed;
    }

    /// Checks what a run relies on.
    ///
    /// # Errors
    /// [`Error::Config`], with the field, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        let at_least = [
            ("vocab_size", self.vocab_size, 6),
            ("max_length", self.max_length, 3),
            // Similarities need a pair.
            ("batch_size", self.batch_size, 2),
            ("steps", self.steps, 1),
        ];
        for (field, found, least) in at_least {
            if found < least {
                return Err(Error::config(field, found, format!("at least {least}")));
            }
        }
        if self.max_length > self.max_position_embeddings {
            let allowed = format!("at most max_position_embeddings = {}", self.max_position_embeddings);
            return Err(Error::config("max_length", self.max_length, allowed));
        }
        let positive = [("learning_rate", self.learning_rate), ("max_grad_norm", self.max_grad_norm)];
        let not_negative = [("weight_decay", self.weight_decay), ("similarity_weight", self.similarity_weight)];
        for (field, found) in positive {
            if !(found.is_finite() && found > 0.0) {
                return Err(Error::config(field, found, "a number above 0"));
            }
        }
        for (field, found) in not_negative {
            if !(found.is_finite() && found >= 0.0) {
                return Err(Error::config(field, found, "a number of at least 0"));
            }
        }
        self.bert()?.validate()
    }

    /// The `config.json` of the model.
    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "architectures": ["BertModel"],
            "attention_probs_dropout_prob": 0.0,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.0,
            "hidden_size": self.hidden_size,
            "initializer_range": crate::train::student::STDEV,
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

    pub(super) fn bert(&self) -> Result<BertConfig> {
        serde_json::from_value(self.json()).map_err(|e| Error::value("config.json", e, "the keys of BERT"))
    }

    /// The learning rate of a step, counted from 0.
    pub(super) fn rate(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let all = self.steps.saturating_sub(self.warmup_steps).max(1);
        let done = (step - self.warmup_steps) as f64 / all as f64;
        self.learning_rate * 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos())
    }
}
