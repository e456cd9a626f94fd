//! All families, and the lookup of a family by its configuration.

#[cfg(feature = "encoder")]
use crate::families::block::Model;
use crate::families::decoders::DECODERS;
use crate::families::encoder_decoders::ENCODER_DECODERS;
#[cfg(feature = "encoder")]
use crate::families::encoders::BERT_MODEL;
use crate::families::encoders::ENCODERS;
use crate::families::family::{BASE, Family};
use crate::families::vision::VISION;

/// Every row, in the order of the lookup.
pub(crate) fn families() -> impl Iterator<Item = &'static Family> {
    [ENCODERS, DECODERS, ENCODER_DECODERS, VISION].into_iter().flatten()
}

/// The row of an attention layer of this `model_type`, or [`BASE`] if no table lists it.
pub(crate) fn layer_family(model_type: &str) -> &'static Family {
    let unconditional = |family: &&Family| family.stated.is_none() && family.held.is_none();
    families().filter(unconditional).find(|family| family.model_types.contains(&model_type)).unwrap_or(&BASE)
}

/// The whole model of this `model_type`, given what the configuration states for a key and whether the checkpoint holds
/// a tensor.
#[cfg(feature = "encoder")]
pub(crate) fn model<'a>(
    model_type: &str,
    stated: impl Fn(&str) -> Option<&'a str>,
    holds: impl Fn(&str) -> bool,
) -> Option<&'static Model> {
    let fits = |family: &&Family| {
        family.model_types.contains(&model_type)
            && family.stated.is_none_or(|(key, value)| stated(key) == Some(value))
            && family.held.is_none_or(&holds)
    };
    families().filter(fits).find_map(|family| family.model.as_ref())
}

/// BERT's whole model, on which those of other encoders build.
#[cfg(feature = "encoder")]
pub(crate) fn bert() -> &'static Model {
    &BERT_MODEL
}

/// The `model_type` values of whole models, each once.
#[cfg(feature = "encoder")]
pub(crate) fn model_names() -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in families().filter(|family| family.model.is_some()).flat_map(|family| family.model_types) {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    names
}
