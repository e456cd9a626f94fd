//! Task heads on token ids: classification, masked-token prediction.

pub(crate) mod head_model;
pub(crate) mod kinds;
pub(crate) mod task_head;
