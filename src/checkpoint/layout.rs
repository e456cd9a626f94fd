use super::source::WeightSource;
use crate::error::{Error, Result};

/// The names of a projection's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseNames {
    /// The weight: `[out, in]`, or, where the name ends in `kernel`, `[in, out]`, `[in, heads, d]` or `[heads, d, out]`.
    pub weight: &'static str,
    /// The bias: `[out]`, or `[heads, d]` beside a three-dimensional kernel.
    pub bias: &'static str,
}

/// How queries, keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkvNames {
    /// Three projections: query, key, value.
    Split([DenseNames; 3]),
    /// One tensor, the rows of query, key and value one after the other.
    Fused(DenseNames),
    /// Three weights with one fused bias (`torch.nn.MultiheadAttention` with `kdim` or `vdim`).
    SplitFusedBias([&'static str; 3], &'static str),
}

/// Which of `[q, k, v, o]` have a bias: the combinations that a layout's families publish. Empty: any.
pub type BiasPatterns = &'static [[bool; 4]];

/// How a family of checkpoints names and stores the weights of an attention layer.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// A short name.
    pub name: &'static str,
    /// Who publishes it.
    pub families: &'static str,
    /// The input projections.
    pub qkv: QkvNames,
    /// The output projection.
    pub o: DenseNames,
    /// Which biases go together.
    pub biases: BiasPatterns,
}

macro_rules! dense {
    ($name:literal) => {
        DenseNames { weight: concat!($name, ".weight"), bias: concat!($name, ".bias") }
    };
}
macro_rules! kernel {
    ($name:literal) => {
        DenseNames { weight: concat!($name, ".kernel"), bias: concat!($name, ".bias") }
    };
}
macro_rules! split {
    ($dense:ident, $q:literal, $k:literal, $v:literal) => {
        QkvNames::Split([$dense!($q), $dense!($k), $dense!($v)])
    };
}

const ALL: [bool; 4] = [true; 4];
const NONE: [bool; 4] = [false; 4];
const NO_KEY: [bool; 4] = [true, false, true, true];
const ONLY_OUT: [bool; 4] = [false, false, false, true];
const IN_PROJ: DenseNames = DenseNames { weight: "in_proj_weight", bias: "in_proj_bias" };
const SPLIT_PROJ: [&str; 3] = ["q_proj_weight", "k_proj_weight", "v_proj_weight"];

/// Every known layout. A new family is a new row.
#[rustfmt::skip]
pub const LAYOUTS: &[Layout] = &[
    Layout { name: "candle-attention", families: "this crate, Llama, Mistral, Qwen2",
        qkv: split!(dense, "q_proj", "k_proj", "v_proj"), o: dense!("o_proj"), biases: &[] },
    Layout { name: "bert", families: "BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA",
        qkv: split!(dense, "self.query", "self.key", "self.value"), o: dense!("output.dense"), biases: &[ALL] },
    Layout { name: "distilbert", families: "DistilBERT",
        qkv: split!(dense, "q_lin", "k_lin", "v_lin"), o: dense!("out_lin"), biases: &[ALL] },
    Layout { name: "albert", families: "ALBERT",
        qkv: split!(dense, "query", "key", "value"), o: dense!("dense"), biases: &[ALL] },
    Layout { name: "mpnet", families: "MPNet",
        qkv: split!(dense, "attn.q", "attn.k", "attn.v"), o: dense!("attn.o"), biases: &[ALL] },
    Layout { name: "mpnet-attn", families: "MPNet, from the prefix one further down",
        qkv: split!(dense, "q", "k", "v"), o: dense!("o"), biases: &[ALL] },
    Layout { name: "vit", families: "ViT, DINOv2, BEiT (transformers)",
        qkv: split!(dense, "attention.query", "attention.key", "attention.value"), o: dense!("output.dense"),
        biases: &[ALL, NO_KEY, ONLY_OUT] },
    Layout { name: "timm", families: "timm ViT, DINOv2 (original)",
        qkv: QkvNames::Fused(dense!("qkv")), o: dense!("proj"), biases: &[ALL, ONLY_OUT] },
    Layout { name: "bart", families: "BART, Marian, Whisper, CLIP, SigLIP, wav2vec 2.0, fairseq",
        qkv: split!(dense, "q_proj", "k_proj", "v_proj"), o: dense!("out_proj"), biases: &[ALL, NO_KEY] },
    Layout { name: "torch", families: "torch.nn.MultiheadAttention, OpenCLIP",
        qkv: QkvNames::Fused(IN_PROJ), o: dense!("out_proj"), biases: &[ALL, NONE] },
    Layout { name: "torch-split", families: "torch.nn.MultiheadAttention with kdim or vdim",
        qkv: QkvNames::SplitFusedBias(SPLIT_PROJ, IN_PROJ.bias), o: dense!("out_proj"), biases: &[ALL, NONE] },
    Layout { name: "d2l", families: "Dive into Deep Learning: PyTorch, MXNet",
        qkv: split!(dense, "W_q", "W_k", "W_v"), o: dense!("W_o"), biases: &[ALL, NONE] },
    Layout { name: "d2l-kernel", families: "Dive into Deep Learning: JAX, TensorFlow",
        qkv: split!(kernel, "W_q", "W_k", "W_v"), o: kernel!("W_o"), biases: &[ALL, NONE] },
    Layout { name: "flax", families: "flax.linen.MultiHeadDotProductAttention, flax.nnx.MultiHeadAttention",
        qkv: split!(kernel, "query", "key", "value"), o: kernel!("out"), biases: &[ALL, NONE] },
    Layout { name: "keras", families: "keras.layers.MultiHeadAttention",
        qkv: split!(kernel, "query", "key", "value"), o: kernel!("attention_output"), biases: &[ALL, NONE] },
    Layout { name: "flax-bert", families: "BERT, RoBERTa, ELECTRA in Flax (transformers)",
        qkv: split!(kernel, "self.query", "self.key", "self.value"), o: kernel!("output.dense"), biases: &[ALL] },
];

