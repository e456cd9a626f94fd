//! Reads the weights of an attention layer in any known layout.

use candle_core::Tensor;

use crate::checkpoint::detect::detect;
use crate::checkpoint::source::{WeightSource, join};
use crate::config::{AttentionConfig, NormOver, Scoring};
use crate::error::{Error, Result};
use crate::families::layout::{
    BIAS_KV, DISTANCE_EMBEDDINGS, Layout, LinearNames, Orientation, PATCH_BIAS, PositionRole, QK_NORMS, QkvNames,
    ROTARY_FREQUENCIES, SCORE, SINKS,
};
use crate::position::Presence;
use crate::weights::{AttentionWeights, FusedOrder, LinearWeights, NormWeights, PositionWeights, QkvWeights};

impl AttentionWeights {
    /// Reads the layer that `source` points at, in any known layout, and returns that layout.
    ///
    /// Biases are read if the checkpoint has them, whatever `config.bias` and `config.add_bias_kv` are.
    ///
    /// # Errors
    /// The errors of [`detect`]; a tensor whose shape does not fit the configuration, named.
    pub fn read(config: &AttentionConfig, source: &dyn WeightSource) -> Result<(Self, &'static Layout)> {
        config.validate()?;
        let layout = detect(source)?;
        let reader = Reader { source, layout, sizes: Sizes::new(config) };
        let qkv = reader.qkv()?;
        let o = reader.linear(layout.o, reader.sizes.heads_of_output, config.resolved_output_size(), false)?;
        check_rotary(source, config)?;
        let heads = config.num_attention_heads;
        let weights = Self {
            qkv,
            o,
            bias_kv: reader.bias_kv()?,
            score: read_score(source, config)?,
            qk_norm: read_norms(source, config)?,
            sinks: source.contains(SINKS).then(|| source.get(SINKS, &[heads])).transpose()?,
            position: read_position(source, config, layout)?,
        };
        Ok((weights, layout))
    }
}

/// The rows of a projection: heads of `dim` each.
#[derive(Clone, Copy)]
struct Rows {
    heads: usize,
    dim: usize,
}

impl Rows {
    fn len(self) -> usize {
        self.heads * self.dim
    }
}

/// The sizes that a configuration asks for.
struct Sizes {
    /// Rows of query, key and value.
    qkv: [Rows; 3],
    /// Widths of the inputs of query, key and value.
    inputs: [usize; 3],
    heads_of_output: Rows,
}

impl Sizes {
    fn new(config: &AttentionConfig) -> Self {
        let (heads, kv_heads) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        let (dim, value_dim) = (config.resolved_head_dim(), config.resolved_value_head_dim());
        Self {
            qkv: [Rows { heads, dim }, Rows { heads: kv_heads, dim }, Rows { heads: kv_heads, dim: value_dim }],
            inputs: [config.resolved_query_size(), config.resolved_key_size(), config.resolved_value_size()],
            heads_of_output: Rows { heads, dim: value_dim },
        }
    }

    /// The number of rows of query, key and value.
    fn rows(&self) -> [usize; 3] {
        self.qkv.map(Rows::len)
    }
}

struct Reader<'a> {
    source: &'a dyn WeightSource,
    layout: &'static Layout,
    sizes: Sizes,
}

