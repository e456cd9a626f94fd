//! Rotary position embedding (RoPE) for sequences.

use std::sync::Arc;

use candle_core::{DType, Tensor};

use super::explicit::ExplicitPositions;
use super::rope_scaling::RotaryScaling;
use super::rotation::{RotaryStyle, check_theta, rotate};
use super::scheme::{LayerSizes, PositionScheme, SchemeTraits, TokenPositions};
use crate::error::{Error, Result};
use crate::ragged::RaggedBatch;
use crate::setters;
use crate::tensor::{check_allocation, element_count};

/// The most elements of a head that are rotated. A frequency is computed for each pair, also to check a configuration.
/// The largest published models rotate 512.
const MAX_ROTATED: usize = 4096;

/// Rotary position embedding ([Su 2021](https://arxiv.org/abs/2104.09864)): pairs of elements of each query and key are
/// rotated by `position · theta^(-2 i / dim)` radians, `i` being the index of the pair.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Rotary {
    /// The base of the wavelengths; default 10,000, at least 1.
    pub theta: f64,
    /// How many elements of a head are rotated, from the first; even, at most 4096. `None`, the default, is all.
    pub dim: Option<usize>,
    /// Which elements form a pair: half-split (GPT-NeoX, the default) or interleaved (GPT-J).
    pub style: RotaryStyle,
    /// Context extension (linear, dynamic NTK, YaRN, LongRoPE, Llama 3); default none.
    pub scaling: RotaryScaling,
    /// M-RoPE (Qwen2-VL, [Wang 2024](https://arxiv.org/abs/2409.12191)): how many pairs are rotated by the temporal
    /// position, by the height and by the width; together all pairs. Default none.
    ///
    /// A call gives the three positions of each token ([`with_positions`](crate::AttentionOptions::with_positions)).
    /// Without them all three are those of text.
    pub mrope_section: Option<[usize; 3]>,
    /// Whether the pairs of the three positions alternate (Qwen3-VL) instead of following each other; default false.
    pub mrope_interleaved: bool,
    /// Whether angles are negative (nanochat); default false.
    pub reversed: bool,
    /// How many heads of queries and of keys, from the first on, are rotated (1 in Qwen2.5-Omni's DiT); default all.
    pub heads: Option<usize>,
}

impl Default for Rotary {
    fn default() -> Self {
        Self {
            theta: 10_000.0,
            dim: None,
            style: RotaryStyle::default(),
            scaling: RotaryScaling::default(),
            mrope_section: None,
            mrope_interleaved: false,
            reversed: false,
            heads: None,
        }
    }
}

impl Rotary {
    setters! {
        /// Sets the base of the wavelengths.
        with_theta, theta: f64 = theta;
        /// Sets how many elements of a head are rotated.
        with_dim, dim: usize = Some(dim);
        /// Sets which elements form a pair.
        with_style, style: RotaryStyle = style;
        /// Sets the context extension.
        with_scaling, scaling: RotaryScaling = scaling;
        /// Sets the pairs of each axis of M-RoPE.
        with_mrope_section, mrope_section: [usize; 3] = Some(mrope_section);
        /// Sets whether the pairs of the three axes alternate.
        with_mrope_interleaved, mrope_interleaved: bool = mrope_interleaved;
        /// Sets whether angles are negative.
        with_reversed, reversed: bool = reversed;
        /// Sets how many heads are rotated.
        with_heads, heads: usize = Some(heads);
    }

