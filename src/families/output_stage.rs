//! The gate and the norm between the heads and the output projection, from a family's row and what a checkpoint holds.

use crate::attention::{GateOver, OutputGate};
use crate::config::{AttentionConfig, HeadNorm};
use crate::error::{Error, Result};
use crate::families::family::{ContextNormRow, GateRow, MaxKeys};
use crate::families::layer::Layer;

impl Layer<'_> {
    /// The gate of the layer, whose projection has so many `rows` in the checkpoint, if it is there.
    pub(super) fn output_gate(&self, config: &AttentionConfig, rows: Option<usize>) -> Result<Option<OutputGate>> {
        let gate = match self.family.gate {
            // A key that is null is false.
            Some(GateRow { switch: Some((key, default)), .. })
                if !self.flag(key)?.unwrap_or(default && self.section.get(key).is_none()) =>
            {
                None
            }
            gate => gate,
        };
        let what = "a gate of the output";
        let (gate, rows) = match (gate, rows) {
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                let expected = format!("absent: `{}` has none", self.model_type);
                return Err(Error::value(what, "in the checkpoint", expected));
            }
            (Some(_), None) => {
                let expected = format!("in the checkpoint: `{}` has one", self.model_type);
                return Err(Error::value(what, "absent", expected));
            }
            (Some(gate), Some(rows)) => (gate, rows),
        };
        let (heads, d_v) = (config.num_attention_heads, config.resolved_value_head_dim());
        let over = match rows {
            rows if rows == heads * d_v => GateOver::Element,
            rows if rows == heads => GateOver::Head,
            _ => {
                let expected = format!("{heads}, one per head, or {}, one per element", heads * d_v);
                return Err(Error::value("the number of gates", rows, expected));
            }
        };
        Ok(Some(OutputGate::new(gate.activation, over)))
    }

    /// The number of neighbors of the convolution of the values: of `found` if the checkpoint holds one.
    pub(super) fn value_convolution(&self, found: Option<usize>) -> Result<Option<usize>> {
        const KEY: &str = "fsmn_kernel_size";
        let stated = if self.reads(KEY) { self.number(KEY)? } else { None };
        match found.filter(|_| found != stated) {
            None => Ok(stated),
            Some(found) => Err(Error::config(KEY, format!("{stated:?}"), format!("{found}, as the checkpoint has it"))),
        }
    }

    /// Checks that limits on inputs and outputs of projections are used if the checkpoint holds them.
    pub(crate) fn check_limits(&self, held: bool) -> Result<()> {
        const KEY: &str = "use_clipped_linears";
        match self.flag(KEY)?.unwrap_or(self.family.default(KEY).is_some()) {
            false if held => Err(Error::config(KEY, false, "true: the checkpoint holds limits of projections")),
            _ => Ok(()),
        }
    }

    /// The most keys of a layer; `has_indexer`: whether one chooses among more.
    pub(super) fn max_keys(&self, config: &AttentionConfig, has_indexer: bool) -> Result<Option<usize>> {
        if let Some(MaxKeys::Compressed(key)) = self.family.max_keys {
            self.section.note(&[key]);
        }
        if !has_indexer {
            return Ok(None);
        }
        let required = |key: &'static str| {
            let none = || Error::config(key, "none", "a number: an indexer chooses the keys");
            self.number(key)?.filter(|number| *number > 0).ok_or_else(none)
        };
        Ok(Some(match self.family.max_keys {
            Some(MaxKeys::Blocks(count, size)) => required(count)?.saturating_mul(required(size)?),
            Some(MaxKeys::WholeBlocks(budget, size)) => required(budget)?.saturating_add(required(size)? - 1),
            Some(MaxKeys::Compressed(count)) => {
                let rate = config.key_compression().map_or(1, |blocks| blocks.rate);
                required(count)?.saturating_mul(rate).saturating_add(rate - 1)
            }
            None => {
                let expected = format!("absent: `{}` has none", self.model_type);
                return Err(Error::value("an indexer", "in the checkpoint", expected));
            }
        }))
    }

    /// The norm of the context; `held`: whether the checkpoint holds a weight of it.
    pub(super) fn context_norm(&self, held: bool) -> Result<Option<HeadNorm>> {
        let what = "a norm of the context";
        match self.family.context_norm {
            None if held => {
                let expected = format!("absent: `{}` has none", self.model_type);
                Err(Error::value(what, "in the checkpoint", expected))
            }
            Some(ContextNormRow { weighted, .. }) if weighted != held => {
                let words = ["absent", "in the checkpoint"];
                let (found, expected) = (words[usize::from(held)], words[usize::from(weighted)]);
                Err(Error::value(what, found, format!("{expected}, as `{}` has it", self.model_type)))
            }
            Some(ContextNormRow { kind, over, weighted }) => {
                Ok(Some(HeadNorm::new(kind, over, self.norm_eps()?).with_weighted(weighted)))
            }
            None => Ok(None),
        }
    }
}
