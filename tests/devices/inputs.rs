//! Tensors of a call, in every memory layout that a view can have.

use candle_core::{DType, Device, Tensor};

use crate::cases::{Case, Sizes};
use crate::common::Random;

/// Memory layout of the tensors `(b, s, heads, d)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Layout {
    Contiguous,
    /// Heads inside a wider projection.
    Packed,
    /// `(b, heads, s, d)`, transposed.
    HeadsFirst,
    /// Sequences and tokens inside a larger tensor.
    Offset,
    /// The elements of a head apart.
    LastDimStrided,
    /// One sequence, broadcast over the batch.
    Repeated,
    /// Queries, keys and values each in another layout.
    Mixed,
}

impl Layout {
    pub const ALL: [Self; 7] = [
        Self::Contiguous,
        Self::Packed,
        Self::HeadsFirst,
        Self::Offset,
        Self::LastDimStrided,
        Self::Repeated,
        Self::Mixed,
    ];

    /// The layouts of q, k and v.
    fn of_qkv(self) -> [Self; 3] {
        match self {
            Self::Mixed => [Self::HeadsFirst, Self::Packed, Self::Offset],
            Self::Repeated => [Self::Contiguous, Self::Repeated, Self::Repeated],
            _ => [self; 3],
        }
    }
}

/// A view of `t` `(b, s, heads, d)`. The memory around its elements is NaN, so that a read out of bounds is noticed.
fn view(t: &Tensor, layout: Layout) -> candle_core::Result<Tensor> {
    let surrounded = |t: &Tensor, dim: usize| {
        let nan = (t.narrow(dim, 0, 1)? * f64::NAN)?;
        Tensor::cat(&[&nan, t, &nan], dim)?.narrow(dim, 1, t.dim(dim)?)
    };
    match layout {
        Layout::Packed => surrounded(t, 2),
        Layout::HeadsFirst => t.transpose(1, 2)?.contiguous()?.transpose(1, 2),
        Layout::Offset => surrounded(&surrounded(t, 1)?, 0),
        Layout::LastDimStrided => t.transpose(2, 3)?.contiguous()?.transpose(2, 3),
        Layout::Repeated => t.narrow(0, 0, 1)?.broadcast_as(t.shape()),
        Layout::Contiguous | Layout::Mixed => Ok(t.clone()),
    }
}

/// q, k and v of a case on `device`.
pub fn qkv(case: &Case, device: &Device) -> [Tensor; 3] {
    let Sizes { b, s_q, s_kv, appended, h, h_kv, d, d_v } = case.sizes;
    let mut random = Random::new(2 * case.number as u64);
    // Queries and keys larger than 1, so that the softmax is far from uniform.
    let [q, k, v] =
        [([b, s_q, h, d], 2.5), ([b, s_kv + appended, h_kv, d], 2.5), ([b, s_kv + appended, h_kv, d_v], 1.0)]
            .map(|(dims, factor)| (random.tensor(&dims, DType::F32) * factor).unwrap().to_dtype(case.dtype).unwrap());
    let [q_layout, k_layout, v_layout] = case.layout.of_qkv();
    [(q, q_layout), (k, k_layout), (v, v_layout)]
        .map(|(t, layout)| view(&t.to_device(device).unwrap(), layout).unwrap())
}

/// The sinks `(h)` of a case, if it has any.
pub fn sinks(case: &Case, device: &Device) -> Option<Tensor> {
    let sinks = || Random::new(2 * case.number as u64 + 1).tensor(&[case.sizes.h], case.dtype);
    case.score.has_sinks().then(|| sinks().to_device(device).unwrap())
}
