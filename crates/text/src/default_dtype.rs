//! The dtype that an encoder computes in by default.

use candle_attention::ComputeType;
use candle_core::{DType, Device};

/// The compute type that suits an encoder on `device`: f16 on an Apple GPU, f32 elsewhere; on the CPU with the weights
/// that a model's files hold in few bits as they are (`ComputeType::default()`).
///
/// On an Apple GPU f16 halves the memory that weights and hidden states take and the traffic to it, and has three more
/// bits of precision than bf16. Sums, norms and softmaxes are computed in f32 all the same. Weights that are stored in
/// f32 are converted when they are loaded. A model whose hidden states exceed 65,504 gives
/// [`Error::NotFinite`](candle_attention::Error::NotFinite) in f16: load it in f32.
///
/// Training, gradients and head importance need f32, on every device.
///
/// ```
/// use candle_attention_text::{SentenceEncoder, default_dtype};
/// use candle_attention::ComputeType;
/// use candle_core::Device;
/// let device = Device::Cpu;
/// assert_eq!(default_dtype(&device), ComputeType::default());
/// let encoder = SentenceEncoder::embedded(default_dtype(&device), &device)?;
/// # Ok::<(), candle_attention::Error>(())
/// ```
pub fn default_dtype(device: &Device) -> ComputeType {
    if device.is_metal() { DType::F16.into() } else { ComputeType::default() }
}
