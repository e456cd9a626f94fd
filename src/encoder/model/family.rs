//! BERT and its kin: one model, other names and other parts.

use crate::checkpoint::WeightSource;
use crate::encoder::model::config::BertConfig;
use crate::encoder::model::feed_forward::Names as FeedForward;

/// How tokens know where they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Positions {
    /// By a table, counted from 0.
    Table,
    /// By a table, counted from one after the padding token's id; padding tokens do not count.
    AfterPad,
    /// As `AfterPad`, for this id whatever the padding token is.
    After(u32),
    /// In attention only.
    InAttention,
}

/// Whether segment types are added to the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Types {
    Always,
    /// Where `type_vocab_size` is not 0; it is this where the configuration is silent.
    IfAny(usize),
    Never,
}

/// What sets a family apart.
#[derive(Debug)]
pub(crate) struct Family {
    /// `model_type`.
    pub name: &'static str,
    /// What stands before all names under a task's head.
    pub prefixes: &'static [&'static str],
    pub words: &'static str,
    pub embeddings_norm: &'static str,
    layers: &'static str,
    /// Within a layer.
    pub attention: &'static str,
    /// Of the input plus attention, which is then added to the input once more.
    pub inner_norm: Option<&'static str>,
    pub attention_norm: &'static str,
    pub feed_forward: FeedForward,
    pub output_norm: &'static str,
    /// After the last layer of those that normalise what goes into attention and feed-forward; the others normalise
    /// what comes out.
    pub final_norm: Option<&'static str>,
    /// From the embeddings to the width of the model, where they differ.
    pub projection: &'static str,
    pub positions: Positions,
    pub types: Types,
    /// The padding token where the configuration is silent.
    pub pad: u32,
    /// Keys that must be absent, null, false or 0.
    pub off: &'static [&'static str],
}

const BERT: Family = Family {
    name: "bert",
    prefixes: &["bert"],
    words: "embeddings.word_embeddings",
    embeddings_norm: "embeddings.LayerNorm",
    layers: "encoder.layer",
    attention: "attention",
    inner_norm: None,
    attention_norm: "attention.output.LayerNorm",
    feed_forward: FeedForward::Plain { first: "intermediate.dense", last: "output.dense" },
    output_norm: "output.LayerNorm",
    final_norm: None,
    projection: "embeddings_project",
    positions: Positions::Table,
    types: Types::Always,
    pad: 0,
    off: &["is_decoder", "add_cross_attention"],
};

const ROBERTA: Family =
    Family { name: "roberta", prefixes: &["roberta"], positions: Positions::AfterPad, pad: 1, ..BERT };

/// `model_type` is that of BERT.
const JINA: Family = Family {
    positions: Positions::InAttention,
    feed_forward: FeedForward::Halves { both: "mlp.gated_layers", activated: 0, last: "mlp.wo" },
    output_norm: "mlp.layernorm",
    ..BERT
};

/// Jina's model for code: queries and keys are normalised, and the halves change places.
const JINA_CODE: Family = Family {
    inner_norm: Some("attention.output.LayerNorm"),
    attention_norm: "layer_norm_1",
    feed_forward: FeedForward::Halves { both: "mlp.up_gated_layer", activated: 1, last: "mlp.down_layer" },
    output_norm: "layer_norm_2",
    ..JINA
};

/// What NomicBERT has in common with those that grew out of the same code.
const NOMIC: Family = Family {
    name: "nomic_bert",
    prefixes: &["bert", "nomic_bert"],
    embeddings_norm: "emb_ln",
    layers: "encoder.layers",
    attention: "attn",
    attention_norm: "norm1",
    feed_forward: FeedForward::Apart { activated: "mlp.fc12", plain: "mlp.fc11", last: "mlp.fc2" },
    output_norm: "norm2",
    positions: Positions::InAttention,
    types: Types::IfAny(2),
    off: &["prenorm", "parallel_block", "causal", "use_rms_norm", "rotary_emb_scale_base", "moe_every_n_layers"],
    ..BERT
};

