//! The arguments of one launch of the attention kernel, and the check of everything that the kernel relies on.
//!
//! The kernel reads and writes by address: a shape or a length that is not what its parameters say would be a read or a
//! write outside of a tensor, or an output that nothing writes. So every launch is checked here, whoever calls it.

use candle_core::Tensor;

use crate::error::{Error, Result};
use crate::kernels::cuda::{AttentionParams, to_i32};
use crate::mask::{AttnShape, MergedMask};
use crate::sdpa::{Call, SdpaOptions};
use crate::tensor::check_shape;

/// Arguments of one launch. All tensors are on one CUDA device.
pub(super) struct Arguments<'a> {
    /// `(b, s_q, h, d)`, or `(1, tokens, h, d)` in a ragged batch; contiguous in the last dimension, as are `k` and
    /// `v`.
    pub q: &'a Tensor,
    /// `(b, keys, h_kv, d)`.
    pub k: &'a Tensor,
    /// `(b, keys, h_kv, d_v)`.
    pub v: &'a Tensor,
    /// `(h)`, f32, contiguous.
    pub sinks: Option<&'a Tensor>,
    /// The bias is f32 and 4-D, and `keep` is u8 and 4-D; both broadcast to `(b, h, s_q, s_kv)`. There is none where
    /// `s_kv` is 0.
    pub mask: &'a MergedMask,
    /// Where each sequence of a ragged batch starts, and where the last one ends.
    pub offsets: Option<&'a [usize]>,
    pub call: &'a Call,
    pub options: &'a SdpaOptions<'a>,
}

