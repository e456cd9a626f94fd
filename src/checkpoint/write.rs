//! Writes attention layers in any layout that can hold them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{Device, Tensor};

use crate::attention::mechanisms::BIAS_KV;
use crate::checkpoint::forms::{Projections, Writer};
use crate::checkpoint::projection::{HeadSide, Rows};
use crate::checkpoint::source::join;
use crate::config::{AttentionConfig, KeyValueSource, ProjectionBias};
use crate::ensure;
use crate::error::Result;
use crate::families::layout::{GateNames, Layout};
use crate::families::layouts::LAYOUTS;
use crate::io::write_tensors;
use crate::tensor::same_elements;
use crate::weights::{AttentionWeights, LinearWeights, QkvWeights};

impl AttentionWeights {
    /// The layer's tensors under the names and in the order of `layout`, without a prefix. Reading them again gives the
    /// same weights, bit for bit.
    ///
    /// # Errors
    /// If the layout cannot hold the layer: fewer key-value heads than query heads, or biases, norms, tables or input
    /// sizes that its families do not have.
    pub fn to_layout(&self, config: &AttentionConfig, layout: &Layout) -> Result<BTreeMap<String, Tensor>> {
        let mut writer = Writer { config, layout, tensors: BTreeMap::new() };
        let gate = match &self.qkv {
            QkvWeights::Latent(latent) => {
                layout.qkv.write_latent(latent, &mut writer)?;
                let gate = self.gate_to_write(&writer, &latent.q)?;
                self.check_rest(&writer)?;
                gate
            }
            qkv => {
                let rows = Rows::from_config(config);
                let mut parts = qkv.split(rows.map(Rows::count), rows[1].heads)?;
                self.check_projections(&parts, &writer)?;
                self.check_rest(&writer)?;
                let gate = self.gate_to_write(&writer, &parts[0])?;
                if let (GateNames::InQuery, Some(gate)) = (layout.gate, &gate) {
                    parts[0] = parts[0].with_gate(gate, rows[0].heads)?;
                }
                let own = match qkv {
                    QkvWeights::KeysAsValues(_) => 2,
                    QkvWeights::Query(_) => 1,
                    _ => 3,
                };
                let before = gate.clone().filter(|_| layout.gate == GateNames::BeforeQuery);
                layout.qkv.write(&Projections { parts, own, gate: before }, &mut writer)?;
                gate
            }
        };
        if let (Some(gate), Some(names)) = (&gate, layout.gate_projection()) {
            writer.put(names, gate, None)?;
        }
        let [Rows { heads, .. }, _, Rows { dim, .. }] = Rows::from_config(config);
        writer.put(layout.o, &self.o, Some((Rows { heads, dim }, HeadSide::Inputs)))?;
        self.write_rest(&mut writer)?;
        match layout.requires.iter().find(|name| !writer.tensors.contains_key(**name)) {
            Some(name) => Err(layout.cannot_hold(&format!("a layer without `{name}`"), "one whose families have none")),
            None => Ok(writer.tensors),
        }
    }

    /// Adds the tensors other than projections.
    fn write_rest(&self, writer: &mut Writer) -> Result<()> {
        let Writer { layout, config, .. } = *writer;
        let parameters = self.parameters.iter().map(|(name, tensor)| (layout.parameter_name(name), tensor));
        writer.tensors.extend(parameters.filter_map(|(name, tensor)| Some((name?, tensor.clone()))));
        for (weight, tensor) in self.position.iter() {
            let Some(name) = layout.position_name(weight) else { continue };
            let tensor = if layout.is_position_kernel(weight) {
                let heads = (tensor.dim(1)?, config.num_attention_heads, config.resolved_head_dim());
                tensor.t()?.contiguous()?.reshape(heads)?
            } else {
                tensor.clone()
            };
            writer.tensors.insert(name, tensor);
        }
        Ok(())
    }

