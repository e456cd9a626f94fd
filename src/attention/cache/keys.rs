//! Tokens of sequences of unequal length, brought together by index, so that gradients flow.

use candle_core::Tensor;

use crate::error::{Error, Result};

/// The first `held` tokens of each sequence of `old` and then the first `new` tokens of `chunk`, `(b, s, h, d)` each →
/// `(b, columns, h, d)`. What follows the tokens of a sequence is arbitrary.
pub(super) fn join(old: Option<&Tensor>, chunk: &Tensor, held: &[usize], new: &[usize]) -> Result<Tensor> {
    let longest = held.iter().copied().max().unwrap_or(0);
    let s = chunk.dim(1)?;
    let old = old.filter(|_| longest > 0).map(|old| old.narrow(1, 0, longest)).transpose()?;
    let all = match old {
        // candle cannot concatenate an empty tensor.
        Some(old) if s == 0 => old,
        Some(old) => Tensor::cat(&[&old, chunk], 1)?, // (b, longest + s, h, d)
        None => chunk.clone(),
    };
    if held.iter().all(|tokens| *tokens == longest) && new.iter().all(|tokens| *tokens == s) {
        return Ok(all);
    }
    let columns = held.iter().zip(new).map(|(held, new)| held + new).max().unwrap_or(0);
    gather(&all, columns, |row, column| match column.checked_sub(held[row]) {
        Some(i) if i < new[row] => longest + i,
        Some(_) => 0,
        None => column,
    })
}

/// The last `kept` tokens of the `totals` tokens of each sequence, `(b, s, h, d)` → `(b, longest kept, h, d)`.
pub(super) fn last(tokens: &Tensor, totals: &[usize], kept: &[usize]) -> Result<Tensor> {
    let (columns, s) = (kept.iter().copied().max().unwrap_or(0), tokens.dim(1)?);
    let even = totals.iter().all(|total| *total == s) && kept.iter().all(|tokens| *tokens == columns);
    match even {
        true if columns == s => Ok(tokens.clone()),
        // A copy, because a view would keep all of a long chunk in memory.
        true => Ok(tokens.narrow(1, s - columns, columns)?.force_contiguous()?),
        false => gather(tokens, columns, |row, i| if i < kept[row] { totals[row] - kept[row] + i } else { 0 }),
    }
}

/// `(b, s, h, d)` → `(b, columns, h, d)`, of which column `c` of sequence `i` is the token `index(i, c)`.
fn gather(tokens: &Tensor, columns: usize, index: impl Fn(usize, usize) -> usize) -> Result<Tensor> {
    let (b, s, h, d) = tokens.dims4()?;
    if columns == 0 {
        return Ok(tokens.narrow(1, 0, 0)?);
    }
    let places = (0..b).flat_map(|row| (0..columns).map(move |column| (row, column)));
    if u32::try_from(b.saturating_mul(s)).is_err() {
        let found = format!("{b} sequences of {s}");
        return Err(Error::value("the number of tokens in a cache of unequal sequences", found, "less than 2^32"));
    }
    let places = places.map(|(row, column)| (row * s + index(row, column)) as u32);
    let places = Tensor::from_iter(places, tokens.device())?;
    let flat = tokens.contiguous()?.reshape((b * s, h, d))?;
    Ok(flat.index_select(&places, 0)?.reshape((b, columns, h, d))?)
}
