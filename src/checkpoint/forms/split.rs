//! A matrix for each projection: query, key, value; query and key, which is the value, too (Gemma 4); or the query
//! alone (Gemma 3n). Their biases may be one tensor (`torch.nn.MultiheadAttention` with `kdim` or `vdim`).

use candle_core::Tensor;

use crate::checkpoint::forms::{Projections, Reader, Shapes, Writer};
use crate::checkpoint::projection::Rows;
use crate::config::{AttentionConfig, KeyValueSource};
use crate::error::Result;
use crate::families::layout::{GateNames, LinearNames};
use crate::weights::QkvWeights;

pub(super) fn read(names: &[LinearNames], fused_bias: Option<&str>, reader: &Reader) -> Result<QkvWeights> {
    let (source, rows) = (reader.source, reader.counts());
    let fused = fused_bias.filter(|name| source.contains(name));
    let fused = fused.map(|name| source.get(name, &[rows.iter().sum()])).transpose()?;
    let with_gate = reader.layout.gate == GateNames::InQuery;
    let part = |i: usize| {
        let Rows { heads, dim } = reader.rows[i];
        let dim = if with_gate && i == 0 { 2 * dim } else { dim };
        let mut linear = reader.linear(names[i], Rows { heads, dim }, reader.inputs[i])?;
        if let Some(bias) = &fused {
            linear.bias = Some(bias.narrow(0, rows[..i].iter().sum(), rows[i])?);
        }
        Ok(linear)
    };
    // Gemma 3n's files hold keys and values for all layers, which its model does not read.
    if names.len() == 1 || matches!(reader.config.key_value_source, KeyValueSource::Shared { .. }) {
        return Ok(QkvWeights::Query(part(0)?));
    }
    let k = part(1)?;
    let or_identity = |i: usize| if names[i].is_absent() { reader.identity(rows[i], &k.weight) } else { part(i) };
    let q = or_identity(0)?;
    if names.len() == 2 {
        return Ok(QkvWeights::KeysAsValues(Box::new([q, k])));
    }
    let parts = Box::new([q, k.clone(), or_identity(2)?]);
    let heads = reader.rows[0].heads;
    Ok(if with_gate { QkvWeights::GatedQuery { parts, heads } } else { QkvWeights::Split(parts) })
}

pub(super) fn write(
    names: &[LinearNames],
    fused_bias: Option<&str>,
    projections: &Projections,
    writer: &mut Writer,
) -> Result<()> {
    writer.put_parts(names, projections)?;
    let biases = projections.parts.each_ref().map(|dense| dense.bias.as_ref());
    if let (Some(name), [Some(q), Some(k), Some(v)]) = (fused_bias, biases) {
        writer.insert(name, Tensor::cat(&[q, k, v], 0)?);
    }
    Ok(())
}

pub(super) fn infer(names: &[LinearNames], shapes: &Shapes) -> Result<AttentionConfig> {
    // The last projection stands for those that the layer does not have: no shape shows how many key-value heads
    // another layer has.
    let [q, k, v] = [0, 1, 2].map(|part: usize| names[part.min(names.len() - 1)]);
    let k = shapes.linear(k)?;
    let or_square = |names: LinearNames, n| if names.is_absent() { Ok((n, n)) } else { shapes.linear(names) };
    let mut q = or_square(q, k.0)?;
    if shapes.layout.gate == GateNames::InQuery {
        q.0 /= 2;
    }
    shapes.config([q, k, or_square(v, k.1)?])
}
