//! Writes attention layers in any layout that can hold them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{Device, Tensor};

use crate::attention::mechanisms::BIAS_KV;
use crate::checkpoint::read::block_diagonal;
use crate::checkpoint::source::join;
use crate::config::{AttentionConfig, ProjectionBias};
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layout::{GateNames, LatentNames, Layout, LinearNames, Orientation, QkvNames};
use crate::families::layouts::LAYOUTS;
use crate::io::write_tensors;
use crate::tensor::same_elements;
use crate::weights::{AttentionWeights, FusedOrder, LatentWeights, LinearWeights, NormWeights, QkvWeights};

impl AttentionWeights {
    /// The layer's tensors under the names and in the order of `layout`, without a prefix. Reading them again gives the
    /// same weights, bit for bit.
    ///
    /// # Errors
    /// If the layout cannot hold the layer: fewer key-value heads than query heads, or biases, norms, tables or input
    /// sizes that its families do not have.
    pub fn to_layout(&self, config: &AttentionConfig, layout: &Layout) -> Result<BTreeMap<String, Tensor>> {
        let writer = Writer { config, layout };
        if let (QkvWeights::Latent(latent), QkvNames::Latent(names)) = (&self.qkv, layout.qkv) {
            return writer.latent(self, latent, names);
        }
        if matches!(self.qkv, QkvWeights::Latent(_)) {
            return Err(writer.cannot("latent attention", "deepseek or deepseek-lite, whose families have it"));
        }
        let [mut q, k, v] = self.qkv.split(writer.rows(), config.resolved_num_key_value_heads())?;
        writer.check(self, [&q, &k, &v])?;
        let mut tensors = BTreeMap::new();
        let (h, h_kv) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        let (d, d_v) = (config.resolved_head_dim(), config.resolved_value_head_dim());
        let gate = writer.gate(self, &q)?;
        if let Some(gate) = &gate {
            match layout.gate {
                GateNames::Optional(names) | GateNames::Required(names) => {
                    writer.put(&mut tensors, names, gate, None)?;
                }
                GateNames::InQuery => q = q.with_gate(gate, h)?,
                GateNames::BeforeQuery | GateNames::None => {}
            }
        }
        match layout.qkv {
            QkvNames::Latent(_) => {
                return Err(writer.cannot("separate keys and values", "one whose families have them"));
            }
            QkvNames::Apart(_) => {
                let why = "one that holds them as one projection, such as candle-attention";
                return Err(writer.cannot("projections of contents and positions", why));
            }
            QkvNames::Split(names) => {
                let query_rows = q.weight.dim(0)?.checked_div(h).unwrap_or(d);
                let parts = [(&q, [h, query_rows]), (&k, [h_kv, d]), (&v, [h_kv, d_v])];
                let stored = match self.qkv {
                    QkvWeights::KeysAsValues(_) => 2,
                    QkvWeights::Query(_) => 1,
                    _ => 3,
                };
                for (names, (dense, heads)) in names.into_iter().zip(parts).take(stored) {
                    writer.put(&mut tensors, names, dense, Some(heads))?;
                }
            }
            QkvNames::KeysAsValues(names) => {
                for (names, (dense, heads)) in names.into_iter().zip([(&q, [h, d]), (&k, [h_kv, d])]) {
                    writer.put(&mut tensors, names, dense, Some(heads))?;
                }
            }
            QkvNames::Query(name) => writer.put(&mut tensors, name, &q, Some([h, d]))?,
            QkvNames::Fused(names, order) => {
                let fused = LinearWeights::fuse([&q, &k, &v], order, h_kv)?;
                let fused = match &gate {
                    Some(gate) => LinearWeights::concat(&[gate, &fused])?,
                    None => fused,
                };
                writer.put(&mut tensors, names, &fused, None)?;
            }
            QkvNames::FusedSplitBias(weight, biases, order) => {
                tensors.insert(weight.to_string(), LinearWeights::fuse([&q, &k, &v], order, h_kv)?.weight);
                for (name, dense) in biases.into_iter().zip([&q, &v]) {
                    let Some(bias) = &dense.bias else { continue };
                    let bias = if layout.wide_biases { bias.reshape((1, 1, ()))? } else { bias.clone() };
                    tensors.insert(name.to_string(), bias);
                }
            }
            QkvNames::SplitFusedBias(names, bias) => {
                for (name, dense) in names.into_iter().zip([&q, &k, &v]) {
                    tensors.insert(name.to_string(), dense.weight.contiguous()?);
                }
                if let [Some(q), Some(k), Some(v)] = [&q.bias, &k.bias, &v.bias] {
                    tensors.insert(bias.to_string(), Tensor::cat(&[q, k, v], 0)?);
                }
            }
            QkvNames::Pair(of_q, of_kv) => {
                writer.put(&mut tensors, of_q, &q, Some([h, d]))?;
                writer.put(&mut tensors, of_kv, &LinearWeights::concat(&[&k, &v])?, None)?;
            }
        }
        writer.put_output(&mut tensors, &self.o)?;
        self.put_rest(&writer, &mut tensors)?;
        match layout.requires.iter().find(|name| !tensors.contains_key(**name)) {
            Some(name) => Err(writer.cannot(&format!("a layer without `{name}`"), "one whose families have none")),
            None => Ok(tensors),
        }
    }

