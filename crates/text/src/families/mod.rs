//! Whole models as data: one row per family, from the embeddings to the names of its blocks and heads.
//!
//! A row states what distinguishes a model from BERT, and [`model`](crate::model) runs all of them with one stack of
//! blocks. What attention does in a family (masks, positions, scale, norms) is the table of the layer, which
//! [`ModelConfig::configure`](candle_attention::checkpoint::ModelConfig::configure) applies.

mod decoders;
mod encoders;
pub(crate) mod model;
pub(crate) mod task_heads;
#[cfg(test)]
mod tests;

pub(crate) use self::encoders::BERT_MODEL;
use self::model::Model;

/// A published family whose whole model runs here.
struct ModelFamily {
    /// The values of `model_type` in `config.json`.
    model_types: &'static [&'static str],
    /// A key and its value that `config.json` must have in addition: models that share a `model_type` (Jina-BERT).
    required_config_key: Option<(&'static str, &'static str)>,
    /// A tensor that the checkpoint must have in addition: models that share a configuration.
    required_tensor: Option<&'static str>,
    model: Model,
}

/// Stands for [`model_class`](candle_attention::checkpoint::model_class) in the place of a config key.
pub(crate) const CLASS: &str = "class";

const fn family(model_types: &'static [&'static str], model: Model) -> ModelFamily {
    ModelFamily { model_types, required_config_key: None, required_tensor: None, model }
}

/// A model whose code is published beside its checkpoints, under the `model_type` of another one.
const fn with_class(model_types: &'static [&'static str], class: &'static str, model: Model) -> ModelFamily {
    ModelFamily { required_config_key: Some((CLASS, class)), ..family(model_types, model) }
}

const JINA: Option<(&str, &str)> = Some(("position_embedding_type", "alibi"));

/// All families. Rows with a condition come before the general one of their `model_type`.
const FAMILIES: &[ModelFamily] = &[
    ModelFamily {
        required_config_key: JINA,
        required_tensor: Some("encoder.layer.0.mlp.up_gated_layer.weight"),
        ..family(&["bert"], encoders::JINA_CODE_MODEL)
    },
    ModelFamily { required_config_key: JINA, ..family(&["bert"], encoders::JINA_MODEL) },
    family(&["bert"], encoders::BERT_MODEL),
    family(&["roberta", "xlm-roberta", "camembert"], encoders::ROBERTA_MODEL),
    family(&["electra"], encoders::ELECTRA_MODEL),
    family(&["mpnet"], encoders::MPNET_MODEL),
    family(&["distilbert"], encoders::DISTILBERT_MODEL),
    family(&["albert"], encoders::ALBERT_MODEL),
    family(&["modernbert"], encoders::MODERNBERT_MODEL),
    ModelFamily {
        required_config_key: Some(("activation_function", "gelu")),
        ..family(&["nomic_bert"], encoders::NOMIC_MOE_MODEL)
    },
    family(&["nomic_bert"], encoders::NOMIC_MODEL),
    family(&["jina_embeddings_v3"], encoders::JINA_V3_MODEL),
    family(&["gte"], encoders::GTE_MODEL),
    family(&["new"], encoders::NEW_MODEL),
    family(&["deberta", "deberta-v2"], encoders::DEBERTA_MODEL),
    family(&["llama"], decoders::LLAMA_MODEL),
    family(&["mistral"], decoders::MISTRAL_MODEL),
    family(&["qwen2"], decoders::QWEN2_MODEL),
    with_class(&["qwen3"], "Qwen3BidirectionalModel", decoders::VOYAGE_MODEL),
    family(&["qwen3"], decoders::QWEN3_MODEL),
    family(&["bidirectional_pplx_qwen3"], decoders::QWEN3_BOTH_WAYS_MODEL),
    family(&["lfm2"], decoders::LFM2_MODEL),
    family(&["lfm2_bidirectional"], decoders::LFM2_BOTH_WAYS_MODEL),
    family(&["gemma3_text"], decoders::GEMMA3_MODEL),
    family(&["embedding_gemma2_text"], decoders::EMBEDDING_GEMMA2_MODEL),
    family(&["eurobert"], decoders::EUROBERT_MODEL),
    ModelFamily {
        required_config_key: Some(("feed_forward_proj", "gated-gelu")),
        ..family(&["t5"], encoders::GATED_T5_MODEL)
    },
    family(&["t5"], encoders::T5_MODEL),
    family(&["mt5", "umt5"], encoders::GATED_T5_MODEL),
];

/// The whole model of this `model_type`. `value_of` gives the text that `config.json` has under a key or for [`CLASS`],
/// `has_tensor` says whether a tensor is present in the checkpoint.
pub(crate) fn model<'a>(
    model_type: &str,
    value_of: impl Fn(&str) -> Option<&'a str>,
    has_tensor: impl Fn(&str) -> bool,
) -> Option<&'static Model> {
    let fits = |family: &&ModelFamily| {
        family.model_types.contains(&model_type)
            && family.required_config_key.is_none_or(|(key, value)| value_of(key) == Some(value))
            && family.required_tensor.is_none_or(&has_tensor)
    };
    FAMILIES.iter().find(fits).map(|family| &family.model)
}

/// The `model_type` values of whole models, each once.
pub(crate) fn model_types() -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in FAMILIES.iter().flat_map(|family| family.model_types) {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    names
}
