//! The short convolution of LFM2 ([Hasani 2025](https://arxiv.org/abs/2511.23404)), in the place of attention.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ensure;
use candle_attention::ops::Linear;
use candle_attention::{Error, Quantization, Result, map_fields, share_fields};
use candle_attention_kernels::{Activation, element_count};
use candle_core::{DType, Tensor};

use crate::model::config::TextModelConfig;
use crate::model::mlp::Rows;

/// The widest kernel. Published models have 3.
const MAX_KERNEL: usize = 1 << 8;

/// `out(C · (kernel ∗ (B · x)))` with `B, C, x = in(xs)`: a kernel of a few tokens for each feature, between two gates.
///
/// Places outside of a text count as zero, so that its numbers do not depend on padding.
#[derive(Debug, Clone)]
pub(crate) struct ShortConvolution {
    input: Linear,
    /// `(hidden_size, 1, width)`.
    kernel: Tensor,
    /// `(hidden_size)`.
    bias: Option<Tensor>,
    output: Linear,
    /// How many tokens before its own a kernel starts: all but one if it sees earlier tokens alone, else half.
    before: usize,
}

impl ShortConvolution {
    /// Loads the convolution of the block at the prefix of `source`.
    ///
    /// # Errors
    /// A width that is no number from 1; a bias that the configuration does not state.
    pub fn load(config: &TextModelConfig, source: &AnySource) -> Result<Self> {
        const WIDTH: &str = "conv_L_cache";
        const BIAS: &str = "conv_bias";
        let (source, hidden) = (source.child("conv"), config.hidden_size);
        let width = config.key_number(WIDTH)?.unwrap_or(3);
        ensure!((1..=MAX_KERNEL).contains(&width), Error::config(WIDTH, width, format!("1 to {MAX_KERNEL}")));
        let has_bias = config.key_flag(BIAS)?.unwrap_or(false);
        let linear = |name: &str, out| {
            let source = source.child(name);
            if source.contains("bias") != has_bias {
                let expected = format!("`{BIAS}` = {has_bias} in config.json");
                let found = if has_bias { "is absent" } else { "is there" }.to_string();
                return Err(Error::Tensor { name: source.full_name("bias"), found, expected });
            }
            Linear::load_with_bias(&source, out, hidden, has_bias)
        };
        let own = source.child("conv");
        let causal = config.key_flag("is_causal")?.unwrap_or(true);
        Ok(Self {
            input: linear("in_proj", 3 * hidden)?,
            kernel: own.get("weight", &[hidden, 1, width])?,
            bias: has_bias.then(|| own.get("bias", &[hidden])).transpose()?,
            output: linear("out_proj", hidden)?,
            before: if causal { width - 1 } else { width / 2 },
        })
    }