    /// Adds the tensors other than projections.
    fn put_rest(&self, writer: &Writer, tensors: &mut BTreeMap<String, Tensor>) -> Result<()> {
        let (layout, config) = (writer.layout, writer.config);
        let parameters = self.parameters.iter().map(|(name, tensor)| (layout.parameter_name(name), tensor));
        tensors.extend(parameters.filter_map(|(name, tensor)| Some((name?, tensor.clone()))));
        for (weight, tensor) in self.position.iter() {
            let Some(name) = layout.position_name(weight) else { continue };
            let tensor = if layout.is_position_kernel(weight) {
                let heads = (tensor.dim(1)?, config.num_attention_heads, config.resolved_head_dim());
                tensor.t()?.contiguous()?.reshape(heads)?
            } else {
                tensor.clone()
            };
            tensors.insert(name, tensor);
        }
        Ok(())
    }
}

/// Writes layers `(prefix, weights, configuration)` to one safetensors file in `layout`, atomically. `metadata` goes
/// into the header; to keep that of the source, pass [`Checkpoint::metadata`](crate::checkpoint::Checkpoint::metadata).
///
/// # Errors
/// The errors of [`AttentionWeights::to_layout`]; two layers with a tensor of the same name; a file that cannot be
/// written.
pub fn write_layers(
    path: impl AsRef<Path>,
    layers: &[(&str, &AttentionWeights, &AttentionConfig)],
    layout: &Layout,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let path = path.as_ref();
    let mut tensors = Vec::new();
    for (prefix, weights, config) in layers {
        for (name, tensor) in weights.to_layout(config, layout)? {
            tensors.push((join(prefix, &name), tensor.to_device(&Device::Cpu)?.contiguous()?));
        }
    }
    write_tensors(path, tensors, metadata)
}

struct Writer<'a> {
    config: &'a AttentionConfig,
    layout: &'a Layout,
}

