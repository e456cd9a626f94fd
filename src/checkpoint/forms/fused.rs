//! One matrix of queries, keys and values, before which the rows of a gate may stand, or of keys followed by values
//! alone, beside one of queries: cross-attention.
//!
//! Biases of query and value of the one matrix may be two tensors of their own; then there is none of key.

use candle_core::Tensor;

use crate::checkpoint::forms::{Projections, Reader, Shapes, Writer};
use crate::checkpoint::projection::Rows;
use crate::checkpoint::source::wrong_shape;
use crate::config::AttentionConfig;
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layout::{GateNames, LinearNames};
use crate::weights::{FusedOrder, LinearWeights, QkvWeights};

pub(super) fn read(
    names: LinearNames,
    split_biases: Option<[&str; 2]>,
    order: FusedOrder,
    reader: &Reader,
) -> Result<QkvWeights> {
    let counts = reader.counts();
    let mut rows = counts.iter().sum::<usize>();
    if reader.layout.gate == GateNames::BeforeQuery {
        let why = || format!("`{}` holds the gate", reader.source.full_name(names.weight));
        reader.config.require_gate_over_elements(why)?;
        rows += reader.context().count();
    }
    let fused = reader.linear(names, Rows::whole(rows), reader.one_input()?)?;
    let Some([q, v]) = split_biases else {
        return Ok(match order {
            FusedOrder::Blocks => QkvWeights::Packed(fused),
            order => QkvWeights::Ordered(fused, order),
        });
    };
    let bias = |name: &str, rows: usize| -> Result<Option<Tensor>> {
        let dims = [1, 1, rows];
        let dims = if reader.layout.wide_biases { &dims[..] } else { &dims[2..] };
        Ok(Some(reader.source.get(name, dims)?.flatten_all()?))
    };
    let biases = [bias(q, counts[0])?, None, bias(v, counts[2])?];
    if order != FusedOrder::Blocks {
        return Ok(QkvWeights::OrderedSplitBias { weight: fused.weight, biases, order });
    }
    let mut parts = fused.split(counts)?;
    parts.iter_mut().zip(biases).for_each(|(part, bias)| part.bias = bias);
    Ok(QkvWeights::Split(Box::new(parts)))
}

pub(super) fn write(
    names: LinearNames,
    split_biases: Option<[&str; 2]>,
    order: FusedOrder,
    projections: &Projections,
    writer: &mut Writer,
) -> Result<()> {
    let Projections { parts: [q, k, v], gate, .. } = projections;
    let (layout, rows) = (writer.layout, Rows::from_config(writer.config));
    writer.check_one_input(0)?;
    let (heads, is_even) = (rows[0].heads, rows[1].dim == rows[2].dim);
    match order {
        FusedOrder::Grouped if !is_even && split_biases.is_none() => {
            return Err(layout.cannot_hold("value heads of another size", "one that keeps values apart"));
        }
        FusedOrder::FourBlocks => {
            let fits = is_even && heads.is_multiple_of(4);
            ensure!(fits, layout.cannot_hold(&format!("{heads} heads"), "one that needs no four equal blocks"));
        }
        _ => {}
    }
    let fused = LinearWeights::fuse([q, k, v], order, rows[1].heads)?;
    let fused = match gate {
        Some(gate) => LinearWeights::concat(&[gate, &fused])?,
        None => fused,
    };
    writer.put(names, &fused, None)?;
    for (name, dense) in split_biases.into_iter().flatten().zip([q, v]) {
        let Some(bias) = &dense.bias else { continue };
        writer.insert(name, if layout.wide_biases { bias.reshape((1, 1, ()))? } else { bias.clone() });
    }
    Ok(())
}

pub(super) fn infer(names: LinearNames, shapes: &Shapes) -> Result<AttentionConfig> {
    let ((rows, input), query_rows) = (shapes.linear(names)?, shapes.o.1);
    let gate_rows = if shapes.layout.gate == GateNames::BeforeQuery { query_rows } else { 0 };
    let rest = rows.checked_sub(query_rows.saturating_add(gate_rows));
    let rest = rest.filter(|rest| rest.is_multiple_of(2) && (*rest > 0 || shapes.heads == 0));
    let expected = || {
        let name = shapes.source.full_name(names.weight);
        wrong_shape(name, &[rows, input], &[query_rows.saturating_mul(3), input])
    };
    let half = rest.ok_or_else(expected)? / 2;
    shapes.config([(query_rows, input), (half, input), (half, input)])
}

pub(super) fn read_pair(q: LinearNames, kv: LinearNames, reader: &Reader) -> Result<QkvWeights> {
    let ([_, k_rows, v_rows], [_, k_size, v_size]) = (reader.counts(), reader.inputs);
    if k_size != v_size {
        let layout = reader.layout.name;
        let allowed = format!("key_size = {k_size}: layout `{layout}` makes both from one input");
        return Err(Error::config("value_size", v_size, allowed));
    }
    let q = reader.part(q, 0)?;
    let kv = reader.linear(kv, Rows::whole(k_rows + v_rows), k_size)?;
    Ok(QkvWeights::Split(Box::new([q, kv.narrow(0, k_rows)?, kv.narrow(k_rows, v_rows)?])))
}

pub(super) fn write_pair(
    q: LinearNames,
    kv: LinearNames,
    projections: &Projections,
    writer: &mut Writer,
) -> Result<()> {
    let [_, k, v] = &projections.parts;
    writer.check_one_input(1)?;
    writer.put_parts(&[q], projections)?;
    writer.put(kv, &LinearWeights::concat(&[k, v])?, None)
}

pub(super) fn infer_pair(q: LinearNames, kv: LinearNames, shapes: &Shapes) -> Result<AttentionConfig> {
    let (rows, input) = shapes.linear(kv)?;
    let half = (rows / 2, input);
    shapes.config([shapes.linear(q)?, half, half])
}