/// One more key and value that every query sees (`torch.nn.MultiheadAttention`, fairseq), in any layout.
pub(super) const BIAS_KV: [&str; 2] = ["bias_k", "bias_v"];
/// The vector of additive scoring, `(h, head_dim)`, in any layout.
pub(super) const SCORE: &str = "score.weight";

/// Components of names below an attention prefix that are not part of the attention: the norm after BERT's, a buffer.
const IGNORED: &[&str] = &["LayerNorm", "inv_freq"];

/// Tensors that change what attention computes and that this version does not apply. Looked for by name where a source
/// cannot list what it holds.
const NOT_APPLIED: &[(&str, &str)] = &[
    ("q_norm.weight", "it normalises queries"),
    ("k_norm.weight", "it normalises keys"),
    ("q_layernorm.weight", "it normalises queries"),
    ("k_layernorm.weight", "it normalises keys"),
    ("q_layer_norm.weight", "it normalises queries"),
    ("k_layer_norm.weight", "it normalises keys"),
    ("query_layernorm.weight", "it normalises queries"),
    ("key_layernorm.weight", "it normalises keys"),
    ("q_layernorm.norms.0.weight", "it normalises queries by head"),
    ("k_layernorm.norms.0.weight", "it normalises keys by head"),
    ("self.rotary_embeddings.inv_freq", "it belongs to rotary positions"),
    ("q_proj.weight_scale", "it belongs to quantised weights"),
    ("sinks", "it adds a learned sink to every softmax"),
    ("relative_attention_bias.weight", "it adds a relative position bias"),
    ("relative_position_bias_table", "it adds a relative position bias"),
    ("attention.relative_position_bias.relative_position_bias_table", "it adds a relative position bias"),
    ("self.distance_embedding.weight", "it adds relative position embeddings"),
    ("q_bias", "it is a separate query bias"),
    ("v_bias", "it is a separate value bias"),
];

