//! Where a checkpoint holds the weight of a module of an adapter.

use crate::checkpoint::WeightSource;
use crate::error::{Error, Result};

/// The name of a weight without `.weight`, and for a fused weight of queries, keys and values which third of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub module: String,
    pub third: Option<usize>,
}

/// The ends of names that transformers 5 gives to modules of NomicBERT and Jina embeddings v3, and what their
/// checkpoints have there, with the third of its rows (its `conversion_mapping.py`).
#[rustfmt::skip]
const RENAMED: [(&str, &str, Option<usize>); 11] = [
    ("self_attn.q_proj", "attn.Wqkv", Some(0)), ("self_attn.k_proj", "attn.Wqkv", Some(1)),
    ("self_attn.v_proj", "attn.Wqkv", Some(2)), ("self_attn.o_proj", "attn.out_proj", None),
    ("mlp.gate_proj", "mlp.fc12", None), ("mlp.up_proj", "mlp.fc11", None), ("mlp.down_proj", "mlp.fc2", None),
    ("self_attn.q_proj", "mixer.Wqkv", Some(0)), ("self_attn.k_proj", "mixer.Wqkv", Some(1)),
    ("self_attn.v_proj", "mixer.Wqkv", Some(2)), ("self_attn.o_proj", "mixer.out_proj", None),
];

/// The places where the weight of a module may be: under its own name first.
fn candidates(module: &str) -> Vec<Place> {
    let whole = |module: &str| Place { module: module.to_string(), third: None };
    let mut places = vec![whole(module)];
    let Some(at) = module.starts_with("layers.").then_some(0).or_else(|| Some(module.find(".layers.")? + 1)) else {
        return places;
    };
    // Their checkpoints have the layers below `encoder`.
    let below = format!("{}encoder.{}", &module[..at], &module[at..]);
    for (theirs, stored, third) in RENAMED {
        if let Some(start) = below.strip_suffix(theirs) {
            places.push(Place { module: format!("{start}{stored}"), third });
        }
    }
    places.push(whole(&below));
    places
}

/// How the names of an adapter differ from those of a checkpoint at their beginning.
pub(super) enum Shift {
    None,
    Remove(String),
    Add(String),
}

impl Shift {
    /// The shift under which the checkpoint has a module of the adapter.
    pub fn find(module: &str, root: &dyn WeightSource) -> Result<Self> {
        let weights = candidates(module).into_iter().map(|place| format!("{}.weight", place.module));
        let weights: Vec<String> = weights.collect();
        for weight in &weights {
            if root.contains(weight) {
                return Ok(Self::None);
            }
            if let Some((first, rest)) = weight.split_once('.')
                && root.contains(rest)
            {
                return Ok(Self::Remove(format!("{first}.")));
            }
        }
        let names = root.names().unwrap_or_default();
        for weight in &weights {
            let prefix = |name: &String| {
                let prefix = name.strip_suffix(weight.as_str())?.strip_suffix('.')?;
                (!prefix.contains('.')).then(|| format!("{prefix}."))
            };
            if let [prefix] = names.iter().filter_map(prefix).collect::<Vec<_>>().as_slice() {
                return Ok(Self::Add(prefix.clone()));
            }
        }
        Err(without_weight(&format!("{module}.weight")))
    }

    pub fn apply(&self, name: &str) -> String {
        match self {
            Self::None => name.to_string(),
            Self::Remove(prefix) => name.strip_prefix(prefix.as_str()).unwrap_or(name).to_string(),
            Self::Add(prefix) => format!("{prefix}{name}"),
        }
    }

    /// The place of a module in the checkpoint.
    pub fn place(&self, module: &str, root: &dyn WeightSource) -> Option<Place> {
        let shifted = |place: Place| Place { module: self.apply(&place.module), ..place };
        candidates(module).into_iter().map(shifted).find(|place| root.contains(&format!("{}.weight", place.module)))
    }
}

/// The error for a tensor that an adapter changes and the base model lacks.
pub(super) fn without_weight(name: &str) -> Error {
    let why = "the adapter changes it, and the base model does not hold it".to_string();
    Error::MissingTensor { name: name.to_string(), why }
}

/// The prefix that PEFT puts before the names of the base model.
pub(super) const PREFIX: &str = "base_model.model.";

/// A part of the change of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    /// `A` of a linear layer, `(r, in)`.
    A,
    /// `B` of a linear layer, `(out, r)`.
    B,
    /// `A` of a table of embeddings, `(r, rows)`.
    EmbeddingA,
    /// `B` of a table of embeddings, `(width, r)`.
    EmbeddingB,
    /// The magnitude of each output, `(out)`.
    Magnitude,
}

/// How the name of each part ends.
const ENDS: [(&str, Part); 6] = [
    (".lora_A.weight", Part::A),
    (".lora_B.weight", Part::B),
    (".lora_embedding_A", Part::EmbeddingA),
    (".lora_embedding_B", Part::EmbeddingB),
    (".lora_magnitude_vector", Part::Magnitude),
    (".lora_magnitude_vector.weight", Part::Magnitude),
];

/// How the name of rows of a table ends.
pub(super) const TOKENS: &str = ".token_adapter.trainable_tokens_delta";

/// A tensor of an adapter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// A part of the change of a module.
    Change(String, Part),
    /// A tensor that takes the place of the base model's of this name.
    Whole(String),
    /// Rows of the table of embeddings that is this module: `trainable_token_indices`.
    Tokens(String),
    /// One that this version does not know.
    Unknown,
}

impl Named {
    /// Reads a name of `adapter_model.safetensors`.
    pub(super) fn parse(name: &str) -> Self {
        let name = name.strip_prefix(PREFIX).unwrap_or(name);
        if let Some((module, part)) = ENDS.iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, *part))) {
            return Self::Change(module.to_string(), part);
        }
        if let Some(module) = name.strip_suffix(TOKENS) {
            return Self::Tokens(module.to_string());
        }
        if name.contains("lora_") || name.contains(".token_adapter.") {
            return Self::Unknown;
        }
        // A module that PEFT wraps has its tensors one level deeper.
        Self::Whole(name.replace(".base_layer.", ".").replace(".modules_to_save.", "."))
    }
}

/// The name of a part as PEFT writes it.
pub(super) fn name_of(module: &str, part: Part) -> String {
    let end = ENDS.iter().find(|(_, named)| *named == part).map_or("", |(end, _)| end);
    format!("{PREFIX}{module}{end}")
}
