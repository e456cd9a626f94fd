//! Text encoder families of which this version runs the attention layer and not the whole model.

use crate::families::family::{BASE, Causal, Family, LayerPositions, ROTARY, RotaryRow};

/// BERT's layer, causal if `is_decoder` is set.
const BERT_LAYER: Family = Family { causal: Causal::IfDecoder, ..BASE };

pub(crate) const TEXT_ENCODERS: &[Family] = &[
    Family {
        model_types: &[
            "bert-generation",
            "data2vec-text",
            "ernie",
            "megatron-bert",
            "rembert",
            "roberta-prelayernorm",
            "roc_bert",
            "xlm-roberta-xl",
            "xmod",
        ],
        ..BERT_LAYER
    },
    // These see both ways whatever `is_decoder` states.
    Family { model_types: &["canine", "dpr", "layoutlm", "markuplm", "splinter", "tapas", "visual_bert"], ..BASE },
    Family {
        model_types: &["big_bird"],
        needs: &[("attention_type", "original_full", "block-sparse attention")],
        ..BERT_LAYER
    },
    Family {
        model_types: &["roformer"],
        positions: LayerPositions::Rotary(RotaryRow { interleaved: true, ..ROTARY }),
        ..BERT_LAYER
    },
];
