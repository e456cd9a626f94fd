//! A matrix of queries, and one of keys followed by values: cross-attention.

use crate::checkpoint::forms::{Matrix, Projections, QkvForm, Reader, Shapes, Writer};
use crate::checkpoint::projection::Rows;
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layout::LinearNames;
use crate::weights::{LinearWeights, QkvWeights};

pub(super) struct Pair {
    pub q: LinearNames,
    pub kv: LinearNames,
}

impl QkvForm for Pair {
    fn matrices(&self) -> Vec<Matrix> {
        vec![(self.q, 0..1), (self.kv, 1..3)]
    }

    fn is_cross(&self) -> bool {
        true
    }

    fn read(&self, reader: &Reader) -> Result<QkvWeights> {
        let ([_, k_rows, v_rows], [_, k_size, v_size]) = (reader.counts(), reader.inputs);
        if k_size != v_size {
            let layout = reader.layout.name;
            let allowed = format!("key_size = {k_size}: layout `{layout}` makes both from one input");
            return Err(Error::config("value_size", v_size, allowed));
        }
        let q = reader.part(self.q, 0)?;
        let kv = reader.linear(self.kv, Rows::whole(k_rows + v_rows), k_size)?;
        Ok(QkvWeights::Split(Box::new([q, kv.narrow(0, k_rows)?, kv.narrow(k_rows, v_rows)?])))
    }

    fn write(&self, projections: &Projections, writer: &mut Writer) -> Result<()> {
        let [_, k, v] = &projections.parts;
        writer.check_one_input(1)?;
        writer.put_parts(&[self.q], projections)?;
        writer.put(self.kv, &LinearWeights::concat(&[k, v])?, None)
    }

    fn infer(&self, shapes: &Shapes) -> Result<AttentionConfig> {
        let (rows, input) = shapes.linear(self.kv)?;
        let half = (rows / 2, input);
        shapes.config([shapes.linear(self.q)?, half, half], self.key_value_source())
    }
}