impl Reader<'_> {
    fn qkv(&self) -> Result<QkvWeights> {
        let Sizes { qkv, inputs, .. } = &self.sizes;
        let rows = self.sizes.rows();
        let starts = [0, rows[0], rows[0] + rows[1]];
        let all = Rows { heads: rows.iter().sum(), dim: 1 };
        Ok(match self.layout.qkv {
            QkvNames::Split(names) => {
                let read = |i: usize| self.linear(names[i], qkv[i], inputs[i], true);
                QkvWeights::Split(Box::new([read(0)?, read(1)?, read(2)?]))
            }
            QkvNames::Fused(names, order) => {
                let fused = self.linear(names, all, self.one_input()?, true)?;
                match order {
                    FusedOrder::Blocks => QkvWeights::Packed(fused),
                    order => QkvWeights::Ordered(fused, order),
                }
            }
            QkvNames::FusedSplitBias(weight, [q_bias, v_bias], order) => {
                let weight = self.source.get(weight, &[all.len(), self.one_input()?])?;
                let bias = |name: &str, i: usize| -> Result<Option<Tensor>> {
                    let dims = [1, 1, rows[i]];
                    let dims = if self.layout.wide_biases { &dims[..] } else { &dims[2..] };
                    Ok(Some(self.source.get(name, dims)?.flatten_all()?))
                };
                let biases = [bias(q_bias, 0)?, None, bias(v_bias, 2)?];
                if order != FusedOrder::Blocks {
                    return Ok(QkvWeights::OrderedSplitBias { weight, biases, order });
                }
                let part = |i: usize| -> Result<LinearWeights> {
                    Ok(LinearWeights { weight: weight.narrow(0, starts[i], rows[i])?, bias: biases[i].clone() })
                };
                QkvWeights::Split(Box::new([part(0)?, part(1)?, part(2)?]))
            }
            QkvNames::Pair(q, kv) => {
                let [q_size, k_size, v_size] = *inputs;
                if k_size != v_size {
                    let layout = self.layout.name;
                    let allowed = format!("key_size = {k_size}: layout `{layout}` makes both from one input");
                    return Err(Error::config("value_size", v_size, allowed));
                }
                let q = self.linear(q, qkv[0], q_size, true)?;
                let kv = self.linear(kv, Rows { heads: rows[1] + rows[2], dim: 1 }, k_size, true)?;
                QkvWeights::Split(Box::new([q, part_of(&kv, 0, rows[1])?, part_of(&kv, rows[1], rows[2])?]))
            }
            QkvNames::SplitFusedBias(weights, bias) => {
                let fused = self.source.contains(bias).then(|| self.source.get(bias, &[all.len()])).transpose()?;
                let read = |i: usize| -> Result<LinearWeights> {
                    let weight = self.source.get(weights[i], &[rows[i], inputs[i]])?;
                    let bias = fused.as_ref().map(|bias| bias.narrow(0, starts[i], rows[i])).transpose()?;
                    Ok(LinearWeights { weight, bias })
                };
                QkvWeights::Split(Box::new([read(0)?, read(1)?, read(2)?]))
            }
        })
    }

    /// The width of the one input of a fused projection.
    fn one_input(&self) -> Result<usize> {
        let [q, k, v] = self.sizes.inputs;
        if q == k && q == v {
            return Ok(q);
        }
        let allowed = format!("query_size = {q}: the checkpoint's fused layout `{}` has one", self.layout.name);
        let (field, found) = if q != k { ("key_size", k) } else { ("value_size", v) };
        Err(Error::config(field, found, allowed))
    }

    /// Reads a projection from `width` into heads if `into_heads`, else from heads into `width`, as `(out, in)`.
    fn linear(&self, names: LinearNames, heads: Rows, width: usize, into_heads: bool) -> Result<LinearWeights> {
        let source = self.source;
        let (out, input) = if into_heads { (heads.len(), width) } else { (width, heads.len()) };
        let bias = |shape: &[usize]| -> Result<Option<Tensor>> {
            source.contains(names.bias).then(|| source.get_reshaped(names.bias, shape, &[out])).transpose()
        };
        match names.orientation {
            Orientation::OutIn => {
                return Ok(LinearWeights { weight: source.get(names.weight, &[out, input])?, bias: bias(&[out])? });
            }
            Orientation::InOut => {
                let weight = source.get(names.weight, &[input, out])?.t()?;
                return Ok(LinearWeights { weight, bias: bias(&[out])? });
            }
            Orientation::Kernel => {}
        }
        // A kernel is [in, out]; Flax and Keras may keep the heads as a dimension of their own.
        let Rows { heads, dim } = heads;
        let kernel_shape = if into_heads { [width, heads, dim] } else { [heads, dim, width] };
        let per_head = match source.shape(names.weight)? {
            Some(shape) => shape.len() == 3,
            // This source only confirms a shape.
            None => source.get(names.weight, &kernel_shape).is_ok(),
        };
        let shape = if per_head { kernel_shape.to_vec() } else { vec![input, out] };
        let bias_shape = if per_head && into_heads { vec![heads, dim] } else { vec![out] };
        let kernel = source.get_reshaped(names.weight, &shape, &[input, out])?;
        Ok(LinearWeights { weight: kernel.t()?, bias: bias(&bias_shape)? })
    }

    fn bias_kv(&self) -> Result<Option<[Tensor; 2]>> {
        if !BIAS_KV.iter().any(|name| self.source.contains(name)) {
            return Ok(None);
        }
        let [_, k_rows, v_rows] = self.sizes.rows();
        let read = |name: &str, rows: usize| self.source.get_reshaped(name, &[1, 1, rows], &[rows]);
        Ok(Some([read(BIAS_KV[0], k_rows)?, read(BIAS_KV[1], v_rows)?]))
    }
}

