//! Checks of a configuration: a mistyped number is an error, not an allocation that ends the program.

use candle_attention::{Error, Result};

use crate::train::config::{STEPS_PER_WARMUP_STEP, StudentKind, TrainConfig};

/// Most parameters of a model: 1 GiB in f32. A run holds four numbers for each: the weight, its gradient, two moments.
const MAX_PARAMETERS: u128 = 1 << 28;

/// Most numbers of one tensor in a step: 1 GiB in f32.
const MAX_NUMBERS: u128 = 1 << 28;

impl TrainConfig {
    /// Checks all fields: each by itself, and that the model has at most 2^28 parameters and no tensor of a step more
    /// numbers than that.
    ///
    /// # Errors
    /// [`Error::Config`], with the field, its value and the allowed values; [`Error::Value`] for sizes that give too
    /// many numbers.
    pub fn validate(&self) -> Result<()> {
        let most = MAX_NUMBERS as usize;
        for (field, found, least, most) in [
            ("vocab_size", self.vocab_size, 6, most),
            ("hidden_size", self.hidden_size, 1, most),
            ("num_hidden_layers", self.num_hidden_layers, 1, most),
            ("num_attention_heads", self.num_attention_heads, 1, most),
            ("intermediate_size", self.intermediate_size, 1, most),
            ("max_position_embeddings", self.max_position_embeddings, 1, most),
            ("max_length", self.max_length, 3, most),
            // A similarity needs two texts.
            ("batch_size", self.batch_size, 2, most),
            ("steps", self.steps, 1, usize::MAX),
        ] {
            if found < least {
                return Err(Error::config(field, found, format!("at least {least}")));
            }
            if found > most {
                return Err(Error::config(field, found, format!("at most {most}")));
            }
        }
        let longest = self.steps / STEPS_PER_WARMUP_STEP;
        if let Some(found) = self.warmup_steps.filter(|found| *found > longest) {
            let allowed = format!("at most {longest}, a tenth of the {} steps", self.steps);
            return Err(Error::config("warmup_steps", found, allowed));
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
        let limits = [
            ("the number of parameters of a model of these sizes", parameters(self), MAX_PARAMETERS),
            ("the number of numbers in the largest tensor of a step of these sizes", numbers(self), MAX_NUMBERS),
        ];
        if let Some((what, found, most)) = limits.into_iter().find(|(_, found, most)| found > most) {
            return Err(Error::value(what, found, format!("at most {most}")));
        }
        self.bert()?.validate()
    }
}

/// Parameters of the model, about: without biases and norms, which are less than a percent.
fn parameters(config: &TrainConfig) -> u128 {
    let [hidden, inner, layers] =
        [config.hidden_size, config.intermediate_size, config.num_hidden_layers].map(|size| size as u128);
    let [words, positions] = [config.vocab_size, config.max_position_embeddings].map(|size| size as u128);
    match config.kind {
        StudentKind::Static => hidden * words,
        // Queries, keys, values and outputs; the two feed-forward layers.
        StudentKind::Encoder => hidden * ((4 * hidden + 2 * inner) * layers + words + positions),
    }
}

/// Numbers of the largest tensor of a step: hidden states, scores of attention, or similarities of all pairs of texts.
fn numbers(config: &TrainConfig) -> u128 {
    let [texts, length, heads] =
        [config.batch_size, config.max_length, config.num_attention_heads].map(|size| size as u128);
    let width = config.hidden_size.max(config.intermediate_size) as u128;
    (texts * length * width.max(heads * length)).max(texts * texts)
}
