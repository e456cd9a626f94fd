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
    /// [`Error::Config`], with the field, its value and the allowed values.
    pub fn validate(&self) -> Result<()> {
        let at_least = [
            ("vocab_size", self.vocab_size, 6),
            ("max_length", self.max_length, 3),
            // A similarity needs two texts.
            ("batch_size", self.batch_size, 2),
            ("steps", self.steps, 1),
        ];
        for (field, found, least) in at_least {
            if found < least {
                return Err(Error::config(field, found, format!("at least {least}")));
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
        check_sizes(self)?;
        self.bert()?.validate()
    }
}

/// A field with its value and its default.
type Field = (&'static str, usize, usize);

/// Checks the number of parameters and the size of a batch. Products that are too large for any integer count as too
/// large.
fn check_sizes(config: &TrainConfig) -> Result<()> {
    let default = TrainConfig::default();
    let widths = [
        ("hidden_size", config.hidden_size, default.hidden_size),
        ("intermediate_size", config.intermediate_size, default.intermediate_size),
    ];
    if parameters(config) > MAX_PARAMETERS {
        let (field, found) = furthest([
            widths[0],
            widths[1],
            ("vocab_size", config.vocab_size, default.vocab_size),
            ("num_hidden_layers", config.num_hidden_layers, default.num_hidden_layers),
            ("max_position_embeddings", config.max_position_embeddings, default.max_position_embeddings),
        ]);
        let allowed = format!("a model of at most {MAX_PARAMETERS} parameters, and these sizes give more");
        return Err(Error::config(field, found, allowed));
    }
    if numbers(config) > MAX_NUMBERS {
        let (field, found) = furthest([
            widths[0],
            widths[1],
            ("num_attention_heads", config.num_attention_heads, default.num_attention_heads),
            ("batch_size", config.batch_size, default.batch_size),
            ("max_length", config.max_length, default.max_length),
        ]);
        let allowed = format!("at most {MAX_NUMBERS} numbers in a tensor of a step, and these sizes give more");
        return Err(Error::config(field, found, allowed));
    }
    Ok(())
}

/// The field that is furthest above its default.
fn furthest<const N: usize>(fields: [Field; N]) -> (&'static str, usize) {
    let share = |(_, found, default): &Field| *found as f64 / *default as f64;
    let field = fields.into_iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    field.map_or(("", 0), |(field, found, _)| (field, found))
}

/// Parameters of the model, about: without biases and norms, which are less than a percent.
fn parameters(config: &TrainConfig) -> u128 {
    let hidden = config.hidden_size as u128;
    if config.kind == StudentKind::Static {
        return hidden.saturating_mul(config.vocab_size as u128);
    }
    // Queries, keys, values and outputs; the two feed-forward layers.
    let rows = 4 * hidden + 2 * config.intermediate_size as u128;
    let rows = rows.saturating_mul(config.num_hidden_layers as u128);
    let embeddings = config.vocab_size as u128 + config.max_position_embeddings as u128;
    hidden.saturating_mul(rows.saturating_add(embeddings))
}

/// Numbers of the largest tensor of a step: hidden states, scores of attention, or similarities of all pairs of texts.
fn numbers(config: &TrainConfig) -> u128 {
    let [texts, length] = [config.batch_size, config.max_length].map(|size| size as u128);
    let heads = config.num_attention_heads as u128;
    let width = config.hidden_size.max(config.intermediate_size) as u128;
    let per_token = width.max(heads.saturating_mul(length));
    texts.saturating_mul(length).saturating_mul(per_token).max(texts * texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_that_is_too_large_is_named() {
        let large = usize::MAX;
        let default = TrainConfig::default;
        check_sizes(&default()).unwrap();
        check_sizes(&default().with_vocab_size(1_000_000).with_batch_size(1024)).unwrap();
        for (field, config) in [
            ("vocab_size", default().with_vocab_size(99_999_999_999)),
            ("vocab_size", default().with_vocab_size(large).with_kind(StudentKind::Static)),
            ("hidden_size", default().with_hidden_size(1_000_000)),
            ("hidden_size", default().with_hidden_size(large)),
            ("num_hidden_layers", default().with_num_hidden_layers(large)),
            ("intermediate_size", default().with_intermediate_size(large)),
            ("max_position_embeddings", default().with_max_position_embeddings(large)),
            ("intermediate_size", default().with_intermediate_size(1_000_000)),
            ("num_attention_heads", default().with_num_attention_heads(large)),
            ("batch_size", default().with_batch_size(large)),
            ("batch_size", default().with_batch_size(1_000_000)),
            ("max_length", default().with_max_length(100_000).with_max_position_embeddings(100_000)),
        ] {
            let error = check_sizes(&config).unwrap_err().to_string();
            assert!(error.starts_with(&format!("config: {field} = ")), "{field}: {error}");
        }
    }
}
