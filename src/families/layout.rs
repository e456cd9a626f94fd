//! `Layout`: tensor names, orientation and order of rows in the checkpoints of one or more families.

use crate::attention::mechanisms;
use crate::attention::mechanisms::BIAS_KV;
use crate::config::ProjectionBias;
use crate::weights::{FACTORS, FusedOrder, LOGIT_SCALE, NORMS, SCORE, SINKS};

/// The orientation of a stored weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orientation {
    /// `[out, in]`, as `torch.nn.Linear` has it.
    OutIn,
    /// `[in, out]`, as GPT-2's `Conv1D` has it.
    InOut,
    /// `[out, in]`, followed by this many dimensions of 1, as convolutions of single pixels (2) or frames (1) have it.
    Pointwise(usize),
    /// `[out, in / groups, 1]`, with as many outputs as inputs: a convolution of single frames in groups, each from its
    /// own inputs to its own outputs.
    Grouped,
    /// `[in, out]`, or with a dimension for the heads: `[in, heads, d]` into heads, `[heads, d, out]` out of them
    /// (Flax, Keras).
    Kernel,
    /// `[out, heads, d]`, out of heads: the other order of a kernel with a dimension for the heads (XLNet).
    OutHeads,
    /// There is no weight: what goes in comes out.
    Absent,
}

/// The tensor names of a projection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinearNames {
    pub weight: &'static str,
    /// The bias is `[out]`, or `[heads, d]` beside a three-dimensional kernel.
    pub bias: &'static str,
    pub orientation: Orientation,
}

impl LinearNames {
    /// A projection that the families do not have.
    pub(crate) const ABSENT: Self = Self { weight: "", bias: "", orientation: Orientation::Absent };

    /// Whether the families do not have it.
    pub(crate) fn is_absent(&self) -> bool {
        self.orientation == Orientation::Absent
    }

    /// Whether the bias is not next to the weight. Only its name then tells the layout from others.
    pub(crate) fn bias_apart(&self) -> bool {
        let module = |name: &'static str| name.rsplit_once('.').map(|(module, _)| module);
        self.orientation == Orientation::OutIn && module(self.weight) != module(self.bias)
    }
}

/// The tensors that hold queries, keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QkvNames {
    /// A projection each of queries, keys and values; of queries and keys, which are the values, too (Gemma 4); or of
    /// queries alone, in layers with the keys and values of another one (Gemma 3n). The biases of three may be one
    /// tensor (`torch.nn.MultiheadAttention` with `kdim` or `vdim`).
    Split(&'static [LinearNames], Option<&'static str>),
    /// One projection. There may be biases of query and value apart, and none of key.
    Fused(LinearNames, Option<[&'static str; 2]>, FusedOrder),
    /// A projection of queries, and one of keys followed by values.
    Pair(LinearNames, LinearNames),
    /// Projections of contents, and others of position vectors.
    Apart(&'static ApartNames),
    /// The projections of latent attention.
    Latent(&'static LatentNames),
}

/// Projections of contents, and others of position vectors, read as projections of both side by side (DAB-DETR).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ApartNames {
    /// Of queries: of contents, and of position vectors, which layers with sines may lack.
    pub q: [LinearNames; 2],
    pub k: [LinearNames; 2],
    pub v: LinearNames,
    /// Of sines of places, behind the sum in each head of a query; heads of keys have position vectors there.
    pub sines: Option<LinearNames>,
}

/// The tensors of latent attention ([`LatentWeights`](crate::weights::LatentWeights)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LatentNames {
    /// The first projection of the queries and its norm, if they have two projections.
    pub q_a: Option<(LinearNames, &'static str)>,
    pub q: LinearNames,
    pub kv_a: LinearNames,
    pub kv_a_norm: &'static str,
    pub kv_b: LinearNames,
}

/// The tensors that hold the gate of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateNames {
    /// None: the families have no gate.
    None,
    /// A projection, which the families may have.
    Optional(LinearNames),
    /// A projection, which the families have. A bias that is not next to the weight is one number per head, also where
    /// there is a gate per element (Beam).
    Required(LinearNames),
    /// The query projection: per head the rows of its query, then those of its gate. No name shows it, but the shape.
    InQuery,
    /// The fused projection, before the queries (HRM).
    BeforeQuery,
}

/// The purpose of a weight of a position scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PositionRole {
    /// A table of biases.
    BiasTable,
    /// Disentangled attention.
    Disentangled,
    /// Relative positions that queries are compared with, or a gate on biases. The name is that of the tensor.
    Relative,
    /// A projection of relative positions, stored as a kernel `[in, heads, d]`.
    RelativeKernel,
}

/// A layout's name for a weight of a position scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PositionName {
    pub role: PositionRole,
    /// The name in the scheme, or its beginning.
    pub scheme: &'static str,
    /// The name in the layout, or its beginning.
    pub stored: &'static str,
}