impl Layout {
    /// The weights that must all be there for the layout to fit.
    pub(super) fn required(&self) -> Vec<&'static str> {
        let mut names = match self.qkv {
            QkvNames::Split(qkv) => qkv.map(|dense| dense.weight).to_vec(),
            QkvNames::Fused(dense) => vec![dense.weight],
            QkvNames::SplitFusedBias(weights, _) => weights.to_vec(),
        };
        names.push(self.o.weight);
        names
    }

    /// The names of the biases of q, k, v, o; the same name where they are fused.
    pub(super) fn bias_names(&self) -> [&'static str; 4] {
        let [q, k, v] = match self.qkv {
            QkvNames::Split(qkv) => qkv.map(|dense| dense.bias),
            QkvNames::Fused(DenseNames { bias, .. }) | QkvNames::SplitFusedBias(_, bias) => [bias; 3],
        };
        [q, k, v, self.o.bias]
    }

    fn fits<S: WeightSource>(&self, source: &S) -> bool {
        self.required().iter().all(|name| source.contains(name))
    }

    /// Checks that the biases present are a combination that the families of this layout publish.
    fn check_biases<S: WeightSource>(&self, source: &S) -> Result<()> {
        let names = self.bias_names();
        let present = names.map(|name| source.contains(name));
        if self.biases.is_empty() || self.biases.contains(&present) {
            return Ok(());
        }
        let lacking = names.iter().zip(present).find(|(_, there)| !there);
        let (name, _) = lacking.unwrap_or((&names[1], false));
        let others = names.iter().zip(present).filter(|(_, there)| *there).map(|(name, _)| *name).collect::<Vec<_>>();
        let why = match others.is_empty() {
            true => format!("layout `{}` has biases", self.name),
            false => format!("layout `{}` has it beside {}", self.name, list(&others)),
        };
        Err(Error::MissingTensor { name: source.full_name(name), why })
    }

    /// Checks that nothing under the prefix would change the result without being read.
    fn check_unread<S: WeightSource>(&self, source: &S) -> Result<()> {
        let unsupported = |name: &str, why: &str| {
            Err(Error::UnsupportedTensor { name: source.full_name(name), layout: self.name, why: why.to_string() })
        };
        if let Some((name, why)) = NOT_APPLIED.iter().find(|(name, _)| source.contains(name)) {
            return unsupported(name, &format!("{why}, which this version does not apply"));
        }
        let mut read = self.required();
        read.extend(self.bias_names());
        read.extend(BIAS_KV);
        read.push(SCORE);
        let names = source.names().unwrap_or_default();
        let ignored = |name: &str| name.split('.').any(|part| IGNORED.contains(&part));
        match names.iter().find(|name| !read.contains(&name.as_str()) && !ignored(name)) {
            Some(name) => unsupported(name, "it is not part of the layout; is the prefix that of the attention layer?"),
            None => Ok(()),
        }
    }
}

/// Finds the layout of the attention layer that `source` points at, by the names it holds.
///
/// # Errors
/// [`Error::UnknownLayout`] if none fits; [`Error::MissingTensor`] if a bias is missing that the family always has;
/// [`Error::UnsupportedTensor`] if there is a tensor that would change the result.
pub fn detect<S: WeightSource>(source: &S) -> Result<&'static Layout> {
    let layout = LAYOUTS.iter().find(|layout| layout.fits(source)).ok_or_else(|| unknown(source))?;
    layout.check_biases(source)?;
    layout.check_unread(source)?;
    Ok(layout)
}

fn unknown<S: WeightSource>(source: &S) -> Error {
    let lacking = |layout: &Layout| {
        let required = layout.required();
        required.into_iter().filter(|name| !source.contains(name)).collect::<Vec<_>>()
    };
    // The one that has most of its names, compared as shares because a fused layout needs fewer.
    let share = |layout: &Layout| lacking(layout).len() * 12 / layout.required().len();
    let nearest = LAYOUTS.iter().min_by_key(|layout| share(layout)).unwrap_or(&LAYOUTS[0]);
    let keys = match source.names() {
        Some(names) if names.is_empty() => "it holds no key".to_string(),
        Some(names) => format!("it holds {}", list(&names)),
        None => {
            let known = LAYOUTS.iter().flat_map(Layout::required).filter(|name| source.contains(name));
            match known.collect::<std::collections::BTreeSet<_>>() {
                known if known.is_empty() => "it holds no known key".to_string(),
                known => format!("of the known keys it holds {}", list(&known.into_iter().collect::<Vec<_>>())),
            }
        }
    };
    Error::UnknownLayout {
        prefix: source.full_name(""),
        keys,
        nearest: nearest.name,
        lacks: list(&lacking(nearest)),
        hint: deeper_prefix(source).map(|prefix| format!("; did you mean prefix `{prefix}`?")).unwrap_or_default(),
    }
}

/// The first prefix further down under which a layout fits.
fn deeper_prefix<S: WeightSource>(source: &S) -> Option<String> {
    let names = source.names()?;
    let present: std::collections::HashSet<&str> = names.iter().map(String::as_str).collect();
    names.iter().find_map(|name| {
        let fits = |layout: &&Layout| {
            let required = layout.required();
            let prefix = name.strip_suffix(required[0])?.strip_suffix('.')?;
            required.iter().all(|name| present.contains(format!("{prefix}.{name}").as_str())).then_some(prefix)
        };
        LAYOUTS.iter().find_map(|layout| fits(&layout)).map(|prefix| source.full_name(prefix))
    })
}

/// At most twelve names, quoted.
fn list<T: AsRef<str>>(names: &[T]) -> String {
    const MOST: usize = 12;
    let shown = names.iter().take(MOST).map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
