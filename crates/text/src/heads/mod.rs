//! Task heads on hidden states: classification, masked-token prediction.

pub(crate) mod classifier;
pub(crate) mod head_model;
pub(crate) mod masked_lm;
pub(crate) mod task_head;
pub(crate) mod token_classifier;
pub(crate) mod token_score;
