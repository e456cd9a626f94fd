//! Reads the weights of an attention layer in any known layout.

use candle_core::Tensor;

use crate::checkpoint::detect::detect;
use crate::checkpoint::source::{AnySource, WeightSource, join};
use crate::config::{AttentionConfig, CallInput, GateOver, KeyValueSource};
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layout::{
    ApartNames, DISTANCE_EMBEDDINGS, GateNames, INDEXER, LatentNames, Layout, LinearNames, Orientation, PATCH_BIAS,
    PositionName, PositionRole, QkvNames, ROTARY_FREQUENCIES, name_of_head,
};
use crate::ops::LatentSizes;
use crate::position::Position;
use crate::tensor::check_tensor_memory;
use crate::weights::{
    AttentionWeights, BIAS_KV, FusedOrder, LatentWeights, LinearWeights, NormWeights, Parameter, Parameters, Presence,
    QkvWeights,
};

impl AttentionWeights {
    /// Reads the layer that `source` points at, in any known layout, and returns that layout.
    ///
    /// Biases are read if the checkpoint has them, whatever `config.bias` and `config.add_bias_kv` are.
    ///
    /// # Errors
    /// The errors of [`detect`]; a tensor whose shape does not fit the configuration, named.
    pub fn read(config: &AttentionConfig, source: &dyn WeightSource) -> Result<(Self, &'static Layout)> {
        Self::read_from(config, source, source)
    }