    /// `xs` `(b, s, h, d)`, queries or keys with any number of heads, rotated by the positions of their tokens:
    /// integers `(s)`, `(b, s)` or, with M-RoPE, `(3, b, s)`, where `b` may be 1. The first [`dim`](Self::dim) elements
    /// of each head are rotated, the others stay. Differentiable.
    ///
    /// For attention that is composed on [`sdpa::attend_bshd`](crate::sdpa::attend_bshd); a layer with
    /// [`Position::Rotary`](crate::Position::Rotary) rotates by itself. Each pair is rotated in place: interleaved
    /// pairs stay interleaved, where transformers' DeepSeek puts the first elements of all pairs before the second
    /// ones. The products of queries and keys are the same.
    ///
    /// Where frequencies depend on the length of a sequence ([`RotaryScaling`]), it is one more than the largest of its
    /// positions.
    ///
    /// ```
    /// use candle_attention::AttentionMask;
    /// use candle_attention::position::Rotary;
    /// use candle_attention::sdpa::{SdpaOptions, attend_bshd};
    /// use candle_core::{Device, Tensor};
    ///
    /// let q = Tensor::randn(0f32, 1., (1, 3, 4, 8), &Device::Cpu)?;
    /// let [k, v] = [(); 2].map(|()| Tensor::randn(0f32, 1., (1, 3, 2, 8), &Device::Cpu));
    /// let (rotary, positions) = (Rotary::default(), Tensor::arange(0u32, 3, &Device::Cpu)?);
    /// let (q, k) = (rotary.apply(&q, &positions)?, rotary.apply(&k?, &positions)?);
    /// let attended = attend_bshd(&q, &k, &v?, &SdpaOptions::new(AttentionMask::causal()))?;
    /// assert_eq!(attended.output.dims(), [1, 3, 4, 8]);
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// # Errors
    /// `xs` has another shape or dtype, its heads are too small for the scheme, a field of the scheme is invalid, or
    /// the positions do not fit.
    pub fn apply(&self, xs: &Tensor, positions: &Tensor) -> Result<Tensor> {
        let expected = "(b, s, h, d)";
        let (b, s, h, d) = xs.dims4().map_err(|_| Error::shape("the tensor to rotate", xs.dims(), expected))?;
        if !matches!(xs.dtype(), DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            return Err(Error::dtype("the tensor to rotate", xs.dtype(), "f16, bf16, f32 or f64"));
        }
        self.check_head_dim(d)?;
        // Cosines and sines are made on the host; on the CPU so is the result.
        let heads = if xs.device().is_cpu() { h.max(1) } else { 1 };
        check_allocation::<[f64; 4]>("a rotation", element_count("the tensor to rotate", &[b, s, heads, d])?)?;
        let positions = ExplicitPositions::new(positions, b, s)?;
        if !self.accepts_positions(positions.axes) {
            let found = format!("{} per token", positions.axes);
            return Err(Error::value("the number of positions", found, format!("1: the scheme is {self}")));
        }
        if b == 0 || s == 0 {
            return Ok(xs.clone());
        }
        self.rotate_heads(xs, &self.explicit_cos_sin(&positions, None, d, xs.dtype(), xs.device())?)
    }

    /// The frequency of each pair of a head of `head_dim` elements, in radians per position, and the factor on rotated
    /// elements (`attention_factor`), for a sequence of `length` tokens. The length matters with
    /// [`Dynamic`](RotaryScaling::Dynamic) and [`LongRope`](RotaryScaling::LongRope) alone.
    ///
    /// # Errors
    /// The heads are too small for the scheme, or a field of the scheme is invalid.
    pub fn frequencies(&self, head_dim: usize, length: usize) -> Result<(Vec<f64>, f64)> {
        self.check_head_dim(head_dim)?;
        Ok(self.signed_frequencies(head_dim, length))
    }

    /// [`frequencies`](Self::frequencies) of a scheme that is checked.
    pub(super) fn signed_frequencies(&self, head_dim: usize, length: usize) -> (Vec<f64>, f64) {
        let (mut frequencies, factor) = self.scaling.frequencies(self.theta, self.rotated(head_dim), length);
        if self.reversed {
            frequencies.iter_mut().for_each(|frequency| *frequency = -*frequency);
        }
        (frequencies, factor)
    }

    /// Checks the fields for heads of `head_dim` elements.
    fn check_head_dim(&self, head_dim: usize) -> Result<()> {
        let dim = self.rotated(head_dim);
        if dim == 0 || !dim.is_multiple_of(2) || dim > head_dim.min(MAX_ROTATED) {
            let allowed = format!("an even number up to head_dim = {head_dim}, at most {MAX_ROTATED}");
            return Err(Error::config("rotary dim", dim, allowed));
        }
        check_theta(self.theta)?;
        if let Some(section) = self.mrope_section {
            let pairs = section.iter().fold(0usize, |sum, pairs| sum.saturating_add(*pairs));
            if pairs != dim / 2 {
                let allowed = format!("three numbers with the sum {}, the pairs of a head", dim / 2);
                return Err(Error::config("mrope_section", format!("{section:?}"), allowed));
            }
        }
        self.scaling.validate(self.theta, dim)
    }

    /// Cosines and sines of the queries `q` `(b, s_q, h, d)`, and of `s_kv` keys.
    fn angles(&self, q: &Tensor, s_kv: usize, tokens: &TokenPositions) -> Result<[[Tensor; 2]; 2]> {
        let (s_q, head_dim) = (q.dim(1)?, q.dim(3)?);
        let (dtype, device) = (q.dtype(), q.device());
        Ok(if let Some(batch) = tokens.ragged {
            let cos_sin = batch.cache.get_or_compute(
                usize::MAX,
                |key: &(Self, usize, DType)| (&key.0, key.1, key.2) == (self, head_dim, dtype),
                || {
                    let cos_sin = self.ragged_cos_sin(batch.lengths(), head_dim, dtype, device)?;
                    Ok(((self.clone(), head_dim, dtype), cos_sin))
                },
            )?;
            [cos_sin.clone(), cos_sin]
        } else if let Some(positions) = tokens.explicit {
            let all = self.explicit_cos_sin(positions, tokens.lengths, head_dim, dtype, device)?;
            let [cos, sin] = all.each_ref().map(|values| values.narrow(1, s_kv.saturating_sub(s_q), s_q));
            [[cos?, sin?], all]
        } else {
            // As for masks, the last query stands at the last key.
            let starts_q: Vec<usize> = tokens.starts.iter().map(|start| start + s_kv.saturating_sub(s_q)).collect();
            let for_q = self.padded_cos_sin(&starts_q, s_q, tokens.lengths, head_dim, dtype, device)?;
            let for_k = if s_q == s_kv {
                for_q.clone()
            } else {
                self.padded_cos_sin(tokens.starts, s_kv, tokens.lengths, head_dim, dtype, device)?
            };
            [for_q, for_k]
        })
    }