/// How a family of checkpoints names and stores the weights of an attention layer.
///
/// [`detect`](crate::checkpoint::detect) finds the layout of a layer; [`layouts`](crate::checkpoint::layouts) iterates
/// over all of them.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub(crate) name: &'static str,
    pub(crate) families: &'static str,
    /// The input projections.
    pub(crate) qkv: QkvNames,
    /// The output projection.
    pub(crate) o: LinearNames,
    /// The gate of the output.
    pub(crate) gate: GateNames,
    /// Tensors of an indexer, one of which shows that there is one, in families that may have it. They are not read.
    pub(crate) indexer: Option<&'static [&'static str]>,
    /// The combinations of biases that the families publish. Empty: any.
    pub(crate) biases: &'static [ProjectionBias],
    /// Whether the families may have fewer key-value heads than query heads.
    pub(crate) grouped: bool,
    /// Whether the biases of a fused weight, which lie apart from it, are `[1, 1, rows]`.
    pub(crate) wide_biases: bool,
    /// Whether kernels are written with a dimension for the heads.
    pub(crate) per_head_kernels: bool,
    /// Parameters beside the projections that the families may have, each with its name in the layout. A module stands
    /// for the tensors below it.
    pub(crate) parameters: &'static [(&'static str, &'static str)],
    /// Weights of position schemes that the families may have.
    pub(crate) position: &'static [PositionName],
    /// Components of names below the prefix that belong to what precedes or follows attention: a norm, a factor of each
    /// channel.
    pub(crate) after: &'static [&'static str],
    /// Whether another layout has the same names in the other orientation, so that the shape has to decide. There are
    /// more outputs than inputs.
    pub(crate) check_orientation: bool,
    /// A component of the prefixes of its layers, where names do not tell the layout from others.
    pub(crate) within: Option<&'static str>,
    /// Tensors beside the projections that tell the layout from others.
    pub(crate) requires: &'static [&'static str],
    /// Tensors of other layouts, without which this one fits.
    pub(crate) excludes: &'static [&'static str],
    /// Whether the family may be EVA, whose rotary positions no tensor shows.
    pub(crate) may_be_eva: bool,
}

impl Layout {
    /// A short name, as in error messages and in [`LayerInfo`](crate::checkpoint::LayerInfo).
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The families that publish it, for people to read.
    pub fn families(&self) -> &'static str {
        self.families
    }

    /// Whether a layer at this prefix may have the layout.
    pub(crate) fn is_at(&self, prefix: &str) -> bool {
        self.within.is_none_or(|part| prefix.split('.').any(|component| component == part))
    }

    /// The name of the weight of the output projection below the prefix of the layer, empty if there is none.
    pub fn output_weight(&self) -> &'static str {
        self.o.weight
    }

    /// The names of the gate, if it is a projection of its own.
    pub(crate) fn gate_projection(&self) -> Option<LinearNames> {
        match self.gate {
            GateNames::Optional(names) | GateNames::Required(names) => Some(names),
            GateNames::None | GateNames::InQuery | GateNames::BeforeQuery => None,
        }
    }

    /// Whether the families publish this combination of biases, by the names that are present.
    pub(crate) fn has_biases(&self, biases: ProjectionBias) -> bool {
        self.biases.is_empty() || self.biases.contains(&biases)
    }

    /// Whether the families have layers with these biases.
    pub(crate) fn holds_biases(&self, biases: ProjectionBias) -> bool {
        match self.qkv {
            // These layouts have no place for the bias of a key.
            QkvNames::Fused(_, Some(_), _) => biases == ProjectionBias { k: false, ..ProjectionBias::ALL },
            _ => self.has_biases(biases),
        }
    }

    /// The layout's names of the weights of position schemes, or their beginnings.
    pub(crate) fn stored_position_names(&self) -> impl Iterator<Item = &'static str> {
        self.position.iter().map(|name| name.stored)
    }

    /// The layout's name for a parameter beside the projections, if its families have it.
    pub(crate) fn parameter_name(&self, parameter: &str) -> Option<String> {
        // This crate's own layout has all under their own names.
        let is_own = self.name == "candle-attention";
        let anywhere = parameter_names().filter(|(_, names)| names.is_empty() || is_own).map(|(name, _)| (name, name));
        self.parameters.iter().copied().chain(anywhere).find_map(|names| renamed(parameter, names))
    }

    /// The name of a parameter beside the projections among the tensors that a source `holds`: that of the layout, or
    /// one of other families. StableLM's norms have a module for each head; it is the name that one for all would have.
    pub(crate) fn held_name(&self, holds: impl Fn(&str) -> bool, parameter: &str) -> Option<String> {
        // A Conformer has another `bias_v`, beside a `bias_u`.
        if parameter == BIAS_KV[1] && holds(CONTENT_BIAS) && !holds(BIAS_KV[0]) {
            return None;
        }
        let others = parameter_names().flat_map(|(own, names)| names.iter().map(move |name| (own, *name)));
        let others = others.filter_map(|names| renamed(parameter, names));
        let is_other = |name: &str| {
            // The norm between two projections of queries, which DeepSeek V4 calls as others call a norm of queries.
            let is_latent_norm =
                matches!(self.qkv, QkvNames::Latent(LatentNames { q_a: Some((_, norm)), .. }) if *norm == name);
            is_latent_norm || name.split('.').any(|component| self.after.contains(&component))
        };
        let mut names = self.parameter_name(parameter).into_iter().chain(others).filter(|name| !is_other(name));
        names.find(|name| holds(name) || holds(&name_of_head(name, 0)))
    }

    /// The layout's name for a weight of a position scheme, if its families have such weights.
    pub(crate) fn position_name(&self, weight: &str) -> Option<String> {
        self.position.iter().find_map(|name| renamed(weight, (name.scheme, name.stored)))
    }

    /// Whether a weight of a position scheme is stored as a kernel `[in, heads, d]`.
    pub(crate) fn is_position_kernel(&self, weight: &str) -> bool {
        self.position.iter().any(|name| name.role == PositionRole::RelativeKernel && name.scheme == weight)
    }
}

