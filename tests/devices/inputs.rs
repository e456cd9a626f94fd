//! Tensors of a call, laid out in memory in every way that a view can be.

use candle_core::{DType, Device, Tensor};

use crate::cases::{Case, Sizes};
use crate::common::Random;

/// How the tensors `(b, s, heads, d)` lie in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Layout {
    Contiguous,
    /// Heads amid those of a wider projection.
    Packed,
    /// `(b, heads, s, d)`, transposed.
    HeadsFirst,
    /// Rows and tokens amid others.
    Offset,
    /// The numbers of a head apart.
    NumbersApart,
    /// One row for the whole batch.
    Repeated,
    /// Queries, keys and values each in another way.
    Mixed,
}

impl Layout {
    pub const ALL: [Self; 7] = [
        Self::Contiguous,
        Self::Packed,
        Self::HeadsFirst,
        Self::Offset,
        Self::NumbersApart,
        Self::Repeated,
        Self::Mixed,
    ];

    /// Those of q, k and v.
    fn of_each(self) -> [Self; 3] {
        match self {
            Self::Mixed => [Self::HeadsFirst, Self::Packed, Self::Offset],
            Self::Repeated => [Self::Contiguous, Self::Repeated, Self::Repeated],
            _ => [self; 3],
        }
    }
}

/// A view of `t` `(b, s, heads, d)`. What lies around its numbers is NaN, so that it cannot be read unnoticed.
fn view(t: &Tensor, layout: Layout) -> candle_core::Result<Tensor> {
    let amid = |t: &Tensor, dim: usize| {
        let nan = (t.narrow(dim, 0, 1)? * f64::NAN)?;
        Tensor::cat(&[&nan, t, &nan], dim)?.narrow(dim, 1, t.dim(dim)?)
    };
    match layout {
        Layout::Packed => amid(t, 2),
        Layout::HeadsFirst => t.transpose(1, 2)?.contiguous()?.transpose(1, 2),
        Layout::Offset => amid(&amid(t, 1)?, 0),
        Layout::NumbersApart => t.transpose(2, 3)?.contiguous()?.transpose(2, 3),
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
    let [q_layout, k_layout, v_layout] = case.layout.of_each();
    [(q, q_layout), (k, k_layout), (v, v_layout)]
        .map(|(t, layout)| view(&t.to_device(device).unwrap(), layout).unwrap())
}

/// The sinks `(h)` of a case, if it has some.
pub fn sinks(case: &Case, device: &Device) -> Option<Tensor> {
    let sinks = || Random::new(2 * case.number as u64 + 1).tensor(&[case.sizes.h], case.dtype);
    case.score.has_sinks().then(|| sinks().to_device(device).unwrap())
}