    /// xs `(b, s, h, d)` with the heads that are rotated turned by these angles. Differentiable.
    fn rotate_heads(&self, xs: &Tensor, angles: &[Tensor; 2]) -> Result<Tensor> {
        let h = xs.dim(2)?;
        match self.heads.unwrap_or(h) {
            0 => Ok(xs.clone()),
            n if n >= h => rotate(xs, angles, self.style),
            n => {
                let first = rotate(&xs.narrow(2, 0, n)?.contiguous()?, angles, self.style)?;
                Ok(Tensor::cat(&[first, xs.narrow(2, n, h - n)?], 2)?)
            }
        }
    }

    /// Rotated elements per head.
    pub(super) fn rotated(&self, head_dim: usize) -> usize {
        self.dim.unwrap_or(head_dim)
    }
}

impl PositionScheme for Rotary {
    fn validate(&self, sizes: &LayerSizes) -> Result<()> {
        if self.heads.is_some() && sizes.num_attention_heads != sizes.num_key_value_heads {
            let allowed = "that of queries, where a part of the heads is rotated";
            return Err(Error::config("num_key_value_heads", sizes.num_key_value_heads, allowed));
        }
        self.check_head_dim(sizes.head_dim)
    }

    fn prune(&mut self, kept: &[usize], _: usize) {
        self.heads = self.heads.map(|rotated| kept.iter().filter(|head| **head < rotated).count());
    }

    fn traits(&self) -> SchemeTraits {
        SchemeTraits { runs_ragged: true, runs_rows: self.heads.is_none(), rotates: true, ..SchemeTraits::default() }
    }

    fn accepts_positions(&self, axes: usize) -> bool {
        axes == 1 || (axes == 3 && self.mrope_section.is_some())
    }

    fn rotation_class(&self, length: usize) -> usize {
        self.scaling.class(length)
    }

    fn rotate(&self, q: Tensor, k: Tensor, tokens: &TokenPositions) -> Result<[Tensor; 2]> {
        let [for_q, for_k] = self.angles(&q, k.dim(1)?, tokens)?;
        Ok([self.rotate_heads(&q, &for_q)?, self.rotate_heads(&k, &for_k)?])
    }

    fn rotate_queries(&self, q: Tensor, s_kv: usize, tokens: &TokenPositions) -> Result<Tensor> {
        let [for_q, _] = self.angles(&q, s_kv, tokens)?;
        self.rotate_heads(&q, &for_q)
    }

    fn rotate_in_place(&self, xs: &mut [f32], heads: usize, head_dim: usize, batch: RaggedBatch) -> Result<()> {
        let tokens = batch.offsets.last().copied().unwrap_or(0);
        let width = xs.len().checked_div(tokens).unwrap_or(0);
        let longest = batch.longest();
        let mut rest = xs;
        for length in batch.lengths().filter(|length| *length > 0) {
            let (sequence, after) = rest.split_at_mut(length * width);
            rest = after;
            // One table for all sequences, unless the angles depend on their length.
            let depends = self.scaling.depends_on_length();
            let rotated_for = if depends { length } else { longest };
            let cos_sin = batch.cache.get_or_compute(
                usize::MAX,
                |key: &(Self, usize, usize)| {
                    let long_enough = if depends { key.2 == rotated_for } else { key.2 >= rotated_for };
                    (&key.0, key.1) == (self, head_dim) && long_enough
                },
                || Ok(((self.clone(), head_dim, rotated_for), Arc::new(self.f32_cos_sin(head_dim, rotated_for)))),
            )?;
            cos_sin.rotate_sequence(sequence, width, heads, head_dim);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let how = if self.mrope_interleaved { "alternating pairs" } else { "pairs" };
        let parts = [
            Some(format!("rotary(theta {}", self.theta)),
            self.dim.map(|dim| format!("{dim} numbers")),
            (self.style == RotaryStyle::Interleaved).then(|| "interleaved".to_string()),
            self.reversed.then(|| "reversed".to_string()),
            self.heads.map(|heads| format!("{heads} of the heads")),
            (self.scaling != RotaryScaling::None).then(|| self.scaling.to_string()),
            self.mrope_section.map(|[temporal, height, width]| format!("{temporal} + {height} + {width} {how}")),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(", ") + ")"
    }
}
