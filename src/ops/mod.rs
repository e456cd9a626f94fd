//! Operations around attention: linear layers, the packed query-key-value projection, norms, activations, rotations.
//!
//! Each operation is one function whatever the device: it runs a fused kernel where there is one for the call, and
//! candle's differentiable operations otherwise. Of the kernels only the product of a projection has a gradient, on the
//! CPU (`trained_product`), so a tensor that tracks operations reaches no other. The alternative, candle's `CustomOp`
//! per kernel, was rejected: it cannot take the number of inputs that a fused step needs, and a backward pass would
//! have to be written and kept equal for each.

mod caller_module;
pub(crate) mod cuda;
mod dense;
mod latent;
mod linear;
mod low_rank;
mod norm;
mod pack;
mod packed;
mod packed_product;
mod pending_bias;
mod problem;
mod projection;
mod qkv;
mod quantization;
mod rotation;
mod score_factor;
mod trained_product;

pub(crate) use dense::accumulate_dtype;
pub(crate) use latent::{Latent, LatentSizes, concat_last, per_head};
pub use linear::Linear;
pub(crate) use norm::NormParameters;
#[doc(hidden)]
pub use pack::with_blas;
#[doc(hidden)]
pub use pending_bias::PendingBias;
pub(crate) use problem::Norm;
pub use projection::ProjectionKind;
pub(crate) use qkv::{GATE, Qkv};
pub use quantization::{ComputeType, Quantization};
pub(crate) use rotation::rotate;
pub(crate) use score_factor::{expected_dropout, expected_factor, expected_limit};