/// `len` rows of a projection, as views.
fn part_of(linear: &LinearWeights, start: usize, len: usize) -> Result<LinearWeights> {
    let bias = linear.bias.as_ref().map(|bias| bias.narrow(0, start, len)).transpose()?;
    Ok(LinearWeights { weight: linear.weight.narrow(0, start, len)?, bias })
}

fn check_rotary(source: &dyn WeightSource, config: &AttentionConfig) -> Result<()> {
    if source.contains(ROTARY_FREQUENCIES) && !config.position.scheme().has_frequency_buffer() {
        let allowed = format!("rotary: the checkpoint holds `{}`", source.full_name(ROTARY_FREQUENCIES));
        return Err(Error::config("position", format!("{:?}", config.position), allowed));
    }
    Ok(())
}

fn read_score(source: &dyn WeightSource, config: &AttentionConfig) -> Result<Option<Tensor>> {
    match (config.scoring, source.contains(SCORE)) {
        (Scoring::ScaledDotProduct, false) => Ok(None),
        (Scoring::ScaledDotProduct, true) => {
            let allowed = format!("additive: the checkpoint holds `{}`", source.full_name(SCORE));
            Err(Error::config("scoring", "scaled dot product", allowed))
        }
        (Scoring::Additive, _) => {
            Ok(Some(source.get(SCORE, &[config.num_attention_heads, config.resolved_head_dim()])?))
        }
    }
}