impl Arguments<'_> {
    /// Sizes and numbers of the launch; addresses and strides are not set.
    ///
    /// # Errors
    /// A size that the kernel cannot count, or a tensor or list of another shape than `call` says.
    pub(super) fn params(&self) -> Result<AttentionParams> {
        self.check_qkv()?;
        self.check_offsets()?;
        self.check_mask()?;
        let Call { shape: AttnShape { b, h, s_q, s_kv }, h_kv, d, d_v, .. } = *self.call;
        Ok(AttentionParams {
            b: to_i32("sequences", b)?,
            h: to_i32("heads", h)?,
            h_kv: to_i32("key-value heads", h_kv)?,
            s_q: to_i32("queries", s_q)?,
            s_kv: to_i32("keys", s_kv)?,
            appended_keys: to_i32("appended keys", self.options.appended_keys)?,
            d: to_i32("elements per head", d)?,
            d_v: to_i32("elements per value head", d_v)?,
            window_size_left: self.mask.left,
            window_size_right: self.mask.right,
            symmetric: i32::from(self.mask.symmetric),
            scale: self.options.dot_product_scale(d) as f32,
            softcap: self.options.softcap.unwrap_or(0.0) as f32,
            ..AttentionParams::default()
        })
    }

    /// The query heads of all tokens.
    pub(super) fn query_heads(&self) -> Result<usize> {
        let count = self.q.dims()[..3].iter().try_fold(1usize, |count, size| count.checked_mul(*size));
        count.ok_or_else(|| Error::shape("q", self.q.dims(), "fewer heads in all tokens than 2^64"))
    }

    /// Where each sequence starts, as the kernel takes it.
    pub(super) fn small_offsets(&self) -> Result<Option<Vec<i32>>> {
        self.offsets.map(|offsets| offsets.iter().map(|start| to_i32("tokens", *start)).collect()).transpose()
    }

    fn check_qkv(&self) -> Result<()> {
        let Call { shape: AttnShape { b, h, s_q, s_kv }, h_kv, d, d_v, .. } = *self.call;
        let (b, s_q, keys) = match self.offsets {
            Some(_) => (1, self.q.dim(1)?, self.q.dim(1)?),
            None => (b, s_q, s_kv.saturating_add(self.options.appended_keys)),
        };
        check_shape("q", self.q, &[b, s_q, h, d])?;
        check_shape("k", self.k, &[b, keys, h_kv, d])?;
        check_shape("v", self.v, &[b, keys, h_kv, d_v])?;
        for (name, tensor) in [("q", self.q), ("k", self.k), ("v", self.v)] {
            if tensor.dims()[3] > 1 && tensor.stride()[3] != 1 {
                let expected = "elements of a head that are adjacent in memory";
                return Err(Error::value(format!("the layout of {name}"), format!("{:?}", tensor.stride()), expected));
            }
        }
        if h_kv == 0 || !h.is_multiple_of(h_kv) {
            let expected = format!("a divisor of {h}, the number of heads");
            return Err(Error::value("the number of key-value heads", h_kv, expected));
        }
        self.sinks.map_or(Ok(()), |sinks| check_shape("sinks", sinks, &[h]))
    }

    /// Checks that the sequences of a ragged batch follow each other without a gap, and that none is longer than the
    /// call says.
    fn check_offsets(&self) -> Result<()> {
        let Some(offsets) = self.offsets else { return Ok(()) };
        let (AttnShape { b, s_q, s_kv, .. }, tokens) = (self.call.shape, self.q.dim(1)?);
        let ends = offsets.first() == Some(&0) && offsets.last() == Some(&tokens);
        let lengths = || offsets.windows(2).map(|pair| pair[1].checked_sub(pair[0]));
        let fits = |length: Option<usize>| length.is_some_and(|length| length <= s_q);
        let plain = s_q == s_kv && self.options.appended_keys == 0 && self.mask.segments.is_none();
        if offsets.len().checked_sub(1) == Some(b) && ends && plain && lengths().all(fits) {
            return Ok(());
        }
        let found = format!("{} offsets from {:?} to {:?}", offsets.len(), offsets.first(), offsets.last());
        let expected = format!("{b} sequences of at most {s_q} of {tokens} tokens, one after another");
        Err(Error::value("the ragged batch", found, expected))
    }

    fn check_mask(&self) -> Result<()> {
        let AttnShape { b, h, s_q, s_kv } = self.call.shape;
        let mask = self.mask;
        for (name, tensor) in [("the bias of the mask", &mask.bias), ("the mask", &mask.keep)] {
            let Some(tensor) = tensor else { continue };
            let all = [b, h, s_q, s_kv];
            let broadcasts = |(found, size): (&usize, usize)| *found == 1 || *found == size;
            if tensor.rank() != 4 || s_kv == 0 || !tensor.dims().iter().zip(all).all(broadcasts) {
                return Err(Error::shape(name, tensor.dims(), format!("{all:?}, or 1 in place of a number")));
            }
        }
        if let Some([queries, keys]) = &mask.segments {
            check_shape("the segments of queries", queries, &[b, s_q])?;
            check_shape("the segments of keys", keys, &[b, s_kv])?;
        }
        let lists = [
            ("slopes", mask.slopes.as_ref().map(Vec::len), h),
            ("lengths", mask.lengths.as_ref().map(Vec::len), b),
            ("lengths of padded sequences", mask.padding.as_ref().map(Vec::len), b),
            ("lengths per query", mask.query_ends.as_ref().map(Vec::len), b.saturating_mul(s_q)),
            ("starts", mask.starts.as_ref().map(Vec::len), b),
        ];
        match lists.into_iter().find(|(_, found, expected)| found.is_some_and(|found| found != *expected)) {
            Some((name, found, expected)) => {
                Err(Error::value(format!("the number of {name}"), found.unwrap_or(0), format!("{expected}")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::kernels::cuda::Gpu;
    use crate::mask::AttentionMask;
    use crate::sdpa::DeviceKind;

    const SHAPE: AttnShape = AttnShape { b: 2, h: 4, s_q: 3, s_kv: 5 };

    fn call(shape: AttnShape) -> Call {
        let device = DeviceKind::Cuda(Gpu::default());
        Call {
            shape,
            h_kv: 2,
            d: 8,
            d_v: 6,
            dtype: DType::F32,
            device,
            distance_embeddings: [0; 2],
            tracks_gradient: false,
        }
    }

    fn zeros(dims: &[usize]) -> Tensor {
        Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap()
    }

    /// The error of a launch, empty if there is none.
    fn error(call: &Call, [q, k, v]: [&Tensor; 3], mask: &MergedMask, offsets: Option<&[usize]>) -> String {
        let full = AttentionMask::full();
        let options = SdpaOptions::new(&full);
        let arguments = Arguments { q, k, v, sinks: None, mask, offsets, call, options: &options };
        let launch = arguments.params().and_then(|_| arguments.query_heads()).and_then(|_| arguments.small_offsets());
        launch.err().map_or(String::new(), |error| error.to_string())
    }

    #[test]
    fn counts_are_not_truncated() {
        let none = MergedMask::default();
        let huge = |dims: [usize; 4]| zeros(&[1, 1, 1, dims[3]]).broadcast_as(&dims[..]).unwrap();
        let shapes = [
            AttnShape { b: 1 << 32, ..SHAPE },
            AttnShape { s_q: (1 << 32) + 5, ..SHAPE },
            AttnShape { s_kv: 1 << 31, ..SHAPE },
            AttnShape { h: 1 << 32, ..SHAPE },
        ];
        for shape in shapes {
            let AttnShape { b, h, s_q, s_kv } = shape;
            let (q, k) = (huge([b, s_q, h, 8]), huge([b, s_kv, 2, 8]));
            let error = error(&call(shape), [&q, &k, &huge([b, s_kv, 2, 6])], &none, None);
            assert!(error.contains("at most 2^30"), "{shape:?}: {error}");
        }
        let no_heads = Call { h_kv: 0, ..call(SHAPE) };
        let (q, k) = (zeros(&[2, 3, 4, 8]), zeros(&[2, 5, 0, 8]));
        assert!(error(&no_heads, [&q, &k, &zeros(&[2, 5, 0, 6])], &none, None).contains("divisor"));
    }

    #[test]
    fn what_the_kernel_would_read_outside_of_a_tensor_is_an_error() {
        let call = call(SHAPE);
        let [q, k, v] = [zeros(&[2, 3, 4, 8]), zeros(&[2, 5, 2, 8]), zeros(&[2, 5, 2, 6])];
        let qkv = [&q, &k, &v];
        assert_eq!(error(&call, qkv, &MergedMask::default(), None), "");
        for (i, dims) in [(0, [2, 4, 4, 8]), (1, [2, 4, 2, 8]), (1, [1, 5, 2, 8]), (2, [2, 5, 2, 8])] {
            let (other, mut wrong) = (zeros(&dims), qkv);
            wrong[i] = &other;
            assert!(error(&call, wrong, &MergedMask::default(), None).contains("has shape"), "{i} {dims:?}");
        }
        let strided = zeros(&[2, 3, 8, 4]).transpose(2, 3).unwrap();
        assert!(error(&call, [&strided, &k, &v], &MergedMask::default(), None).contains("adjacent"));
        let masks = [
            MergedMask { bias: Some(zeros(&[2, 4, 3, 4])), ..MergedMask::default() },
            MergedMask { keep: Some(zeros(&[2, 3, 5])), ..MergedMask::default() },
            MergedMask { segments: Some([zeros(&[2, 3]), zeros(&[1, 5])]), ..MergedMask::default() },
            MergedMask { slopes: Some(vec![0.0; 3]), ..MergedMask::default() },
            MergedMask { lengths: Some(vec![1]), ..MergedMask::default() },
            MergedMask { padding: Some(vec![1; 3]), ..MergedMask::default() },
            MergedMask { query_ends: Some(vec![1; 2]), ..MergedMask::default() },
            MergedMask { starts: Some(vec![]), ..MergedMask::default() },
        ];
        for mask in masks {
            assert_ne!(error(&call, qkv, &mask, None), "", "{mask:?}");
        }
    }

    #[test]
    fn sequences_of_a_ragged_batch_cover_its_tokens() {
        let call = call(AttnShape { b: 3, h: 4, s_q: 4, s_kv: 4 });
        let [q, k, v] = [zeros(&[1, 7, 4, 8]), zeros(&[1, 7, 2, 8]), zeros(&[1, 7, 2, 6])];
        let of = |offsets: &[usize]| error(&call, [&q, &k, &v], &MergedMask::default(), Some(offsets));
        assert_eq!(of(&[0, 3, 3, 7]), "");
        let refused: [&[usize]; 8] = [
            &[],
            &[0, 7],
            &[0, 3, 3, 6],
            &[1, 3, 3, 7],
            &[0, 3, 2, 7],
            &[0, 1, 2, 7],
            &[0, 3, usize::MAX, 7],
            &[0, 1 << 32, 3, 7],
        ];
        for offsets in refused {
            assert!(of(offsets).starts_with("the ragged batch"), "{offsets:?}: {}", of(offsets));
        }
    }
}