impl Writer<'_> {
    fn cannot(&self, what: &str, why: &str) -> Error {
        let found = format!("layout `{}`", self.layout.name);
        Error::value(format!("the layout for {what}"), found, why)
    }

    /// The tensors of latent attention.
    fn latent(
        &self,
        weights: &AttentionWeights,
        latent: &LatentWeights,
        names: &LatentNames,
    ) -> Result<BTreeMap<String, Tensor>> {
        let mut tensors = BTreeMap::new();
        let norm =
            |to: &mut BTreeMap<_, _>, name: &str, norm: &NormWeights| to.insert(name.to_string(), norm.weight.clone());
        match (&latent.q_a, names.q_a) {
            (Some((q_a, weights)), Some((names, of_norm))) => {
                self.put(&mut tensors, names, q_a, None)?;
                norm(&mut tensors, of_norm, weights);
            }
            (None, None) => {}
            (Some(_), None) => {
                return Err(self.cannot("two projections of queries", "deepseek, whose families have them"));
            }
            (None, Some(_)) => {
                return Err(self.cannot("one projection of queries", "deepseek-lite, whose families have it"));
            }
        }
        self.put(&mut tensors, names.q, &latent.q, None)?;
        self.put(&mut tensors, names.kv_a, &latent.kv_a, None)?;
        norm(&mut tensors, names.kv_a_norm, &latent.kv_a_norm);
        match &latent.kv_b {
            Some(kv_b) if !names.kv_b.is_absent() => self.put(&mut tensors, names.kv_b, kv_b, None)?,
            None if names.kv_b.is_absent() => {}
            Some(_) => return Err(self.cannot("`kv_b_proj`", "deepseek, whose families have it")),
            None => return Err(self.cannot("latents without `kv_b_proj`", "deepseek-v4, whose family has none")),
        }
        if let (Some(gate), Some(names)) = (self.gate(weights, &latent.q)?, self.layout.gate_projection()) {
            self.put(&mut tensors, names, &gate, None)?;
        }
        self.put_output(&mut tensors, &weights.o)?;
        self.check_rest(weights)?;
        weights.put_rest(self, &mut tensors)?;
        Ok(tensors)
    }

    fn rows(&self) -> [usize; 3] {
        let (h, h_kv) = (self.config.num_attention_heads, self.config.resolved_num_key_value_heads());
        [
            h * self.config.resolved_head_dim(),
            h_kv * self.config.resolved_head_dim(),
            h_kv * self.config.resolved_value_head_dim(),
        ]
    }

    /// The gate of a layer with the query projection `q`, which the layout can hold.
    fn gate(&self, weights: &AttentionWeights, q: &LinearWeights) -> Result<Option<LinearWeights>> {
        let stored = weights.qkv.gate(self.rows()[0])?;
        let gate = weights.gate.clone().or(stored);
        match (self.layout.gate, &gate) {
            (GateNames::None, Some(_)) => Err(self.cannot("a gate of the output", "one whose families have it")),
            (GateNames::Required(_) | GateNames::InQuery | GateNames::BeforeQuery, None) => {
                Err(self.cannot("a layer without a gate", "one whose families have none"))
            }
            (GateNames::InQuery | GateNames::BeforeQuery, Some(gate))
                if gate.weight.dims() != q.weight.dims() || gate.bias.is_some() != q.bias.is_some() =>
            {
                let why = "one that keeps it apart: here it has the shape of the query projection, and a bias if that has one";
                Err(self.cannot("a gate of the output", why))
            }
            (GateNames::Required(names), Some(LinearWeights { weight, bias })) if names.bias_apart() => {
                let unfit = || self.cannot("the bias of a gate", "one number per head");
                let by_head = bias.as_ref().ok_or_else(unfit)?.reshape((self.config.num_attention_heads, ()))?;
                let bias = by_head.narrow(1, 0, 1)?;
                if !same_elements(&by_head.contiguous()?, &bias.broadcast_as(by_head.shape())?.contiguous()?)? {
                    return Err(unfit());
                }
                Ok(Some(LinearWeights { weight: weight.clone(), bias: Some(bias.flatten_all()?) }))
            }
            _ => Ok(gate),
        }
    }

    fn check(&self, weights: &AttentionWeights, [q, k, v]: [&LinearWeights; 3]) -> Result<()> {
        let (layout, config) = (self.layout, self.config);
        let (h, h_kv) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        if h != h_kv && !layout.grouped {
            let what = format!("{h_kv} key-value heads of {h} heads");
            let grouped: Vec<&str> = LAYOUTS.iter().filter(|layout| layout.grouped).map(|layout| layout.name).collect();
            return Err(self.cannot(&what, &format!("one whose families have them, such as {}", grouped.join(", "))));
        }
        let biases @ [bq, bk, bv, bo] = [q, k, v, &weights.o].map(|linear| linear.bias.is_some());
        if !layout.holds_biases(ProjectionBias { q: bq, k: bk, v: bv, o: bo }) {
            let parts = ["q", "k", "v", "o"].iter().zip(biases).filter(|(_, present)| *present).map(|(name, _)| *name);
            let what = format!("biases of [{}]", parts.collect::<Vec<_>>().join(", "));
            return Err(self.cannot(&what, "one whose families have just these"));
        }
        let sizes = [config.resolved_query_size(), config.resolved_key_size(), config.resolved_value_size()];
        let one_input = matches!(layout.qkv, QkvNames::Fused(..) | QkvNames::FusedSplitBias(..));
        let pair = matches!(layout.qkv, QkvNames::Pair(..));
        if one_input && sizes != [sizes[0]; 3] || pair && sizes[1] != sizes[2] {
            return Err(self.cannot(&format!("inputs of {sizes:?} numbers"), "one with a weight for each"));
        }
        let even = config.resolved_head_dim() == config.resolved_value_head_dim();
        match layout.qkv {
            QkvNames::Fused(_, FusedOrder::Grouped) if !even => {
                return Err(self.cannot("value heads of another size", "one that keeps values apart"));
            }
            QkvNames::Fused(_, FusedOrder::FourBlocks) if !even || !h.is_multiple_of(4) => {
                return Err(self.cannot(&format!("{h} heads"), "one that needs no four equal blocks"));
            }
            _ => {}
        }
        self.check_rest(weights)
    }

    /// Checks what is beside the projections.
    fn check_rest(&self, weights: &AttentionWeights) -> Result<()> {
        let (layout, config) = (self.layout, self.config);
        let own = layout.name == LAYOUTS[0].name;
        if let Some((name, _)) = weights.parameters.iter().find(|(name, _)| layout.parameter_name(name).is_none()) {
            return Err(self.cannot(&format!("`{name}`"), "one whose families have it, such as candle-attention"));
        }
        let (holds, what) = match (&weights.qkv, layout.qkv) {
            (QkvWeights::KeysAsValues(_), qkv) => (matches!(qkv, QkvNames::KeysAsValues(_)) || own, "keys as values"),
            (QkvWeights::Query(_), qkv) => (matches!(qkv, QkvNames::Query(_)) || own, "queries alone"),
            (_, qkv) => (!matches!(qkv, QkvNames::KeysAsValues(_) | QkvNames::Query(_)), "queries, keys and values"),
        };
        ensure!(holds, self.cannot(what, "one whose families have just these, or candle-attention"));
        let of_keys = |name: &str| layout.position_name(name).is_some_and(|name| BIAS_KV.contains(&&*name));
        if weights.parameters.get(BIAS_KV[0]).is_some() && weights.position.iter().any(|(name, _)| of_keys(name)) {
            let why = "one that names a key and value that every query sees otherwise than its positions";
            return Err(self.cannot(&format!("{} positions", config.position), why));
        }
        if weights.position.iter().any(|(name, _)| layout.position_name(name).is_none()) {
            let why = "one whose families have them, such as candle-attention";
            return Err(self.cannot(&format!("{} positions", config.position), why));
        }
        Ok(())
    }

    /// `heads`: into how many heads the projection goes and their size, if it is one of queries, keys or values alone.
    fn put(
        &self,
        to: &mut BTreeMap<String, Tensor>,
        names: LinearNames,
        dense: &LinearWeights,
        heads: Option<[usize; 2]>,
    ) -> Result<()> {
        let (out, input) = dense.weight.dims2()?;
        if names.is_absent() {
            let eye = Tensor::eye(out, dense.weight.dtype(), dense.weight.device())?;
            let is_eye = out == input && dense.bias.is_none() && same_elements(&eye, &dense.weight)?;
            let what = "a projection that the layout leaves out";
            return if is_eye { Ok(()) } else { Err(self.cannot(what, "one whose families have it")) };
        }
        let apart = heads.filter(|_| self.layout.per_head_kernels);
        let weight = match (names.orientation, apart) {
            (Orientation::OutIn, _) => dense.weight.contiguous()?,
            (Orientation::OutHeads, _) => {
                let (heads, d_v) = (self.config.num_attention_heads, self.config.resolved_value_head_dim());
                dense.weight.contiguous()?.reshape((out, heads, d_v))?
            }
            (Orientation::Pointwise(ones), _) => {
                dense.weight.contiguous()?.reshape([dense.weight.dims(), &vec![1; ones]].concat())?
            }
            (Orientation::Grouped, _) => self.groups(&dense.weight)?.unsqueeze(2)?,
            (Orientation::Kernel, Some([heads, d])) => dense.weight.t()?.contiguous()?.reshape((input, heads, d))?,
            (Orientation::InOut | Orientation::Kernel | Orientation::Absent, _) => dense.weight.t()?.contiguous()?,
        };
        to.insert(names.weight.to_string(), weight);
        if let Some(bias) = &dense.bias {
            let bias = match apart {
                Some(heads) => bias.contiguous()?.reshape(heads.as_slice())?,
                None => bias.contiguous()?,
            };
            to.insert(names.bias.to_string(), bias);
        }
        Ok(())
    }

    /// The rows `(out, in / groups)` of a weight with as many inputs as outputs, in as many groups as it has.
    fn groups(&self, weight: &Tensor) -> Result<Tensor> {
        let (out, input) = weight.dims2()?;
        for size in (1..=out).filter(|size| out == input && out.is_multiple_of(*size)) {
            let block = |start: usize| weight.narrow(0, start, size)?.narrow(1, start, size);
            let rows = (0..out).step_by(size).map(block).collect::<candle_core::Result<Vec<_>>>()?;
            let rows = Tensor::cat(&rows, 0)?;
            if same_elements(&block_diagonal(&rows, input)?, &weight.contiguous()?)? {
                return Ok(rows);
            }
        }
        Err(self.cannot(&format!("a projection of {input} numbers to {out}"), "one that needs no square weights"))
    }

    fn put_output(&self, to: &mut BTreeMap<String, Tensor>, o: &LinearWeights) -> Result<()> {
        let names = self.layout.o;
        self.put(to, names, o, None)?;
        if self.layout.per_head_kernels && names.orientation == Orientation::Kernel {
            let (heads, d_v) = (self.config.num_attention_heads, self.config.resolved_value_head_dim());
            let kernel = o.weight.t()?.contiguous()?.reshape((heads, d_v, o.weight.dim(0)?))?;
            to.insert(names.weight.to_string(), kernel);
        }
        Ok(())
    }
}
