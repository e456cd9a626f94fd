//! Operations around attention: linear layers, the packed query-key-value projection, norms.
//!
//! Each operation is one function whatever the device: it runs a kernel of this crate where the CPU has one for the
//! call, and candle's differentiable operations otherwise. Of the kernels only the product of a projection has a
//! gradient (`trained_product`), so a tensor that tracks operations reaches no other.

mod caller_module;
mod dense;
mod latent;
mod linear;
mod low_rank;
mod norm;
mod pack;
mod packed;
mod packed_product;
mod projection;
mod qkv;
mod quantization;
mod score_factor;
mod trained_product;

pub(crate) use dense::accumulate_dtype;
pub(crate) use latent::{Latent, LatentSizes, concat_last, per_head};
pub use linear::Linear;
pub(crate) use norm::NormParameters;
pub use pack::with_blas;
pub use projection::ProjectionKind;
pub(crate) use qkv::{GATE, Qkv};
pub use quantization::{ComputeType, Quantization};
pub(crate) use score_factor::{expected_dropout, expected_factor, expected_limit};
