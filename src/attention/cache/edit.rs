//! Changes of what a key-value cache holds: fewer tokens, other sequences; and masks cut to what it holds.

use candle_core::{DType, Tensor};

use super::kv_cache::{CacheKind, KvCache, Row};
use crate::error::{Error, Result};
use crate::tensor::{check_tensor_memory, select};

impl KvCache {
    /// Keeps the first `len` tokens of each sequence and forgets those after them, as speculative decoding needs it. A
    /// sequence of fewer tokens stays as it is. Nothing is copied.
    ///
    /// A rotating cache has only the tokens of the last window. Until it drops one, it can be truncated to any length.
    /// Afterwards the tokens that the next query sees have to be held still, which leaves at most one token to remove.
    ///
    /// # Errors
    /// A rotating cache has dropped tokens that a sequence of `len` tokens sees. The cache is unchanged then.
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        let lengths: Vec<usize> = self.rows.iter().map(|row| row.seen().min(len)).collect();
        self.truncate_rows(&lengths)
    }

    /// [`truncate`](Self::truncate) with a length for each sequence.
    ///
    /// # Errors
    /// Those of [`truncate`](Self::truncate), another number of lengths than sequences, or a length of more tokens than
    /// the sequence has. The cache is unchanged then.
    pub fn truncate_rows(&mut self, lengths: &[usize]) -> Result<()> {
        if lengths.len() != self.rows.len() {
            let expected = format!("{}, the sequences in the cache", self.rows.len());
            return Err(Error::value("the number of lengths", lengths.len(), expected));
        }
        for (i, (row, &len)) in self.rows.iter().zip(lengths).enumerate() {
            let Row { dropped, .. } = *row;
            if len > row.seen() {
                let expected = format!("at most {}, the tokens of the sequence", row.seen());
                return Err(Error::value(format!("lengths[{i}]"), len, expected));
            }
            if let CacheKind::Rotating(window) = self.kind
                && dropped > 0
                && len < dropped.saturating_add(window - 1)
            {
                let least = dropped.saturating_add(window - 1);
                let expected = format!("at least {least}: the cache has dropped the first {dropped} tokens");
                return Err(Error::value(format!("the length of sequence {i} in a rotating cache"), len, expected));
            }
        }
        for (row, &len) in self.rows.iter_mut().zip(lengths) {
            row.held = len - row.dropped;
            row.ends.iter_mut().for_each(|ends| ends.truncate(len));
        }
        Ok(())
    }

    /// Makes the batch consist of the sequences `rows`, in this order: beams that continue another one, a batch without
    /// its finished sequences. A sequence may be repeated.
    ///
    /// ```text
    /// cache.select_rows(&[0, 0, 2])  // the second beam now continues the first one
    /// cache.select_rows(&[0, 2])     // sequence 1 is finished
    /// ```
    ///
    /// # Errors
    /// No sequence at all, or one that is not in the cache. The cache is unchanged then.
    pub fn select_rows(&mut self, rows: &[usize]) -> Result<()> {
        check_rows(rows, self.rows.len())?;
        if rows.iter().copied().eq(0..self.rows.len()) {
            return Ok(());
        }
        if let Some([keys, values]) = &self.buffers {
            let [each, of_value] = [keys, values].map(|t| t.dims()[1..].iter().product::<usize>());
            let what = "the number of sequences to select";
            check_tensor_memory(what, rows.len(), &[rows.len(), each + of_value], keys.dtype(), keys.device())?;
            self.buffers = Some([select(keys, rows, 0)?, select(values, rows, 0)?]);
        }
        self.rows = rows.iter().map(|&row| self.rows[row].clone()).collect();
        Ok(())
    }

    /// Cuts a mask over all tokens to those that the next call attends to: `(b or 1, …, tokens)`, where the last
    /// dimension counts every token that a sequence has seen and the `new` ones, → `(b, …, columns)` with
    /// [`mask_columns`](Self::mask_columns) columns. Without a rotating cache this changes nothing but the dimensions of
    /// size 1 and padding.
    ///
    /// `new` is the number of new tokens: one for the whole batch, or one per sequence. Columns after the end of a shorter
    /// sequence are 0.
    ///
    /// # Errors
    /// The mask has another batch, or another number of tokens than the longest sequence with its new ones.
    pub fn select_columns(&self, mask: &Tensor, new: &[usize]) -> Result<Tensor> {
        let added = |i: usize| new.get(if new.len() == 1 { 0 } else { i }).copied().unwrap_or(0);
        let dims = mask.dims();
        // Before the first call nothing but the mask tells the batch size.
        let sequences = match self.rows.len().max(new.len()) {
            1 if self.rows.is_empty() => dims.first().copied().unwrap_or(1),
            sequences => sequences,
        };
        let row = |i: usize| self.rows.get(i).cloned().unwrap_or_default();
        // A sum that saturates is no tensor's size. A batch without sequences has as many columns as one with them.
        let tokens = (0..sequences.max(new.len())).map(|i| row(i).seen().saturating_add(added(i))).max().unwrap_or(0);
        let batch = matches!(dims.first(), Some(b) if *b == 1 || *b == sequences);
        if mask.rank() < 2 || !batch || dims.last() != Some(&tokens) || tokens == usize::MAX {
            return Err(Error::shape("the mask", dims, format!("({sequences} or 1, …, {tokens})")));
        }
        let columns = self.mask_columns(new);
        let last = mask.rank() - 1;
        let of = |i: usize| {
            let mask = if dims[0] == 1 { mask.clone() } else { mask.narrow(0, i, 1)? };
            let Row { dropped, held, .. } = row(i);
            let own = mask.narrow(last, dropped, held + added(i))?;
            Ok::<_, Error>(own.pad_with_zeros(last, 0, columns - held - added(i))?)
        };
        let cut = (0..sequences).map(of).collect::<Result<Vec<_>>>()?;
        match cut.first() {
            Some(_) => Ok(Tensor::cat(&cut, 0)?),
            None => Ok(mask.to_dtype(DType::U8)?),
        }
    }
}

/// Checks that `rows` are sequences of a batch of `b`.
pub(super) fn check_rows(rows: &[usize], b: usize) -> Result<()> {
    if rows.is_empty() {
        return Err(Error::value("the list of sequences to select", "empty", "at least one"));
    }
    match rows.iter().find(|row| **row >= b) {
        Some(row) => {
            Err(Error::value("a sequence to select", row, format!("less than {b}, the sequences in the cache")))
        }
        None => Ok(()),
    }
}
