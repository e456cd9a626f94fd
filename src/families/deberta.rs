//! DeBERTa ([He 2021](https://arxiv.org/abs/2006.03654)): BERT with disentangled attention.

use crate::families::block::{AbsolutePositions, Model, SegmentTypes};
use crate::families::encoders::BERT_MODEL;
use crate::families::family::{BASE, Family, LayerPositions, Scale};
use crate::families::task_heads::{ClassifierHead, HeadActivation};

const DEBERTA: Family = Family {
    model_types: &["deberta"],
    scale: Scale::Disentangled,
    model: Some(Model {
        prefixes: &["deberta"],
        positions: AbsolutePositions::TableUnless("position_biased_input"),
        types: SegmentTypes::Optional(0),
        projection: None,
        default_keys: &[("layer_norm_eps", 1e-7)],
        renamed_keys: &[("attention_head_size", "head_dim")],
        unsupported_keys: &["conv_kernel_size"],
        classifier: Some(ClassifierHead {
            pooler: false,
            activation: HeadActivation::Stated("pooler_hidden_act"),
            ..ClassifierHead::BERT
        }),
        ..BERT_MODEL
    }),
    ..BASE
};

pub(crate) const DEBERTAS: &[Family] = &[
    Family { positions: LayerPositions::Disentangled { v2: false }, ..DEBERTA },
    // Also its third version.
    Family { model_types: &["deberta-v2"], positions: LayerPositions::Disentangled { v2: true }, ..DEBERTA },
];