const FAMILIES: &[Family] = &[
    BERT,
    ROBERTA,
    Family { name: "xlm-roberta", ..ROBERTA },
    Family { name: "camembert", ..ROBERTA },
    Family { name: "electra", prefixes: &["electra"], ..BERT },
    Family {
        name: "mpnet",
        prefixes: &["mpnet"],
        attention_norm: "attention.LayerNorm",
        positions: Positions::After(1),
        types: Types::Never,
        pad: 1,
        ..BERT
    },
    Family {
        name: "distilbert",
        prefixes: &["distilbert"],
        layers: "transformer.layer",
        attention_norm: "sa_layer_norm",
        feed_forward: FeedForward::Plain { first: "ffn.lin1", last: "ffn.lin2" },
        output_norm: "output_layer_norm",
        types: Types::Never,
        ..BERT
    },
    Family {
        name: "albert",
        prefixes: &["albert"],
        layers: "encoder.albert_layer_groups",
        attention_norm: "attention.LayerNorm",
        feed_forward: FeedForward::Plain { first: "ffn", last: "ffn_output" },
        output_norm: "full_layer_layer_norm",
        projection: "encoder.embedding_hidden_mapping_in",
        ..BERT
    },
    Family {
        name: "modernbert",
        prefixes: &["model"],
        words: "embeddings.tok_embeddings",
        embeddings_norm: "embeddings.norm",
        layers: "layers",
        attention: "attn",
        attention_norm: "attn_norm",
        feed_forward: FeedForward::Halves { both: "mlp.Wi", activated: 0, last: "mlp.Wo" },
        output_norm: "mlp_norm",
        final_norm: Some("final_norm"),
        positions: Positions::InAttention,
        types: Types::Never,
        ..BERT
    },
    NOMIC,
    Family {
        name: "jina_embeddings_v3",
        prefixes: &["roberta"],
        attention: "mixer",
        feed_forward: FeedForward::Plain { first: "mlp.fc1", last: "mlp.fc2" },
        types: Types::IfAny(1),
        pad: 1,
        off: BERT.off,
        ..NOMIC
    },
    Family {
        name: "gte",
        prefixes: &["new", "gte"],
        attention_norm: "attn_ln",
        feed_forward: FeedForward::Halves { both: "mlp.up_gate_proj", activated: 1, last: "mlp.down_proj" },
        output_norm: "mlp_ln",
        positions: Positions::InAttention,
        types: Types::IfAny(1),
        pad: 1,
        off: &["is_decoder", "add_cross_attention", "logn_attention_scale"],
        ..BERT
    },
];

impl Family {
    /// `position_embedding_type` tells Jina's BERT from BERT.
    pub fn of(model_type: &str, position_embedding_type: &str) -> Option<&'static Self> {
        match (model_type, position_embedding_type) {
            ("bert", "alibi") => Some(&JINA),
            _ => FAMILIES.iter().find(|family| family.name == model_type),
        }
    }

    /// That of BERT.
    pub fn bert() -> &'static Self {
        &FAMILIES[0]
    }

    /// The family itself, or the one of the same configuration that `source` holds.
    pub fn in_source<S: WeightSource>(&'static self, source: &S) -> &'static Self {
        let FeedForward::Halves { both, .. } = JINA_CODE.feed_forward else { return self };
        let code = source.contains(&format!("{}.0.{both}.weight", JINA_CODE.layers));
        if code && self.is_jina() { &JINA_CODE } else { self }
    }

    pub fn is_jina(&self) -> bool {
        self.feed_forward == JINA.feed_forward
    }

    /// `type_vocab_size` where the configuration is silent and may be.
    pub fn usual_types(&self) -> Option<usize> {
        match self.types {
            Types::IfAny(usual) => Some(usual),
            Types::Always | Types::Never => None,
        }
    }

    /// All of them, to choose from.
    pub fn names() -> String {
        let names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        format!("{}, which this version runs", names.join(" or "))
    }

    /// Whether several layers have the same weights.
    pub fn shares_layers(&self) -> bool {
        self.name == "albert"
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