    /// The format of projections in few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        self.input.quantization().or(self.output.quantization())
    }

    /// Packs the weights now and gives their tensors back, as [`Linear::pack`] does.
    pub fn pack(&mut self) -> Result<()> {
        self.input.pack()?;
        self.output.pack()
    }

    /// xs `(b, s, hidden_size)` → the same, where rows hold sequences of `lengths` one after the other: one in each
    /// row, followed by padding, or all of them in one row. Differentiable.
    pub fn forward(&self, xs: &Tensor, lengths: &[usize]) -> Result<Tensor> {
        let (b, s, hidden) = xs.dims3()?;
        let in_place = if b == lengths.len() { s } else { 0 };
        let parts = self.input.forward_in_dtype(xs, xs.dtype())?.chunk(3, 2)?;
        let inner = (&parts[0] * &parts[2])?;
        let width = self.kernel.dim(2)?;
        let after = width.saturating_sub(self.before + 1);
        let padded = inner.pad_with_zeros(1, self.before, after)?;
        let mut sum = inner.zeros_like()?;
        for tap in 0..width {
            let seen = Tensor::from_vec(self.seen(tap, lengths, in_place, b * s), (b, s, 1), xs.device())?;
            let shifted = padded.narrow(1, tap, s)?.broadcast_mul(&seen.to_dtype(xs.dtype())?)?;
            let weight = self.kernel.narrow(2, tap, 1)?.reshape(hidden)?;
            sum = (sum + shifted.broadcast_mul(&weight)?)?;
        }
        if let Some(bias) = &self.bias {
            sum = sum.broadcast_add(bias)?;
        }
        self.output.forward_in_dtype(&(&parts[1] * sum)?, xs.dtype())
    }

    /// For each of `tokens` places 1 if the token that `tap` reads there is one of the same sequence, else 0. Sequences
    /// start `stride` places after each other or, if it is 0, where the one before ends.
    fn seen(&self, tap: usize, lengths: &[usize], stride: usize, tokens: usize) -> Vec<f32> {
        let mut seen = vec![0.0; tokens];
        let mut start = 0;
        for (i, length) in lengths.iter().enumerate() {
            start = if stride > 0 { i * stride } else { start };
            for place in taps(tap, self.before, *length) {
                seen[start + place] = 1.0;
            }
            start += length;
        }
        seen
    }

    pub fn supports_rows(&self) -> bool {
        self.input.can_pack() && self.output.can_pack()
    }

    /// Multiply-adds of [`forward_rows`](Self::forward_rows).
    pub fn multiply_adds(&self, tokens: usize) -> Result<usize> {
        let products = [&self.input, &self.output].map(|linear| Ok(linear.packed()?.multiply_adds(tokens)));
        products.into_iter().try_fold(0usize, |sum, product: Result<usize>| Ok(sum.saturating_add(product?)))
    }

    /// [`forward`](Self::forward) of sequences that start at `offsets`, on CPU buffers: from rows
    /// `(tokens, hidden_size)` to `outer` of the same shape; only call it if [`supports_rows`](Self::supports_rows).
    pub fn forward_rows(&self, rows: Rows, offsets: &[usize], outer: &mut [f32]) -> Result<()> {
        let (Rows { team, xs, tokens, scratch }, hidden) = (rows, self.output.out_features());
        let (size, width) = (element_count("the input of a convolution", &[tokens, 3 * hidden])?, self.kernel.dim(2)?);
        let mut parts = scratch.take(size)?;
        self.input.packed()?.multiply_into(team, xs, tokens, Activation::Identity, &mut parts)?;
        for row in parts.chunks_exact_mut(3 * hidden) {
            let (b, rest) = row.split_at_mut(hidden);
            b.iter_mut().zip(&rest[hidden..]).for_each(|(b, x)| *b *= x);
        }
        // A row per tap.
        let kernel = self.kernel.squeeze(1)?.t()?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        let bias = self.bias.as_ref().map(|bias| bias.to_dtype(DType::F32)?.to_vec1::<f32>()).transpose()?;
        let mut sums = scratch.take(size / 3)?;
        sums.fill(0.0);
        for ends in offsets.windows(2) {
            for (tap, weights) in kernel.iter().enumerate().take(width) {
                for place in taps(tap, self.before, ends[1] - ends[0]) {
                    let from = &parts[(ends[0] + place + tap - self.before) * 3 * hidden..][..hidden];
                    let sum = &mut sums[(ends[0] + place) * hidden..][..hidden];
                    sum.iter_mut().zip(from).zip(weights).for_each(|((sum, x), weight)| *sum += weight * x);
                }
            }
        }
        for (sum, parts) in sums.chunks_exact_mut(hidden).zip(parts.chunks_exact(3 * hidden)) {
            if let Some(bias) = &bias {
                sum.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
            }
            sum.iter_mut().zip(&parts[hidden..]).for_each(|(sum, gate)| *sum *= gate);
        }
        Ok(self.output.packed()?.multiply_into(team, &sums, tokens, Activation::Identity, outer)?)
    }
}

/// The places in a sequence of `length` tokens where `tap` of a kernel that starts `before` tokens earlier reads a
/// token of the sequence.
fn taps(tap: usize, before: usize, length: usize) -> std::ops::Range<usize> {
    let start = before.saturating_sub(tap).min(length);
    start..length.saturating_sub(tap.saturating_sub(before)).max(start)
}

map_fields!(ShortConvolution { input, kernel, bias, output }..);

share_fields!(ShortConvolution { input, output });
