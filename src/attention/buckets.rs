//! Ragged batches through padding, which is right for every layer and every option and slower than the other ways.

use candle_core::{DType, Tensor};

use crate::attention::call::OpenCall;
use crate::attention::transform::map_distinct;
use crate::attention::{AttentionInputs, AttentionOptions, AttentionStats, MultiHeadAttention, ObserveOptions};
use crate::ensure;
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::ragged::{Bucket, offsets};
use crate::sdpa::AttentionOutput;
use crate::tensor::check_tensor_memory;

impl OpenCall<'_> {
    /// Self-attention within each sequence of inputs `(tokens, query_size)` → `(tokens, output_size)`. Differentiable.
    ///
    /// Sequences of like length are padded together; with options that belong to a padded batch, all of them.
    pub(super) fn run_buckets(&self, lengths: &[usize]) -> Result<AttentionOutput> {
        let Self { layer, xs: [xs, ..], options, .. } = self;
        let (tokens, size) = (xs.dim(0)?, layer.config.resolved_output_size());
        if tokens == 0 {
            let zeros = |dims: &[usize]| Tensor::zeros(dims, xs.dtype(), xs.device());
            let weights = [lengths.len(), layer.config.num_attention_heads, 0, 0];
            let attention_weights = options.return_attention_weights.then(|| zeros(&weights)).transpose()?;
            return Ok(AttentionOutput { output: zeros(&[0, size])?, attention_weights });
        }
        let buckets = if options.need_padding(layer.config.dropout) {
            vec![Bucket::group_all(lengths)]
        } else {
            Bucket::group_like_lengths(lengths)
        };
        let padding = Padding::new(&self.xs, lengths, &buckets)?;
        let (mut outputs, mut attention_weights) = (Vec::with_capacity(buckets.len()), None);
        for bucket in &buckets {
            let ([query, key, value], positions) = padding.pad(bucket, options)?;
            let options = AttentionOptions { positions: positions.as_ref(), ..**options };
            // Padded queries are removed below; they show in the attention weights alone.
            let mask = self.mask.clone().and(if options.return_attention_weights || layer.rotates_for_length() {
                AttentionMask::padding(&padding.lengths_of(bucket))
            } else {
                AttentionMask::lengths(&padding.lengths_of(bucket))
            });
            let padded = AttentionInputs::new(&query, &key, &value, mask);
            let AttentionOutput { output, attention_weights: weights } = layer.open_given(&padded, &options)?.run()?;
            outputs.push(output.reshape((bucket.padded_tokens(), size))?);
            attention_weights = weights;
        }
        let output = Tensor::cat(&outputs, 0)?.index_select(&padding.places()?, 0)?;
        Ok(AttentionOutput { output, attention_weights })
    }

    /// [`observe`](Self::observe) of a ragged batch: that of all sequences padded to the longest one.
    pub(super) fn observe_padded(&self, lengths: &[usize], what: &ObserveOptions) -> Result<AttentionStats> {
        if self.xs[0].dim(0)? == 0 {
            return Err(Error::value("a ragged batch to observe", "without tokens", "at least one token"));
        }
        let all = [Bucket::group_all(lengths)];
        let padding = Padding::new(&self.xs, lengths, &all)?;
        let ([query, key, value], positions) = padding.pad(&all[0], self.options)?;
        let options = AttentionOptions { positions: positions.as_ref(), ..*self.options };
        let mask = self.mask.clone().and(AttentionMask::padding(lengths));
        let padded = AttentionInputs::new(&query, &key, &value, mask);
        let stats = self.layer.open_given(&padded, &options)?.observe(what)?;
        let output = stats.output.flatten(0, 1)?.index_select(&padding.places()?, 0)?;
        Ok(AttentionStats { output, ..stats })
    }
}

impl MultiHeadAttention {
    /// Whether a padded batch needs [`AttentionMask::padding`], because keys are rotated for the length of their
    /// sequence. For other layers, where nobody looks at padding as queries, [`AttentionMask::lengths`] hides it as
    /// keys in a mask that is smaller by a factor of `s`.
    pub fn rotates_for_length(&self) -> bool {
        let scheme = self.config.position.scheme();
        scheme.rotation_class(0) != scheme.rotation_class(usize::MAX)
    }
}