    /// The gate of a layer with the query projection `q`, which the layout can hold.
    fn gate_to_write(&self, writer: &Writer, q: &LinearWeights) -> Result<Option<LinearWeights>> {
        let layout = writer.layout;
        let stored = self.qkv.gate(Rows::from_config(writer.config)[0].count())?;
        let gate = self.gate.clone().or(stored);
        match (layout.gate, &gate) {
            (GateNames::None, Some(_)) => Err(layout.cannot_hold("a gate of the output", "one whose families have it")),
            (GateNames::Required(_) | GateNames::InQuery | GateNames::BeforeQuery, None) => {
                Err(layout.cannot_hold("a layer without a gate", "one whose families have none"))
            }
            (GateNames::InQuery | GateNames::BeforeQuery, Some(gate))
                if gate.weight.dims() != q.weight.dims() || gate.bias.is_some() != q.bias.is_some() =>
            {
                let why = "one that keeps it apart: here it has the shape of the query projection, and a bias if that has one";
                Err(layout.cannot_hold("a gate of the output", why))
            }
            (GateNames::Required(names), Some(LinearWeights { weight, bias })) if names.bias_apart() => {
                let unfit = || layout.cannot_hold("the bias of a gate", "one number per head");
                let by_head = bias.as_ref().ok_or_else(unfit)?.reshape((writer.config.num_attention_heads, ()))?;
                let bias = by_head.narrow(1, 0, 1)?;
                if !same_elements(&by_head.contiguous()?, &bias.broadcast_as(by_head.shape())?.contiguous()?)? {
                    return Err(unfit());
                }
                Ok(Some(LinearWeights { weight: weight.clone(), bias: Some(bias.flatten_all()?) }))
            }
            _ => Ok(gate),
        }
    }

    /// Checks that the layout may have as many heads and these biases.
    fn check_projections(&self, [q, k, v]: &[LinearWeights; 3], writer: &Writer) -> Result<()> {
        let (layout, config) = (writer.layout, writer.config);
        let (h, h_kv) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        if h != h_kv && !layout.grouped {
            let what = format!("{h_kv} key-value heads of {h} heads");
            let grouped: Vec<&str> = LAYOUTS.iter().filter(|layout| layout.grouped).map(|layout| layout.name).collect();
            let expected = format!("one whose families have them, such as {}", grouped.join(", "));
            return Err(layout.cannot_hold(&what, &expected));
        }
        let biases @ [bq, bk, bv, bo] = [q, k, v, &self.o].map(|linear| linear.bias.is_some());
        if !layout.holds_biases(ProjectionBias { q: bq, k: bk, v: bv, o: bo }) {
            let parts = ["q", "k", "v", "o"].iter().zip(biases).filter(|(_, present)| *present).map(|(name, _)| *name);
            let what = format!("biases of [{}]", parts.collect::<Vec<_>>().join(", "));
            return Err(layout.cannot_hold(&what, "one whose families have just these"));
        }
        Ok(())
    }

    /// Checks what is beside the projections.
    fn check_rest(&self, writer: &Writer) -> Result<()> {
        let (layout, config) = (writer.layout, writer.config);
        let own = layout.name == LAYOUTS[0].name;
        if let Some((name, _)) = self.parameters.iter().find(|(name, _)| layout.parameter_name(name).is_none()) {
            let expected = "one whose families have it, such as candle-attention";
            return Err(layout.cannot_hold(&format!("`{name}`"), expected));
        }
        let (keys_from, what) = match &self.qkv {
            QkvWeights::KeysAsValues(_) => (KeyValueSource::KeysAsValues, "keys as values"),
            QkvWeights::Query(_) => (KeyValueSource::Shared { layer: None }, "queries alone"),
            _ => (KeyValueSource::Projections, "queries, keys and values"),
        };
        let holds = keys_from == layout.qkv.key_value_source() || own;
        ensure!(holds, layout.cannot_hold(what, "one whose families have just these, or candle-attention"));
        let is_key = |name: &str| layout.position_name(name).is_some_and(|name| BIAS_KV.contains(&&*name));
        if self.parameters.get(BIAS_KV[0]).is_some() && self.position.iter().any(|(name, _)| is_key(name)) {
            let why = "one that names a key and value that every query sees otherwise than its positions";
            return Err(layout.cannot_hold(&format!("{} positions", config.position), why));
        }
        if self.position.iter().any(|(name, _)| layout.position_name(name).is_none()) {
            let why = "one whose families have them, such as candle-attention";
            return Err(layout.cannot_hold(&format!("{} positions", config.position), why));
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
