//! One matrix of queries, keys and values, before which the rows of a gate may stand. Biases of query and value may be
//! two tensors of their own; then there is none of key.

use candle_core::Tensor;

use crate::checkpoint::forms::{Matrix, Projections, QkvForm, Reader, Shapes, Writer};
use crate::checkpoint::projection::Rows;
use crate::config::AttentionConfig;
use crate::ensure;
use crate::error::Result;
use crate::families::layout::{GateNames, LinearNames};
use crate::weights::{FusedOrder, LinearWeights, QkvWeights};

pub(super) struct Fused {
    pub names: LinearNames,
    /// The biases of query and value, if they are two tensors.
    pub split_biases: Option<[&'static str; 2]>,
    pub order: FusedOrder,
}

impl QkvForm for Fused {
    fn matrices(&self) -> Vec<Matrix> {
        vec![(self.names, 0..3)]
    }

    fn required(&self) -> Vec<&'static str> {
        self.weights().into_iter().chain(self.split_biases.into_iter().flatten()).collect()
    }

    fn biases(&self) -> [&'static str; 3] {
        self.split_biases.map_or([self.names.bias; 3], |[q, v]| [q, q, v])
    }

    fn has_key_bias(&self) -> bool {
        self.split_biases.is_none()
    }

    fn read(&self, reader: &Reader) -> Result<QkvWeights> {
        let counts = reader.counts();
        let rows = reader.gate_before_query(self.names.weight)? + counts.iter().sum::<usize>();
        let fused = reader.linear(self.names, Rows::whole(rows), reader.one_input()?)?;
        let Some([q, v]) = self.split_biases else {
            return Ok(match self.order {
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
        if self.order != FusedOrder::Blocks {
            return Ok(QkvWeights::OrderedSplitBias { weight: fused.weight, biases, order: self.order });
        }
        let mut parts = fused.split(counts)?;
        parts.iter_mut().zip(biases).for_each(|(part, bias)| part.bias = bias);
        Ok(QkvWeights::Split(Box::new(parts)))
    }

    fn write(&self, projections: &Projections, writer: &mut Writer) -> Result<()> {
        let Projections { parts: [q, k, v], rows, gate, .. } = projections;
        let layout = writer.layout;
        writer.check_one_input(0)?;
        let (heads, is_even) = (rows[0].heads, rows[1].dim == rows[2].dim);
        match self.order {
            FusedOrder::Grouped if !is_even && self.split_biases.is_none() => {
                return Err(layout.cannot_hold("value heads of another size", "one that keeps values apart"));
            }
            FusedOrder::FourBlocks => {
                let fits = is_even && heads.is_multiple_of(4);
                ensure!(fits, layout.cannot_hold(&format!("{heads} heads"), "one that needs no four equal blocks"));
            }
            _ => {}
        }
        let fused = LinearWeights::fuse([q, k, v], self.order, rows[1].heads)?;
        let fused = match gate {
            Some(gate) => LinearWeights::concat(&[gate, &fused])?,
            None => fused,
        };
        writer.put(self.names, &fused, None)?;
        for (name, dense) in self.split_biases.into_iter().flatten().zip([q, v]) {
            let Some(bias) = &dense.bias else { continue };
            writer.insert(name, if layout.wide_biases { bias.reshape((1, 1, ()))? } else { bias.clone() });
        }
        Ok(())
    }

    fn infer(&self, shapes: &Shapes) -> Result<AttentionConfig> {
        let gate_rows = if shapes.layout.gate == GateNames::BeforeQuery { shapes.o.1 } else { 0 };
        shapes.config(shapes.fused(self.names, gate_rows)?, self.key_value_source())
    }
}
