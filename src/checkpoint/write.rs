//! Writes attention layers in any layout that can hold them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{Device, Tensor};

use crate::checkpoint::source::join;
use crate::config::{AttentionConfig, ProjectionBias};
use crate::error::{Error, Result};
use crate::families::layout::{BIAS_KV, Layout, LinearNames, Orientation, QkvNames, SCORE, SINKS};
use crate::families::layouts::LAYOUTS;
use crate::io::write_tensors;
use crate::weights::{AttentionWeights, FusedOrder, LinearWeights};

impl AttentionWeights {
    /// The layer's tensors under the names and in the order of `layout`, without a prefix. Reading them again gives the
    /// same weights, bit for bit.
    ///
    /// # Errors
    /// If the layout cannot hold the layer: fewer key-value heads than query heads, or biases, norms, tables or input
    /// sizes that its families do not have.
    pub fn to_layout(&self, config: &AttentionConfig, layout: &Layout) -> Result<BTreeMap<String, Tensor>> {
        let writer = Writer { config, layout };
        let [q, k, v] = self.qkv.split(writer.rows(), config.resolved_num_key_value_heads())?;
        writer.check(self, [&q, &k, &v])?;
        let mut tensors = BTreeMap::new();
        let (h, h_kv) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        let (d, d_v) = (config.resolved_head_dim(), config.resolved_value_head_dim());
        match layout.qkv {
            QkvNames::Split(names) => {
                let parts = [(&q, [h, d]), (&k, [h_kv, d]), (&v, [h_kv, d_v])];
                for (names, (dense, heads)) in names.into_iter().zip(parts) {
                    writer.put(&mut tensors, names, dense, Some(heads))?;
                }
            }
            QkvNames::Fused(names, order) => {
                writer.put(&mut tensors, names, &LinearWeights::fuse([&q, &k, &v], order, h_kv)?, None)?;
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
        self.put_rest(layout, &mut tensors)?;
        Ok(tensors)
    }

    /// Adds the tensors other than projections.
    fn put_rest(&self, layout: &Layout, tensors: &mut BTreeMap<String, Tensor>) -> Result<()> {
        let mut put = |name: &str, tensor: Tensor| _ = tensors.insert(name.to_string(), tensor);
        if let Some(bias_kv) = &self.bias_kv {
            for (name, bias) in BIAS_KV.into_iter().zip(bias_kv) {
                put(name, bias.reshape((1, 1, bias.elem_count()))?);
            }
        }
        if let Some(score) = &self.score {
            put(SCORE, score.clone());
        }
        if let Some(sinks) = &self.sinks {
            put(SINKS, sinks.clone());
        }
        for (name, tensor) in self.position.iter() {
            if let Some(name) = layout.position_name(name) {
                put(&name, tensor.clone());
            }
        }
        if let (Some(norms), Some(names)) = (&self.qk_norm, layout.qk_norms) {
            for (name, norm) in names.into_iter().zip(norms) {
                put(&format!("{name}.weight"), norm.weight.clone());
                if let Some(bias) = &norm.bias {
                    put(&format!("{name}.bias"), bias.clone());
                }
            }
        }
        Ok(())
    }
}

/// Writes layers `(prefix, weights, configuration)` to one safetensors file in `layout`, atomically. `metadata` goes
/// into the header; to keep that of the source, pass [`Checkpoint::metadata`](crate::checkpoint::Checkpoint::metadata).
///
/// # Errors
/// The errors of [`AttentionWeights::to_layout`]; a file that cannot be written.
pub fn write_layers(
    path: impl AsRef<Path>,
    layers: &[(&str, &AttentionWeights, &AttentionConfig)],
    layout: &Layout,
    metadata: HashMap<String, String>,
) -> Result<()> {
    let path = path.as_ref();
    let mut tensors = BTreeMap::new();
    for (prefix, weights, config) in layers {
        for (name, tensor) in weights.to_layout(config, layout)? {
            tensors.insert(join(prefix, &name), tensor.to_device(&Device::Cpu)?.contiguous()?);
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

    fn rows(&self) -> [usize; 3] {
        let (h, h_kv) = (self.config.num_attention_heads, self.config.resolved_num_key_value_heads());
        [
            h * self.config.resolved_head_dim(),
            h_kv * self.config.resolved_head_dim(),
            h_kv * self.config.resolved_value_head_dim(),
        ]
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
        if weights.qk_norm.is_some() && layout.qk_norms.is_none() {
            return Err(self.cannot("norms of queries and keys", "one whose families have them"));
        }
        if weights.sinks.is_some() && !layout.sinks {
            return Err(self.cannot("sinks", "candle-attention, which is GPT-OSS's"));
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
        let (_, input) = dense.weight.dims2()?;
        let apart = heads.filter(|_| self.layout.per_head_kernels);
        let weight = match (names.orientation, apart) {
            (Orientation::OutIn, _) => dense.weight.contiguous()?,
            (Orientation::Kernel, Some([heads, d])) => dense.weight.t()?.contiguous()?.reshape((input, heads, d))?,
            (Orientation::InOut | Orientation::Kernel, _) => dense.weight.t()?.contiguous()?,
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

    fn put_output(&self, to: &mut BTreeMap<String, Tensor>, o: &LinearWeights) -> Result<()> {
        let names = self.layout.o;
        self.put(to, names, o, None)?;
        if self.layout.per_head_kernels {
            let (heads, d_v) = (self.config.num_attention_heads, self.config.resolved_value_head_dim());
            let kernel = o.weight.t()?.contiguous()?.reshape((heads, d_v, o.weight.dim(0)?))?;
            to.insert(names.weight.to_string(), kernel);
        }
        Ok(())
    }
}
