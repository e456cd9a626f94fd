//! `ModelConfig`: a parsed `config.json`, and the family that it is read as.

use serde_json::Value;

use crate::setters;

/// A parsed `config.json`, and the family that it is read as.
///
/// A reference to the parsed file is one by `into()`: functions take `&json` where the file's own `model_type` decides.
///
/// Some models are another family under a name of their own. Whoever knows that asks for the family by name:
///
/// ```
/// use candle_attention::checkpoint::ModelConfig;
///
/// let json = serde_json::json!({"model_type": "my_llama", "num_attention_heads": 8, "rope_theta": 5e5});
/// let config = ModelConfig::new(&json).with_like("llama");
/// # assert_eq!(config.like, Some("llama"));
/// ```
///
/// The `config.json` of timm states no family: `timm` is its name here, and the keys are the arguments of timm's classes,
/// such as `num_heads`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ModelConfig<'a> {
    /// The parsed `config.json`: that of the whole model, or the section of the part that the layer belongs to.
    pub json: &'a Value,
    /// The family, as `model_type` spells it, that the layer is read as. `None`: the one that the file states.
    pub like: Option<&'a str>,
}

impl<'a> ModelConfig<'a> {
    /// The configuration of a file that states its family.
    pub fn new(json: &'a Value) -> Self {
        Self { json, like: None }
    }

    setters! {
        /// Sets the family that the layer is read as, whatever the file states.
        with_like, like: impl Into<Option<&'a str>> = like.into();
    }
}

impl<'a> From<&'a Value> for ModelConfig<'a> {
    fn from(json: &'a Value) -> Self {
        Self::new(json)
    }
}
