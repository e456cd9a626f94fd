//! A matrix for each projection: query, key, value; query and key, which is the value, too (Gemma 4); or the query
//! alone (Gemma 3n). Their biases may be one tensor (`torch.nn.MultiheadAttention` with `kdim` or `vdim`).

use candle_core::Tensor;

use crate::checkpoint::forms::{Matrix, Projections, QkvForm, Reader, Shapes, Writer};
use crate::checkpoint::projection::Rows;
use crate::config::AttentionConfig;
use crate::error::Result;
use crate::families::layout::{GateNames, LinearNames};
use crate::weights::QkvWeights;

pub(super) struct Separate {
    pub names: Vec<LinearNames>,
    /// The biases of query, key and value, if they are one tensor.
    pub fused_bias: Option<&'static str>,
}

impl QkvForm for Separate {
    fn matrices(&self) -> Vec<Matrix> {
        self.names.iter().enumerate().map(|(part, names)| (*names, part..part + 1)).collect()
    }

    fn biases(&self) -> [&'static str; 3] {
        [0, 1, 2].map(|part| self.fused_bias.unwrap_or(self.at(part).bias))
    }

    fn read(&self, reader: &Reader) -> Result<QkvWeights> {
        let (source, rows) = (reader.source, reader.counts());
        let fused = self.fused_bias.filter(|name| source.contains(name));
        let fused = fused.map(|name| source.get(name, &[rows.iter().sum()])).transpose()?;
        let with_gate = reader.layout.gate == GateNames::InQuery;
        let part = |i: usize| {
            let Rows { heads, dim } = reader.rows[i];
            let dim = if with_gate && i == 0 { 2 * dim } else { dim };
            let mut linear = reader.linear(self.names[i], Rows { heads, dim }, reader.inputs[i])?;
            if let Some(bias) = &fused {
                linear.bias = Some(bias.narrow(0, rows[..i].iter().sum(), rows[i])?);
            }
            Ok(linear)
        };
        // Gemma 3n's files hold keys and values for all layers, which its model does not read.
        if self.names.len() == 1 || reader.is_shared() {
            return Ok(QkvWeights::Query(part(0)?));
        }
        let k = part(1)?;
        let or_identity = |i: usize| {
            if self.names[i].is_absent() { reader.identity(rows[i], &k.weight) } else { part(i) }
        };
        let q = or_identity(0)?;
        if self.names.len() == 2 {
            return Ok(QkvWeights::KeysAsValues(Box::new([q, k])));
        }
        let parts = Box::new([q, k.clone(), or_identity(2)?]);
        let heads = reader.rows[0].heads;
        Ok(if with_gate { QkvWeights::GatedQuery { parts, heads } } else { QkvWeights::Split(parts) })
    }

    fn write(&self, projections: &Projections, writer: &mut Writer) -> Result<()> {
        writer.put_parts(&self.names, projections)?;
        let biases = projections.parts.each_ref().map(|dense| dense.bias.as_ref());
        if let (Some(name), [Some(q), Some(k), Some(v)]) = (self.fused_bias, biases) {
            writer.insert(name, Tensor::cat(&[q, k, v], 0)?);
        }
        Ok(())
    }

    fn infer(&self, shapes: &Shapes) -> Result<AttentionConfig> {
        let k = shapes.linear(self.at(1))?;
        let or_square = |names: LinearNames, n| if names.is_absent() { Ok((n, n)) } else { shapes.linear(names) };
        let mut q = or_square(self.at(0), k.0)?;
        if shapes.layout.gate == GateNames::InQuery {
            q.0 /= 2;
        }
        // No shape shows how many key-value heads another layer has.
        shapes.config([q, k, or_square(self.at(2), k.1)?], self.key_value_source())
    }
}

impl Separate {
    /// The names of query (0), key (1) or value (2): those of the last projection if it has none.
    fn at(&self, part: usize) -> LinearNames {
        self.names[part.min(self.names.len() - 1)]
    }
}
