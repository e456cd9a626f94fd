//! BERT and its kin: one model, other names.

use super::config::BertConfig;

/// The position of a text's first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Positions {
    From(usize),
    /// One after the padding token's id.
    AfterPad,
}

/// What sets a family apart.
#[derive(Debug)]
pub(super) struct Family {
    /// `model_type`.
    pub name: &'static str,
    /// What stands before all names under a task's head.
    pub prefix: &'static str,
    layers: &'static str,
    /// Within a layer.
    pub attention_norm: &'static str,
    pub intermediate: &'static str,
    pub output: &'static str,
    pub output_norm: &'static str,
    /// From the embeddings to the width of the model, where they differ.
    pub projection: &'static str,
    pub positions: Positions,
    pub has_types: bool,
}

const BERT: Family = Family {
    name: "bert",
    prefix: "bert",
    layers: "encoder.layer",
    attention_norm: "attention.output.LayerNorm",
    intermediate: "intermediate.dense",
    output: "output.dense",
    output_norm: "output.LayerNorm",
    projection: "embeddings_project",
    positions: Positions::From(0),
    has_types: true,
};

pub(super) const FAMILIES: &[Family] = &[
    BERT,
    Family { name: "roberta", prefix: "roberta", positions: Positions::AfterPad, ..BERT },
    Family { name: "xlm-roberta", prefix: "roberta", positions: Positions::AfterPad, ..BERT },
    Family { name: "camembert", prefix: "roberta", positions: Positions::AfterPad, ..BERT },
    Family { name: "electra", prefix: "electra", ..BERT },
    Family {
        name: "mpnet",
        prefix: "mpnet",
        attention_norm: "attention.LayerNorm",
        // Whatever the padding token is.
        positions: Positions::From(2),
        has_types: false,
        ..BERT
    },
    Family {
        name: "distilbert",
        prefix: "distilbert",
        layers: "transformer.layer",
        attention_norm: "sa_layer_norm",
        intermediate: "ffn.lin1",
        output: "ffn.lin2",
        output_norm: "output_layer_norm",
        has_types: false,
        ..BERT
    },
    Family {
        name: "albert",
        prefix: "albert",
        layers: "encoder.albert_layer_groups",
        attention_norm: "attention.LayerNorm",
        intermediate: "ffn",
        output: "ffn_output",
        output_norm: "full_layer_layer_norm",
        projection: "encoder.embedding_hidden_mapping_in",
        ..BERT
    },
];

impl Family {
    pub fn of(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == model_type)
    }

    /// All of them, to choose from.
    pub fn names() -> String {
        let names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        format!("{}, which this version runs", names.join(" or "))
    }

    /// Where each layer is. ALBERT's come back to the same places.
    pub fn layers(&self, config: &BertConfig) -> Vec<String> {
        let albert = |i: usize| {
            let group = i * config.num_hidden_groups / config.num_hidden_layers;
            let inner = (0..config.inner_group_num).map(move |inner| (group, inner));
            inner.map(|(group, inner)| format!("{}.{group}.albert_layers.{inner}", self.layers))
        };
        match self.name {
            "albert" => (0..config.num_hidden_layers).flat_map(albert).collect(),
            _ => (0..config.num_hidden_layers).map(|i| format!("{}.{i}", self.layers)).collect(),
        }
    }
}
