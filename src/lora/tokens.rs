//! Rows of tables of embeddings that an adapter holds itself: PEFT's `trainable_token_indices`.

use candle_core::Tensor;

use crate::checkpoint::WeightSource;
use crate::error::{Error, Result};
use crate::lora::config::LoraConfig;

/// Rows that take the place of a table's own. PEFT names them `trainable_tokens_delta`; they are no differences.
#[derive(Debug, Clone)]
pub(super) struct TokenRows {
    indices: Vec<usize>,
    /// `(rows, width)`.
    pub values: Tensor,
}

impl TokenRows {
    /// The rows of the table `module`, which the tensor `name` of the adapter holds.
    pub fn new(config: &LoraConfig, module: &str, name: &str, values: Tensor) -> Result<Self> {
        let is_named = |end: &str| end.is_empty() || module == end || module.ends_with(&format!(".{end}"));
        let found = config.trainable_token_indices.iter().filter(|(end, _)| is_named(end)).collect::<Vec<_>>();
        let [(_, indices)] = found[..] else {
            let found = format!("is of a table that `trainable_token_indices` names {} times", found.len());
            return Err(Error::tensor(name, found, "once"));
        };
        if values.rank() != 2 || values.dims()[0] != indices.len() {
            let found = format!("has shape {:?}", values.dims());
            let expected = format!("[{}, width], by `trainable_token_indices`", indices.len());
            return Err(Error::tensor(name, found, expected));
        }
        Ok(Self { indices: indices.clone(), values })
    }

    /// Checks that a table of `shape` has the rows.
    pub fn check(&self, name: &str, shape: &[usize]) -> Result<()> {
        let width = self.values.dims()[1];
        if shape.len() != 2 || shape[1] != width {
            let (found, expected) =
                (format!("has shape {shape:?}"), format!("[rows, {width}], as rows of the adapter"));
            return Err(Error::tensor(name, found, expected));
        }
        match self.indices.iter().find(|row| **row >= shape[0]) {
            Some(row) => {
                let expected = format!("less than {}, the rows of `{name}`", shape[0]);
                Err(Error::value("adapter config key `trainable_token_indices`", row, expected))
            }
            None => Ok(()),
        }
    }

    /// The table with these rows, in its own dtype and on its device.
    pub fn merge(&self, table: &Tensor) -> Result<Tensor> {
        let values = self.values.to_dtype(table.dtype())?.to_device(table.device())?;
        let merged = table.contiguous()?.copy()?;
        for (i, row) in self.indices.iter().enumerate() {
            merged.slice_set(&values.narrow(0, i, 1)?.contiguous()?, 0, *row)?;
        }
        Ok(merged)
    }
}

/// The tables that are the table `name` once more: where weights are tied, some files hold the decoder, or the table of
/// a part of the model, as a copy.
pub(super) fn copies(name: &str, root: &dyn WeightSource) -> Result<Vec<String>> {
    let Some(shape) = root.shape(name)? else { return Ok(Vec::new()) };
    let mut copies = Vec::new();
    for other in root.names().unwrap_or_default() {
        if other == name || !other.ends_with(".weight") || root.shape(&other)?.as_ref() != Some(&shape) {
            continue;
        }
        let differ = root.get(&other, &shape)?.ne(&root.get(name, &shape)?)?;
        if differ.flatten_all()?.max(0)?.to_scalar::<u8>()? == 0 {
            copies.push(other);
        }
    }
    Ok(copies)
}
