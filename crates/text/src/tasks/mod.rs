//! Models of texts with a task head: classifiers, cross-encoders, masked tokens.

pub(crate) mod cross_encoder;
pub(crate) mod entities;
pub(crate) mod fill_mask;
pub(crate) mod text_classifier;
pub(crate) mod token_classifier;
pub(crate) mod token_scorer;
