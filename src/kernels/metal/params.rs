//! Parameters of the attention kernel, and the sequences of a call.

use candle_attention_kernels::{Batch, Lengths, MaskStructure};

use crate::error::{Error, Result};

/// The struct `Params` of `source/attention.metal`, which documents each field.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Params {
    pub q_strides: [i64; 2],
    pub k_strides: [i64; 2],
    pub v_strides: [i64; 2],
    pub h: i32,
    pub h_kv: i32,
    pub left: i32,
    pub right: i32,
    pub scale: f32,
    pub softcap: f32,
    pub has_sinks: i32,
    pub reserved: i32,
}

/// The struct `Sequence` of `source/attention.metal`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Sequence {
    pub q: i64,
    pub k: i64,
    pub v: i64,
    pub out: i64,
    pub queries: i32,
    pub position: i32,
    pub visible_keys: i32,
    pub visible_queries: i32,
}

/// Counts up to 2^30 can be added in 32 bits.
const MAX_COUNT: usize = 1 << 30;

/// A limit of a window: -1 is none, as is one beyond every distance.
pub(crate) fn limit(keys: Option<usize>) -> i32 {
    keys.filter(|keys| *keys < MAX_COUNT).map_or(-1, |keys| keys as i32)
}

/// The sequences of a batch under the lengths and starts of a mask. `strides` are those of q, k and v between sequences
/// and between tokens; `out` that of the output between tokens.
///
/// # Errors
/// Counts beyond 2^30; lengths per query, which the kernel does not take.
pub(crate) fn sequences(
    batch: Batch,
    structure: &MaskStructure,
    strides: [[usize; 2]; 3],
    out: usize,
) -> Result<Vec<Sequence>> {
    let count = |what: &str, n: usize| match n <= MAX_COUNT {
        true => Ok(n as i32),
        false => Err(Error::value(format!("the number of {what} for a Metal kernel"), n, "at most 2^30")),
    };
    let one = |b: usize| {
        let (first, [s_q, s_kv]) = match batch {
            Batch::Padded { s_q, s_kv, .. } => ([b, 0], [s_q, s_kv]),
            Batch::Ragged { offsets } | Batch::Part { offsets, .. } => {
                ([0, offsets[b]], [offsets[b + 1] - offsets[b]; 2])
            }
        };
        let start = |[of_sequence, of_token]: [usize; 2]| (first[0] * of_sequence + first[1] * of_token) as i64;
        let [q, k, v] = strides.map(start);
        let (mut visible_keys, mut visible_queries) = (s_kv, s_q);
        for lengths in &structure.lengths {
            match lengths {
                Lengths::PerSequence(lengths) => visible_keys = visible_keys.min(lengths[b]),
                Lengths::Padding(lengths) => {
                    (visible_keys, visible_queries) = (visible_keys.min(lengths[b]), visible_queries.min(lengths[b]));
                }
                Lengths::PerQuery(_) => {
                    return Err(Error::value(
                        "the mask for a Metal kernel",
                        "lengths per query",
                        "lengths per sequence",
                    ));
                }
            }
        }
        let start = structure.starts.as_ref().map_or(s_kv as i64 - s_q as i64, |starts| starts[b]);
        let position = i32::try_from(start).ok().filter(|position| position.unsigned_abs() as usize <= MAX_COUNT);
        let position = position
            .ok_or_else(|| Error::value("the position of query 0", start, "at most 2^30 from the first key"))?;
        // Tokens of the output, which is contiguous.
        let tokens = first[0] * s_q + first[1];
        Ok(Sequence {
            q,
            k,
            v,
            out: (tokens * out) as i64,
            queries: count("queries", s_q)?,
            position,
            visible_keys: count("keys", visible_keys)?,
            visible_queries: count("queries", visible_queries)?,
        })
    };
    batch.sequences().map(one).collect()
}