/// A name with the beginning `own`, or all of it, replaced by `stored`.
fn renamed(name: &str, (own, stored): (&str, &str)) -> Option<String> {
    let rest = name.strip_prefix(own)?;
    (rest.is_empty() || rest.starts_with('.')).then(|| format!("{stored}{rest}"))
}

/// The weight of one head, in StableLM's modules of a norm per head, by the name that one for all would have.
pub(crate) fn name_of_head(name: &str, head: usize) -> String {
    let (module, part) = name.rsplit_once('.').unwrap_or(("", name));
    format!("{module}.norms.{head}.{part}")
}

/// The beginning of a name that stands beside the prefix of the layer, one component above the others.
pub(crate) const BESIDE: &str = "../";
/// The module that chooses the keys of latent attention, where there are more than a query attends to (DeepSeek-V3.2).
pub(crate) const INDEXER: &str = "indexer";
/// Norms of queries and keys, by the names in use. Below each is a `weight`, perhaps a `bias`, or a norm per head.
#[rustfmt::skip]
pub(crate) const QK_NORMS: [[&str; 2]; 5] = [
    ["q_norm", "k_norm"], ["q_layernorm", "k_layernorm"], ["self.layer_norm_q", "self.layer_norm_k"],
    ["query_layernorm", "key_layernorm"], ["norm_q", "norm_k"],
];
/// The names of sinks: GPT-OSS, MiMo, Flint, HY V4 and DeepSeek V4.
pub(crate) const SINK_NAMES: [&str; 5] =
    ["sinks", "attention_sink_bias", "softmax_offset", "learnable_sink_param", "attn_sink"];
/// The names of the parameters beside the projections in all families, by their own names; without any they have their
/// own in every layout. A module stands for the tensors below it. The norm of the context has names by layout alone.
pub(crate) fn parameter_names() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    PARAMETER_NAMES.iter().copied().chain(mechanisms::names())
}

/// Those that belong to no mechanism.
const PARAMETER_NAMES: &[(&str, &[&str])] = &[
    (SCORE, &[]),
    (NORMS[0], &[QK_NORMS[0][0], QK_NORMS[1][0], QK_NORMS[2][0], QK_NORMS[3][0], QK_NORMS[4][0]]),
    (NORMS[1], &[QK_NORMS[0][1], QK_NORMS[1][1], QK_NORMS[2][1], QK_NORMS[3][1], QK_NORMS[4][1]]),
    (NORMS[2], &[NORMS[2]]),
    (FACTORS[0], &[FACTORS[0], "per_dim_scale", "attn.per_dim_scale"]),
    (FACTORS[1], &[FACTORS[1]]),
    (FACTORS[2], &[FACTORS[2]]),
    (LOGIT_SCALE, &[LOGIT_SCALE, "self.logit_scale"]),
    (SINKS, &SINK_NAMES),
];
/// A table of embeddings of distances, that of keys after the query first (Granite Speech, SpeechT5).
pub(crate) const REVERSED_KEYS: &str = "rel_pos_emb.weight";
/// A table of biases of distances between tokens (T5).
pub(crate) const RELATIVE_BIAS: &str = "relative_attention_bias.weight";
/// A table of biases of offsets between patches (BEiT).
pub(crate) const PATCH_BIAS: &str = "relative_position_bias_table";
/// A table of biases of offsets between patches that all layers share, next to the layers: transformers' BEiT, and
/// timm's and the original one.
pub(crate) const SHARED_PATCH_BIAS: [&str; 2] =
    ["relative_position_bias.relative_position_bias_table", "rel_pos_bias.relative_position_bias_table"];
/// The vectors of Transformer-XL that are added to queries before they are compared with keys.
pub(crate) const CONTENT_BIAS: &str = "bias_u";
/// A table of biases of distances that are gated, in the first layer alone (WavLM).
pub(crate) const GATED_BIAS: &str = "rel_attn_embed.weight";
/// Embeddings of rows and of columns between patches (SAM).
pub(crate) const PATCH_KEYS: [&str; 2] = ["rel_pos_h", "rel_pos_w"];
/// Embeddings of distances; their norm is below (DeBERTa).
pub(crate) const DISTANCE_EMBEDDINGS: &str = "rel_embeddings";
/// The frequencies of the rotation, which ESM keeps in the layer.
pub(crate) const ROTARY_FREQUENCIES: &str = "self.rotary_embeddings.inv_freq";