/// Reads the norms if there are any. Their formula comes from the configuration, which must have one then.
pub(crate) fn read_norms(source: &dyn WeightSource, config: &AttentionConfig) -> Result<Option<[NormWeights; 2]>> {
    let present = |name: &str| source.contains(&format!("{name}.weight")) || source.contains(&per_head(name, 0));
    let found = QK_NORMS.iter().find(|names| names.iter().any(|name| present(name)));
    let norm = match (&config.qk_norm, found) {
        (None, None) => return Ok(None),
        (Some(norm), Some(_)) => norm,
        (None, Some([q, _])) => {
            let allowed = format!("set: the checkpoint holds `{}`", source.full_name(q));
            return Err(Error::config("qk_norm", "none", allowed));
        }
        (Some(_), None) => {
            let name = source.full_name(&format!("{}.weight", QK_NORMS[0][0]));
            return Err(Error::MissingTensor { name, why: "the configuration sets qk_norm".to_string() });
        }
    };
    let [q, k] = *found.unwrap_or(&QK_NORMS[0]);
    let read = |name: &str, heads: usize| {
        let d = config.resolved_head_dim();
        let one = |name: &str| match (norm.over, source.shape(name)?.as_deref()) {
            (NormOver::Head, Some(&[all])) if all == heads * d && all != d => {
                let allowed =
                    format!("all heads: `{}` has {all} elements, {heads} heads of {d}", source.full_name(name));
                Err(Error::config("qk_norm.over", "one head", allowed))
            }
            (NormOver::AllHeads, Some(&[one])) if one == d && one != heads * d => {
                let allowed = format!("one head: `{}` has {one} elements, a head's", source.full_name(name));
                Err(Error::config("qk_norm.over", "all heads", allowed))
            }
            (NormOver::AllHeads, _) => source.get(name, &[heads * d]),
            (NormOver::Head, Some([_, _])) => source.get(name, &[heads, d]),
            (NormOver::Head, _) => source.get(name, &[d]),
        };
        if source.contains(&per_head(name, 0)) {
            let weights = (0..heads).map(|head| source.get(&per_head(name, head), &[d])).collect::<Result<Vec<_>>>()?;
            if weights.iter().any(Tensor::track_op) {
                let expected = "fixed weights: norms of a module for each head cannot be trained yet".to_string();
                return Err(Error::Tensor {
                    name: source.full_name(&per_head(name, 0)),
                    found: "is a variable".into(),
                    expected,
                });
            }
            return Ok(NormWeights { weight: Tensor::stack(&weights, 0)?, bias: None });
        }
        let bias = format!("{name}.bias");
        let bias = source.contains(&bias).then(|| one(&bias)).transpose()?;
        Ok::<_, Error>(NormWeights { weight: one(&format!("{name}.weight"))?, bias })
    };
    Ok(Some([read(q, config.num_attention_heads)?, read(k, config.resolved_num_key_value_heads())?]))
}

/// The weight of one head, in StableLM's modules of a norm per head.
fn per_head(name: &str, head: usize) -> String {
    format!("{name}.norms.{head}.weight")
}

impl Layout {
    /// The name of the table of biases of patches that `source` holds, if it holds one.
    pub(crate) fn patch_table_in(&self, source: &dyn WeightSource) -> Option<&'static str> {
        let tables = self.position.iter().filter(|name| name.scheme == PATCH_BIAS);
        tables.map(|name| name.stored).find(|table| source.contains(table))
    }
}

/// Reads the weights of the layer's position scheme that `source` holds. Weights that several layers share are stored
/// elsewhere, and are read where the prefix of the layer is known.
pub(crate) fn read_position(
    source: &dyn WeightSource,
    config: &AttentionConfig,
    layout: &Layout,
) -> Result<PositionWeights> {
    let mut weights = PositionWeights::default();
    let parameters = config.position.scheme().parameters(&config.sizes());
    for parameter in &parameters {
        let name = layout.position_name(parameter.name);
        let held = name.filter(|name| parameter.presence == Presence::Required || source.contains(name));
        match held {
            Some(name) => weights.insert(parameter.name, source.get(&name, &parameter.shape)?),
            None if parameter.presence == Presence::Required => {
                let allowed = format!("another: layout `{}` has no `{}`", layout.name, parameter.name);
                return Err(Error::config("position", &config.position, allowed));
            }
            None => {}
        }
    }
    // A weight that the configured scheme has no use for means that the configuration is wrong.
    let used = |role: PositionRole| {
        let mut names = layout.position.iter().filter(|name| name.role == role);
        names.any(|name| parameters.iter().any(|parameter| parameter.name.starts_with(name.scheme)))
    };
    for name in layout.position.iter().filter(|name| name.scheme != DISTANCE_EMBEDDINGS) {
        let (what, tensor) = match name.role {
            PositionRole::BiasTable => ("a table of biases", name.stored.to_string()),
            PositionRole::Disentangled => ("disentangled attention", join(name.stored, "weight")),
        };
        if !used(name.role) && source.contains(&tensor) {
            let allowed = format!("one with {what}, because the checkpoint holds `{}`", source.full_name(&tensor));
            return Err(Error::config("position", &config.position, allowed));
        }
    }
    Ok(weights)
}
