use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::mask::{AttentionMask, Part};

/// The sizes of one attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttnShape {
    pub b: usize,
    pub h: usize,
    pub s_q: usize,
    pub s_kv: usize,
}

impl AttentionMask {
    /// Checks every part against the call.
    pub(crate) fn check(&self, call: AttnShape) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.check(call))
    }
}

impl Part {
    fn check(&self, call: AttnShape) -> Result<()> {
        let AttnShape { b, s_q, s_kv, .. } = call;
        match self {
            Self::Keep(mask) => boolean_shape("keep mask", mask, call),
            Self::Drop(mask) => boolean_shape("drop mask", mask, call),
            Self::Additive(mask) => {
                let want = [b, call.h, s_q, s_kv];
                let fits = mask.dims().iter().rev().zip(want.iter().rev()).all(|(&n, &want)| n == want || n == 1);
                if fits {
                    return Ok(());
                }
                Err(Error::shape("additive mask", mask.dims(), format!("a shape that broadcasts to {want:?}")))
            }
            Self::Lengths(rows) => {
                row_count("lengths", rows.len(), b)?;
                rows.iter().enumerate().try_for_each(|(i, &n)| length(format!("lengths[{i}]"), n, s_kv))
            }
            Self::QueryLengths(rows) => {
                row_count("lengths per query", rows.len(), b)?;
                for (i, row) in rows.iter().enumerate() {
                    if row.len() != s_q {
                        return Err(Error::value(
                            format!("the number of lengths in row {i}"),
                            row.len(),
                            s_q.to_string(),
                        ));
                    }
                    row.iter().enumerate().try_for_each(|(j, &n)| length(format!("lengths[{i}][{j}]"), n, s_kv))?;
                }
                Ok(())
            }
            Self::Padding(rows) => {
                if s_q != s_kv {
                    let found = format!("{s_q} queries and {s_kv} keys");
                    return Err(Error::value(
                        "a padding mask's call",
                        found,
                        "self-attention: as many queries as keys",
                    ));
                }
                row_count("padding", rows.len(), b)?;
                rows.iter().enumerate().try_for_each(|(i, &n)| length(format!("padding[{i}]"), n, s_kv))
            }
            Self::Distances { slopes, .. } if slopes.len() != call.h => {
                Err(Error::value("the number of slopes", slopes.len(), format!("{}, the heads", call.h)))
            }
            Self::Starts(rows) => row_count("starts", rows.len(), b),
            Self::Causal | Self::Window { .. } | Self::Distances { .. } => Ok(()),
            Self::Segments { queries, keys } => {
                let expect = |name: &str, ids: &Tensor, want: [usize; 2]| match ids.dims() == want {
                    true => Ok(()),
                    false => Err(Error::shape(name, ids.dims(), format!("{want:?}"))),
                };
                expect("segments of queries", queries, [b, s_q])?;
                expect("segments of keys", keys, [b, s_kv])
            }
        }
    }
}

/// Accepts `(b|1, s_kv)`, `(b|1, s_q|1, s_kv|1)` and `(b|1, h|1, s_q|1, s_kv|1)`.
fn boolean_shape(name: &str, mask: &Tensor, call: AttnShape) -> Result<()> {
    let AttnShape { b, h, s_q, s_kv } = call;
    let or_one = |n: usize, want: usize| n == want || n == 1;
    let fits = match *mask.dims() {
        [rows, keys] => or_one(rows, b) && keys == s_kv,
        [rows, queries, keys] => or_one(rows, b) && or_one(queries, s_q) && or_one(keys, s_kv),
        [rows, heads, queries, keys] => {
            or_one(rows, b) && or_one(heads, h) && or_one(queries, s_q) && or_one(keys, s_kv)
        }
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let expected = format!("{:?}, {:?} or {:?}", [b, s_kv], [b, s_q, s_kv], [b, h, s_q, s_kv]);
    Err(Error::shape(name, mask.dims(), expected))
}

fn row_count(name: &str, found: usize, b: usize) -> Result<()> {
    if found == b {
        return Ok(());
    }
    Err(Error::value(format!("the number of rows in {name}"), found, format!("{b}, the batch size")))
}

fn length(what: String, n: usize, s_kv: usize) -> Result<()> {
    if n <= s_kv {
        return Ok(());
    }
    Err(Error::value(what, n, format!("at most {s_kv}, the number of keys")))
}
