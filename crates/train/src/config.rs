//! The configuration of a training run.

use candle_attention::{Error, Result};
use candle_attention_text::TextModelConfig;

/// The longest warm-up, in steps, and the share of all steps that it has at most.
const WARMUP_STEPS: usize = 250;
const STEPS_PER_WARMUP_STEP: usize = 10;

/// Standard deviation of freshly initialized matrices.
pub(super) const INITIALIZER_RANGE: f64 = 0.05;

/// Name of the word embeddings.
pub(super) const WORDS: &str = "embeddings.word_embeddings.weight";

/// The most parameters of a model, and the most numbers of one tensor in a step: 1 GiB in f32.
const MAX_NUMBERS: usize = 1 << 28;

/// Sizes and hyperparameters of a training run. The default is the run that made the model in `weights/`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TrainConfig {
    /// Largest size of the WordPiece vocabulary, including the five special tokens. If the texts give fewer tokens, the
    /// vocabulary has those: [`Trainer::config`](crate::Trainer::config) has its size.
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
    /// Peak learning rate: it rises from 0 over 250 steps or a tenth of all, whichever is less, and falls to 0 along a
    /// cosine.
    pub learning_rate: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            vocab_size: 9_000,
            hidden_size: 128,
            num_hidden_layers: 2,
            num_attention_heads: 4,
            intermediate_size: 256,
            max_position_embeddings: 128,
            max_length: 64,
            batch_size: 128,
            steps: 9_000,
            learning_rate: 2e-3,
            seed: 0,
        }
    }
}

impl TrainConfig {
    /// Checks each field, and that the model has at most 2^28 parameters and no tensor of a step more numbers than
    /// that: a mistyped number is an error, not an allocation that ends the program.
    ///
    /// # Errors
    /// [`Error::Config`], with the field, its value and the allowed values; [`Error::Value`] for sizes that give too
    /// many numbers.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("hidden_size", self.hidden_size, 1, MAX_NUMBERS),
            ("max_length", self.max_length, 3, self.max_position_embeddings.min(MAX_NUMBERS)),
            // A similarity needs two texts.
            ("batch_size", self.batch_size, 2, MAX_NUMBERS),
            ("steps", self.steps, 1, usize::MAX),
        ];
        for (field, found, least, most) in sizes {
            if !(least..=most).contains(&found) {
                return Err(Error::config(field, found, format!("{least} to {most}")));
            }
        }
        self.bert()?.validate()?;
        if !(self.learning_rate.is_finite() && self.learning_rate > 0.0) {
            return Err(Error::config("learning_rate", self.learning_rate, "a number above 0"));
        }
        let count = |shape: &[usize]| shape.iter().map(|size| *size as f64).product::<f64>();
        let parameters = shapes(self).iter().map(|(_, shape)| count(shape)).sum();
        let (texts, length, wide) = (self.batch_size, self.max_length, self.hidden_size.max(self.intermediate_size));
        let scores = count(&[texts, self.num_attention_heads, length, length]);
        let largest = count(&[texts, length, wide]).max(scores).max(count(&[texts, texts]));
        for (what, found) in [
            ("the number of parameters of a model of these sizes", parameters),
            ("the number of numbers in the largest tensor of a step of these sizes", largest),
        ] {
            if found > MAX_NUMBERS as f64 {
                return Err(Error::value(what, found, format!("at most {MAX_NUMBERS}")));
            }
        }
        Ok(())
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
        let warmup_steps = WARMUP_STEPS.min(self.steps / STEPS_PER_WARMUP_STEP);
        if step < warmup_steps {
            return self.learning_rate * (step + 1) as f64 / warmup_steps as f64;
        }
        let all = self.steps.saturating_sub(warmup_steps).max(1);
        let done = (step - warmup_steps) as f64 / all as f64;
        self.learning_rate * 0.5 * (1.0 + (std::f64::consts::PI * done.min(1.0)).cos())
    }
}

/// Names and shapes of the tensors of BERT.
pub(super) fn shapes(config: &TrainConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let table = |name: &str, rows: usize| (format!("embeddings.{name}.weight"), vec![rows, hidden]);
    let mut shapes = vec![
        (WORDS.to_string(), vec![config.vocab_size, hidden]),
        table("position_embeddings", config.max_position_embeddings),
        table("token_type_embeddings", 2),
    ];
    let mut module = |name: String, weight: Vec<usize>| {
        shapes.push((format!("{name}.bias"), vec![weight[0]]));
        shapes.push((format!("{name}.weight"), weight));
    };
    module("embeddings.LayerNorm".to_string(), vec![hidden]);
    for layer in (0..config.num_hidden_layers).map(|i| format!("encoder.layer.{i}")) {
        for name in ["self.query", "self.key", "self.value", "output.dense"] {
            module(format!("{layer}.attention.{name}"), vec![hidden, hidden]);
        }
        module(format!("{layer}.attention.output.LayerNorm"), vec![hidden]);
        module(format!("{layer}.intermediate.dense"), vec![inner, hidden]);
        module(format!("{layer}.output.dense"), vec![hidden, inner]);
        module(format!("{layer}.output.LayerNorm"), vec![hidden]);
    }
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_to_its_peak_and_falls_to_zero() {
        let config = TrainConfig { learning_rate: 1.0, steps: 40, ..Default::default() };
        let half = std::f64::consts::FRAC_1_SQRT_2 / 2.0;
        let want = [(0, 0.25), (1, 0.5), (3, 1.0), (4, 1.0), (13, 0.5 + half), (22, 0.5), (31, 0.5 - half), (40, 0.0)];
        for (step, want) in want {
            let got = config.learning_rate_at(step);
            assert!((got - want).abs() < 1e-12, "{step}: {got}, want {want}");
        }
        assert!(TrainConfig { steps: 5, ..Default::default() }.learning_rate_at(0) > 0.0);
    }
}