/// A ragged batch that is padded by buckets.
struct Padding<'a> {
    /// Inputs of queries, keys and values `(tokens + 1, width)`: padding is one more token, of zeros.
    with_zero: [Tensor; 3],
    lengths: &'a [usize],
    offsets: Vec<usize>,
    buckets: &'a [Bucket],
}

impl<'a> Padding<'a> {
    fn new(inputs: &[Tensor; 3], lengths: &'a [usize], buckets: &'a [Bucket]) -> Result<Self> {
        let [xs, key, value] = inputs.each_ref();
        let (tokens, width) = xs.dims2()?;
        // Many empty sequences beside a long one are a small ragged batch and may be a large padded one.
        let padded = buckets.iter().fold(0usize, |sum, bucket| sum.saturating_add(bucket.padded_tokens()));
        if u32::try_from(padded).is_err() {
            let longest = lengths.iter().max().copied().unwrap_or(0);
            let found = format!("{} sequences of up to {longest} tokens", lengths.len());
            return Err(Error::value("a ragged batch that has to be padded", found, "less than 2^32 padded tokens"));
        }
        check_tensor_memory("the number of tokens to pad", tokens, &[tokens + 1, width], xs.dtype(), xs.device())?;
        let zero = Tensor::zeros((1, width), xs.dtype(), xs.device())?;
        let with_zero = map_distinct([xs, key, value], |xs| Ok(Tensor::cat(&[xs, &zero], 0)?))?;
        Ok(Self { with_zero, lengths, offsets: offsets(lengths), buckets })
    }

    fn lengths_of(&self, bucket: &Bucket) -> Vec<usize> {
        bucket.sequences.iter().map(|&sequence| self.lengths[sequence]).collect()
    }

    /// The inputs of a bucket `(b, s, width)`, and their positions, if the call gives some.
    fn pad(&self, bucket: &Bucket, options: &AttentionOptions) -> Result<([Tensor; 3], Option<Tensor>)> {
        let query = &self.with_zero[0];
        let (tokens, width) = (query.dim(0)? - 1, query.dim(1)?);
        let (b, s) = (bucket.sequences.len(), bucket.longest);
        let (dtype, device) = (query.dtype(), query.device());
        check_tensor_memory("the number of sequences to pad", b, &[b, s, width], dtype, device)?;
        // The token at each padded place.
        let mut to_padded = Vec::with_capacity(b * s);
        for &sequence in &bucket.sequences {
            let (start, length) = (self.offsets[sequence], self.lengths[sequence]);
            to_padded.extend((0..s).map(|i| if i < length { (start + i) as u32 } else { tokens as u32 }));
        }
        let to_padded = Tensor::new(to_padded, device)?;
        let positions = match options.positions {
            Some(positions) => Some(padded_positions(positions, tokens, &to_padded)?.reshape(((), b, s))?),
            None => None,
        };
        let all = self.with_zero.each_ref();
        let padded = map_distinct(all, |xs| Ok(xs.index_select(&to_padded, 0)?.reshape((b, s, width))?))?;
        Ok((padded, positions))
    }

    /// Where the tokens of the ragged batch are among those of the buckets.
    fn places(&self) -> Result<Tensor> {
        Ok(Tensor::new(Bucket::places(self.buckets, self.lengths), self.with_zero[0].device())?)
    }
}

/// Positions `(tokens)` or `(axes, tokens)` of a ragged batch → `(axes, places)`, where padding stands at 0.
fn padded_positions(positions: &Tensor, tokens: usize, to_padded: &Tensor) -> Result<Tensor> {
    let axes = match *positions.dims() {
        [found] if found == tokens => 1,
        [axes, found] if found == tokens => axes,
        ref dims => return Err(Error::shape("positions", dims, format!("[{tokens}] or [3, {tokens}]"))),
    };
    ensure!(positions.dtype().is_int(), Error::dtype("positions", positions.dtype(), "an integer dtype"));
    let positions = positions.to_device(to_padded.device())?.to_dtype(DType::I64)?.reshape((axes, tokens))?;
    Ok(positions.pad_with_zeros(1, 0, 1)?.contiguous()?.index_select(to_padded, 1)?)
}