    /// Reads the layer that `source` points at for a loader that puts low-rank changes beside its projections, by
    /// `MultiHeadAttention::with_changes`: these are read without the changes, and what has no
    /// place for one beside it, such as the weights of positions, with them.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub(crate) fn read_base(config: &AttentionConfig, source: &AnySource) -> Result<(Self, &'static Layout)> {
        let base = if has_places(config, source)? { source.base() } else { source.clone() };
        Self::read_from(config, &base, source)
    }

    /// Reads the projections from one source and everything else from the other.
    pub(crate) fn read_from(
        config: &AttentionConfig,
        projections: &dyn WeightSource,
        source: &dyn WeightSource,
    ) -> Result<(Self, &'static Layout)> {
        config.validate()?;
        let layout = detect(source)?;
        let is_shared = matches!(config.key_value_source, KeyValueSource::Shared { .. });
        let latent_is_set = config.latent.is_some();
        let reader = Reader { source: projections, layout, sizes: Sizes::new(config), is_shared, latent_is_set };
        let (qkv, gate) = match (layout.gate, layout.qkv) {
            (GateNames::BeforeQuery, QkvNames::Fused(names, _)) => reader.gate_and_qkv(config, names)?,
            (_, QkvNames::Latent(names)) => {
                (QkvWeights::Latent(Box::new(reader.latent(names, config)?)), reader.gate(config)?)
            }
            (_, names) => (reader.qkv(names)?, reader.gate(config)?),
        };
        let heads = config.output_groups.map(|groups| Rows { heads: groups.count, dim: groups.rank });
        let (heads, output) = (heads.unwrap_or(reader.sizes.heads_of_output), config.resolved_output_size());
        let o = match &qkv {
            QkvWeights::Split(parts) if layout.o.is_absent() => reader.identity(output, &parts[1].weight)?,
            _ => reader.linear(layout.o, heads, output, false)?,
        };
        check_rotary(source, config)?;
        if layout.holds_indexer(source) && config.max_keys.is_none() {
            let allowed = format!("set: the checkpoint holds `{}`", source.full_name(INDEXER));
            return Err(Error::config("max_keys", "none", allowed));
        }
        let weights = Self {
            qkv,
            o,
            gate,
            parameters: read_parameters(source, config, layout)?,
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
    /// Whether keys and values are those of another layer.
    is_shared: bool,
    latent_is_set: bool,
}

impl Reader<'_> {
    fn qkv(&self, names: QkvNames) -> Result<QkvWeights> {
        let Sizes { qkv, inputs, .. } = &self.sizes;
        ensure!(!self.latent_is_set, self.no_latents("none"));
        let rows = self.sizes.rows();
        let starts = [0, rows[0], rows[0] + rows[1]];
        let all = Rows { heads: rows.iter().sum(), dim: 1 };
        Ok(match names {
            QkvNames::Latent(_) => return Err(self.no_latents("set")),
            // Gemma 3n's files hold keys and values for all layers, which its model does not read.
            QkvNames::Split([q, ..]) if self.is_shared => QkvWeights::Query(self.linear(q, qkv[0], inputs[0], true)?),
            QkvNames::Split(names) => {
                let read = |i: usize| self.linear(names[i], qkv[i], inputs[i], true);
                if self.layout.gate == GateNames::InQuery {
                    let Rows { heads, dim } = qkv[0];
                    let both = self.linear(names[0], Rows { heads, dim: 2 * dim }, inputs[0], true)?;
                    return Ok(QkvWeights::GatedQuery { parts: Box::new([both, read(1)?, read(2)?]), heads });
                }
                let k = read(1)?;
                let read = |i: usize| {
                    if names[i].is_absent() { self.identity(qkv[i].len(), &k.weight) } else { read(i) }
                };
                QkvWeights::Split(Box::new([read(0)?, k.clone(), read(2)?]))
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
            QkvNames::KeysAsValues([q, k]) => QkvWeights::KeysAsValues(Box::new([
                self.linear(q, qkv[0], inputs[0], true)?,
                self.linear(k, qkv[1], inputs[1], true)?,
            ])),
            QkvNames::Apart(names) => self.apart(names)?,
            QkvNames::Query(q) => QkvWeights::Query(self.linear(q, qkv[0], inputs[0], true)?),
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

    /// The projections of contents and of position vectors as those of both, one beside the other.
    fn apart(&self, ApartNames { q, k, v, sines }: &ApartNames) -> Result<QkvWeights> {
        let Sizes { qkv: [rows, rows_k, rows_v], inputs: [q_size, k_size, v_size], .. } = self.sizes;
        let is_placed = self.source.contains(q[1].weight);
        let queries = [Some(q[0]), Some(q[1]).filter(|_| is_placed), *sines].into_iter().flatten();
        let parts = |names: Vec<LinearNames>, Rows { heads, dim }: Rows, size: usize, last_in_sum: bool| {
            let (last, rows) = (names.len() - 1, Rows { heads, dim: dim / (1 + usize::from(sines.is_some())) });
            let linears = names.iter().map(|linear| self.linear(*linear, rows, size / names.len(), true));
            let linears = linears.collect::<Result<Vec<_>>>()?;
            if linears.iter().any(LinearWeights::tracks_gradient) {
                return Err(Error::value("the weights of contents and positions", "variables", "fixed tensors"));
            }
            let sums = side_by_side(&linears, |i| i < last || last_in_sum)?;
            // Behind the sum in each head.
            if sines.is_some() { sums.with_gate(&side_by_side(&linears, |i| i == last)?, heads) } else { Ok(sums) }
        };
        let q = parts(queries.collect(), rows, q_size, sines.is_none())?;
        let k = parts(k.to_vec(), rows_k, k_size, is_placed)?;
        Ok(QkvWeights::Split(Box::new([q, k, self.linear(*v, rows_v, v_size, true)?])))
    }

    /// The error for a configuration of latent attention beside other projections, or the other way round.
    fn no_latents(&self, allowed: &str) -> Error {
        let found = if allowed == "set" { "none" } else { "set" };
        let allowed = format!("{allowed}: the checkpoint's layout is `{}`", self.layout.name);
        Error::config("latent", found, allowed)
    }

    /// The projections of latent attention.
    fn latent(&self, names: &LatentNames, config: &AttentionConfig) -> Result<LatentWeights> {
        let latent = config.latent.as_ref().ok_or_else(|| self.no_latents("set"))?;
        let LatentSizes { inputs: [q_in, kv_in], heads, nope, rope, value, rank, q_rank, multi_query, .. } =
            latent.sizes(config);
        let rows = |dim: usize| Rows { heads: 1, dim };
        let norm = |name: &str, size: usize| Ok::<_, Error>(NormWeights::new(self.source.get(name, &[size])?, None));
        let q_a = match (names.q_a, q_rank) {
            (Some((linear, name)), Some(rank)) => {
                Some((self.linear(linear, rows(rank), q_in, true)?, norm(name, rank)?))
            }
            (None, None) => None,
            (stored, _) => {
                let [found, allowed] = if stored.is_some() { ["none", "set"] } else { ["set", "none"] };
                let allowed = format!("{allowed}: the checkpoint's layout is `{}`", self.layout.name);
                return Err(Error::config("q_lora_rank", found, allowed));
            }
        };
        let of_indexer = format!("{INDEXER}.wk.weight");
        if latent.index_topk.is_none() && self.source.contains(&of_indexer) {
            let allowed = format!("set: the checkpoint holds `{}`", self.source.full_name(&of_indexer));
            return Err(Error::config("index_topk", "none", allowed));
        }
        let q = self.linear(names.q, Rows { heads, dim: nope + rope }, q_rank.unwrap_or(q_in), true)?;
        let kv_a = self.linear(names.kv_a, rows(rank + rope), kv_in, true)?;
        if names.kv_b.is_absent() != multi_query {
            let allowed = format!("{}: the checkpoint's layout is `{}`", !multi_query, self.layout.name);
            return Err(Error::config("multi_query", multi_query, allowed));
        }
        let kv_b = || self.linear(names.kv_b, Rows { heads, dim: nope + value }, rank, true);
        let kv_b = (!multi_query).then(kv_b).transpose()?;
        let normalized = if multi_query { rank + rope } else { rank };
        Ok(LatentWeights::new(q_a, q, kv_a, norm(names.kv_a_norm, normalized)?, kv_b))
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
            Orientation::Pointwise(ones) => {
                let stored = [&[out, input][..], &vec![1; ones]].concat();
                let weight = source.get_reshaped(names.weight, &stored, &[out, input])?;
                return Ok(LinearWeights { weight, bias: bias(&[out])? });
            }
            Orientation::Grouped => {
                // A source that does not tell shapes has one group.
                let divides =
                    |size: &usize| *size > 0 && input.is_multiple_of(*size) && out.is_multiple_of(input / size);
                let of_group = source.shape(names.weight)?.and_then(|shape| shape.get(1).copied()).filter(divides);
                let of_group = of_group.unwrap_or(input);
                let weight = source.get_reshaped(names.weight, &[out, of_group, 1], &[out, of_group])?;
                return Ok(LinearWeights { weight: block_diagonal(&weight, input)?, bias: bias(&[out])? });
            }
            Orientation::InOut => {
                let weight = source.get(names.weight, &[input, out])?.t()?;
                return Ok(LinearWeights { weight, bias: bias(&[out])? });
            }
            Orientation::OutHeads => {
                let weight = source.get_reshaped(names.weight, &[out, heads.heads, heads.dim], &[out, input])?;
                return Ok(LinearWeights { weight, bias: bias(&[out])? });
            }
            Orientation::Kernel | Orientation::Absent => {}
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

    /// The weight of a projection that the layout does not have, of the dtype of `like`.
    fn identity(&self, out: usize, like: &Tensor) -> Result<LinearWeights> {
        let (dtype, device) = (like.dtype(), like.device());
        check_tensor_memory("the number of inputs of a projection", out, &[out, out], dtype, device)?;
        Ok(LinearWeights { weight: Tensor::eye(out, dtype, device)?, bias: None })
    }

    /// Reads a fused projection with the gate before the queries, keys and values.
    fn gate_and_qkv(
        &self,
        config: &AttentionConfig,
        names: LinearNames,
    ) -> Result<(QkvWeights, Option<LinearWeights>)> {
        if config.output_gate.is_none_or(|gate| gate.over != GateOver::Element) {
            let allowed = format!("over elements: `{}` holds the gate", self.source.full_name(names.weight));
            return Err(Error::config("output_gate", format!("{:?}", config.output_gate), allowed));
        }
        let (rows, gate) = (self.sizes.rows().iter().sum::<usize>(), self.sizes.heads_of_output.len());
        let all = self.linear(names, Rows { heads: gate + rows, dim: 1 }, self.one_input()?, true)?;
        Ok((QkvWeights::Packed(all.narrow(gate, rows)?), Some(all.narrow(0, gate)?)))
    }

    /// Reads the projection of the gate if there is one, whose formula comes from the configuration.
    fn gate(&self, config: &AttentionConfig) -> Result<Option<LinearWeights>> {
        let in_query = self.layout.gate == GateNames::InQuery;
        let names = self.layout.gate_projection();
        let held = names.filter(|names| self.source.contains(names.weight));
        let Rows { heads, dim } = self.sizes.heads_of_output;
        match (config.output_gate, held) {
            (None, None) if !in_query => Ok(None),
            (None, _) => {
                let name = held.map_or(self.layout.required()[0], |names| names.weight);
                let allowed = format!("set: `{}` holds a gate", self.source.full_name(name));
                Err(Error::config("output_gate", "none", allowed))
            }
            (Some(gate), None) if in_query && gate.over != GateOver::Element => {
                Err(Error::config("output_gate.over", "a head", "an element: the query projection holds the gate"))
            }
            (Some(_), None) if in_query => Ok(None),
            (Some(_), None) => {
                let name = self.source.full_name(names.map_or("gate_proj.weight", |names| names.weight));
                Err(Error::MissingTensor { name, why: "the configuration sets output_gate".to_string() })
            }
            (Some(gate), Some(names)) => {
                let width = self.sizes.inputs[0];
                let rows = gate.rows(heads, dim);
                if !names.bias_apart() {
                    return self.linear(names, Rows { heads: rows, dim: 1 }, width, true).map(Some);
                }
                let bias = self.source.get(names.bias, &[heads])?;
                if bias.track_op() {
                    let expected = "a fixed tensor: one bias for all gates of a head cannot be trained yet".to_string();
                    let (name, found) = (self.source.full_name(names.bias), "is a variable".to_string());
                    return Err(Error::Tensor { name, found, expected });
                }
                let bias = bias.reshape((heads, 1))?.broadcast_as((heads, rows / heads.max(1)))?.reshape(rows)?;
                Ok(Some(LinearWeights { weight: self.source.get(names.weight, &[rows, width])?, bias: Some(bias) }))
            }
        }
    }
}

/// The matrix `(out, width)` of groups whose rows are `weight` `(out, width / groups)`. Differentiable.
pub(super) fn block_diagonal(weight: &Tensor, width: usize) -> Result<Tensor> {
    let (out, columns) = weight.dims2()?;
    let groups = width.checked_div(columns).unwrap_or(0).max(1);
    let block = |group: usize| {
        let rows = weight.narrow(0, group * (out / groups), out / groups)?;
        rows.pad_with_zeros(1, group * columns, width.saturating_sub((group + 1) * columns))
    };
    Ok(Tensor::cat(&(0..groups).map(block).collect::<candle_core::Result<Vec<_>>>()?, 0)?)
}

/// Whether low-rank changes have places beside the projections: not beside those of latents, nor where several are one.
pub(super) fn has_places(config: &AttentionConfig, source: &dyn WeightSource) -> Result<bool> {
    Ok(config.latent.is_none() && !matches!(detect(source)?.qkv, QkvNames::Apart(_)))
}

/// The sum of the projections of inputs side by side, of those that `counts` has.
fn side_by_side(parts: &[LinearWeights], counts: impl Fn(usize) -> bool) -> Result<LinearWeights> {
    let factors = (0..parts.len()).map(|i| f64::from(u8::from(counts(i))));
    let weights = parts.iter().zip(factors.clone()).map(|(part, factor)| &part.weight * factor);
    let weights = weights.collect::<candle_core::Result<Vec<_>>>()?;
    let mut biases = parts.iter().zip(factors).filter_map(|(part, factor)| Some(part.bias.as_ref()? * factor));
    let bias = biases.next().map(|first| biases.try_fold(first?, |sum, bias| sum + bias?)).transpose()?;
    Ok(LinearWeights { weight: Tensor::cat(&weights, 1)?, bias })
}

/// `len` rows of a projection, as views.
fn part_of(linear: &LinearWeights, start: usize, len: usize) -> Result<LinearWeights> {
    let bias = linear.bias.as_ref().map(|bias| bias.narrow(0, start, len)).transpose()?;
    Ok(LinearWeights { weight: linear.weight.narrow(0, start, len)?, bias })
}

fn check_rotary(source: &dyn WeightSource, config: &AttentionConfig) -> Result<()> {
    if source.contains(ROTARY_FREQUENCIES) && !matches!(config.position, Position::Rotary(_)) {
        let allowed = format!("rotary: the checkpoint holds `{}`", source.full_name(ROTARY_FREQUENCIES));
        return Err(Error::config("position", format!("{:?}", config.position), allowed));
    }
    Ok(())
}

/// Reads the parameters beside the projections. Their formulas come from the configuration, which must ask for each
/// that there is.
pub(crate) fn read_parameters(
    source: &dyn WeightSource,
    config: &AttentionConfig,
    layout: &Layout,
) -> Result<Parameters> {
    let holds = |name: &str| source.contains(name);
    let mut parameters = Parameters::default();
    for row in config.parameters() {
        let missing = || {
            let name = layout.parameter_name(row.name).unwrap_or(row.name.to_string());
            Err(row.missing(source.full_name(&name)))
        };
        match (row.presence, layout.held_name(holds, row.name)) {
            (Presence::Absent, Some(name)) => {
                let allowed = format!("set: the checkpoint holds `{}`", source.full_name(&name));
                return Err(Error::config(row.field, "none", allowed));
            }
            (_, Some(name)) => parameters.insert(row.name, read_parameter(source, &row, &name)?),
            (Presence::Required, None) => return missing(),
            (Presence::Together(other), None) if layout.held_name(holds, other).is_some() => return missing(),
            _ => {}
        }
    }
    Ok(parameters)
}

fn read_parameter(source: &dyn WeightSource, row: &Parameter, name: &str) -> Result<Tensor> {
    if let (Some(per_head), true) = (&row.shape_per_head, source.contains(&name_of_head(name, 0))) {
        let weights = (0..per_head[0]).map(|head| source.get(&name_of_head(name, head), &row.shape));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        if weights.iter().any(Tensor::track_op) {
            let expected = "fixed weights: norms of a module for each head cannot be trained yet".to_string();
            let (name, found) = (source.full_name(&name_of_head(name, 0)), "is a variable".to_string());
            return Err(Error::Tensor { name, found, expected });
        }
        return Ok(Tensor::stack(&weights, 0)?);
    }
    let found = source.shape(name)?;
    let over = |found: &str, allowed: &str, elements: usize, heads: &str| {
        let allowed = format!("{allowed}: `{}` has {elements} elements, {heads}", source.full_name(name));
        let field = match row.field {
            "v_norm" => "v_norm.over",
            "context_norm" => "context_norm.over",
            _ => "qk_norm.over",
        };
        Err(Error::config(field, found, allowed))
    };
    match (found.as_deref(), &*row.shape, row.shape_per_head.as_deref()) {
        (Some([_, _]), _, Some(per_head)) => source.get(name, per_head),
        (Some(&[all]), _, Some(&[heads, d])) if all == heads * d && all != d => {
            over("one head", "all heads", all, &format!("{heads} heads of {d}"))
        }
        (Some(&[one]), &[all], None) if row.field.ends_with("_norm") && one < all && all.is_multiple_of(one.max(1)) => {
            over("all heads", "one head", one, "a head's")
        }
        _ => source.get(name, &row.shape),
    }
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
) -> Result<Parameters> {
    let mut weights = Parameters::default();
    let parameters = config.position.scheme().parameters(&config.sizes());
    for parameter in &parameters {
        let name = layout.position_name(parameter.name);
        let held = name.filter(|name| parameter.presence == Presence::Required || source.contains(name));
        match held {
            Some(name) if layout.is_position_kernel(parameter.name) => {
                let (out, input) = (parameter.shape[0], parameter.shape[1]);
                let stored = [input, config.num_attention_heads, config.resolved_head_dim()];
                weights.insert(parameter.name, source.get_reshaped(&name, &stored, &[input, out])?.t()?);
            }
            Some(name) => weights.insert(parameter.name, source.get(&name, &parameter.shape)?),
            None if parameter.presence == Presence::Required => {
                let allowed = format!("another: layout `{}` has no `{}`", layout.name, parameter.name);
                return Err(Error::config("position", &config.position, allowed));
            }
            None => {}
        }
    }
    // A weight that the configured scheme has no use for means that the configuration is wrong.
    let used = |of: &PositionName| {
        let alone = of.role == PositionRole::Relative;
        let mut names = layout.position.iter().filter(|name| if alone { *name == of } else { name.role == of.role });
        names.any(|name| parameters.iter().any(|parameter| parameter.name.starts_with(name.scheme)))
    };
    // The name of Transformer-XL's second vector may be that of a value that every query sees.
    let telling = |name: &&PositionName| name.scheme != DISTANCE_EMBEDDINGS && !BIAS_KV.contains(&name.stored);
    for name in layout.position.iter().filter(telling) {
        let (what, tensor) = match name.role {
            PositionRole::BiasTable => ("a table of biases", name.stored.to_string()),
            PositionRole::Disentangled => ("disentangled attention", join(name.stored, "weight")),
            PositionRole::Relative | PositionRole::RelativeKernel => ("relative positions", name.stored.to_string()),
        };
        // The call gives biases in place of the table (UDOP).
        let is_given =
            name.role == PositionRole::BiasTable && config.requires.contains(&CallInput::ScoreBias { scaled: false });
        if !used(name) && !is_given && source.contains(&tensor) {
            let allowed = format!("one with {what}, because the checkpoint holds `{}`", source.full_name(&tensor));
            return Err(Error::config("position", &config.position, allowed));
        }
    }
    Ok(weights)
}
