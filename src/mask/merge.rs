//! The merged mask of the CUDA kernels: at most one rule and one tensor of each kind.

use candle_attention_kernels::Lengths;
use candle_core::{DType, Device, Tensor};

use crate::error::Result;
use crate::kernels::cuda::to_i32_positions;
use crate::mask::attention_mask::AttentionMask;
use crate::mask::dense::DenseMask;
use crate::mask::kinds::Distances;
use crate::mask::lowered::LoweredMask;
use crate::mask::shape::AttnShape;
use crate::mask::term::MaskTerm;

/// A lowered mask with at most one rule and one tensor of each kind, as the CUDA kernels take it: rules as vectors on
/// the host, tensors on the device.
#[derive(Debug, Default)]
pub(crate) struct MergedMask {
    /// `(b)`: the keys of each sequence.
    pub lengths: Option<Vec<i32>>,
    /// `(b)`: the tokens of each sequence, as queries and as keys.
    pub padding: Option<Vec<i32>>,
    /// `(b, s_q)`: the keys that each query sees.
    pub query_ends: Option<Vec<i32>>,
    /// `(b)`: the position of query 0 among the keys; `None` is `s_kv - s_q`.
    pub starts: Option<Vec<i32>>,
    /// The number of visible keys before a query's own position; -1 is no limit.
    pub left: i32,
    /// The number of visible keys after a query's own position; -1 is no limit.
    pub right: i32,
    /// `(h)`: the slope that, times the distance, is subtracted from the scores.
    pub slopes: Option<Vec<f32>>,
    /// Whether distances count alike before and after the query.
    pub symmetric: bool,
    /// Segment ids of queries `(b, s_q)` and keys `(b, s_kv)`, i64.
    pub segments: Option<[Tensor; 2]>,
    /// A u8 tensor that broadcasts to `(b, h, s_q, s_kv)`, 4-D; 0 = hidden.
    pub keep: Option<Tensor>,
    /// An f32 tensor that broadcasts to `(b, h, s_q, s_kv)`, 4-D; a value at or below the lowest finite f32 hides the
    /// key.
    pub bias: Option<Tensor>,
}

impl AttentionMask {
    /// The mask for the CUDA kernels, its tensors on `device`.
    pub(crate) fn merge(&self, shape: AttnShape, device: &Device) -> Result<MergedMask> {
        let LoweredMask { structure, segments, keep, bias, .. } = self.lower_for(shape, device, false)?;
        let limit = |limit: Option<usize>| limit.map_or(-1, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
        let mut merged = MergedMask {
            starts: structure.starts.map(|starts| to_i32_positions("where a chunk starts", &starts)).transpose()?,
            left: limit(structure.left),
            right: limit(structure.right),
            ..MergedMask::default()
        };
        for lengths in structure.lengths {
            match lengths {
                Lengths::PerSequence(lengths) => keep_shortest(&mut merged.lengths, &lengths),
                Lengths::Padding(lengths) => keep_shortest(&mut merged.padding, &lengths),
                Lengths::PerQuery(lengths) => keep_shortest(&mut merged.query_ends, &lengths.concat()),
            }
        }
        bias.into_iter().try_for_each(|bias| merged.add_bias(bias))?;
        for more in structure.distances {
            match &mut merged.slopes {
                None => (merged.slopes, merged.symmetric) = (Some(more.slopes), more.symmetric),
                Some(slopes) if merged.symmetric == more.symmetric => {
                    slopes.iter_mut().zip(&more.slopes).for_each(|(slope, more)| *slope += more);
                }
                Some(_) => {
                    let slopes = more.slopes.iter().map(|slope| f64::from(*slope)).collect();
                    let distances = Distances { slopes, symmetric: more.symmetric };
                    let DenseMask { bias, .. } = distances.dense(&self.call(shape), DType::F32, device)?;
                    bias.into_iter().try_for_each(|bias| merged.add_bias(bias))?;
                }
            }
        }
        keep.into_iter().try_for_each(|keep| merged.and_keep(keep))?;
        for [queries, keys] in segments {
            match &merged.segments {
                None => merged.segments = Some([queries, keys]),
                Some(_) => {
                    let queries = queries.unsqueeze(1)?.unsqueeze(3)?; // (b, 1, s_q, 1)
                    merged.and_keep(queries.broadcast_eq(&keys.unsqueeze(1)?.unsqueeze(1)?)?)?;
                }
            }
        }
        Ok(merged)
    }
}

impl MergedMask {
    fn and_keep(&mut self, more: Tensor) -> Result<()> {
        self.keep = Some(match self.keep.take() {
            // Both are 0 or 1.
            Some(keep) => keep.broadcast_mul(&more)?,
            None => more,
        });
        Ok(())
    }

    fn add_bias(&mut self, more: Tensor) -> Result<()> {
        // A key that one of the two hides has to stay hidden in the sum.
        let hide = |bias: &Tensor| {
            let hidden = Tensor::full(f32::NEG_INFINITY, bias.shape(), bias.device())?;
            bias.le(f32::MIN)?.where_cond(&hidden, bias)
        };
        self.bias = Some(match self.bias.take() {
            Some(bias) => hide(&bias)?.broadcast_add(&hide(&more)?)?,
            None => more,
        });
        Ok(())
    }
}

/// The shorter of both lengths for each sequence or query.
fn keep_shortest(shortest: &mut Option<Vec<i32>>, more: &[usize]) {
    // No tensor has more tokens than an i32 can count.
    let more = more.iter().map(|&length| i32::try_from(length).unwrap_or(i32::MAX));
    match shortest {
        Some(shortest) => shortest.iter_mut().zip(more).for_each(|(length, more)| *length = (*length).min(more)),
        None => *shortest = Some(more.collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mask::kinds::Stripes;

    /// Scores of 0 under a merged mask.
    fn scores(merged: &MergedMask, call: AttnShape) -> Vec<f32> {
        let AttnShape { b, h, s_q, s_kv } = call;
        let shape = (b, h, s_q, s_kv);
        let read = |tensor: &Option<Tensor>| {
            let wide = |t: &Tensor| t.broadcast_as(shape)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
            tensor.as_ref().map(|t| wide(t).unwrap())
        };
        let (keep, bias) = (read(&merged.keep), read(&merged.bias));
        let ids = merged.segments.as_ref().map(|ids| ids.each_ref().map(|ids| ids.to_vec2::<i64>().unwrap()));
        let mut all = Vec::new();
        for (b, head, i, j) in
            (0..b * h * s_q * s_kv).map(|n| (n / (h * s_q * s_kv), n / (s_q * s_kv) % h, n / s_kv % s_q, n % s_kv))
        {
            let position = i as i32 + merged.starts.as_ref().map_or(s_kv as i32 - s_q as i32, |starts| starts[b]);
            let key = j as i32;
            let seen = merged.lengths.as_ref().is_none_or(|rows| key < rows[b])
                && merged.padding.as_ref().is_none_or(|rows| key < rows[b] && (i as i32) < rows[b])
                && merged.query_ends.as_ref().is_none_or(|ends| key < ends[b * s_q + i])
                && (merged.left < 0 || key >= position - merged.left)
                && (merged.right < 0 || key <= position + merged.right)
                && keep.as_ref().is_none_or(|keep| keep[all.len()] != 0.0)
                && ids.as_ref().is_none_or(|[queries, keys]| queries[b][i] == keys[b][j]);
            let distance = (position - key) as f32;
            let distance = if merged.symmetric { distance.abs() } else { distance };
            let bias = bias.as_ref().map_or(0.0, |bias| bias[all.len()]);
            let slope = merged.slopes.as_ref().map_or(0.0, |slopes| slopes[head]);
            all.push(if seen && bias > f32::MIN { bias - slope * distance } else { f32::NEG_INFINITY });
        }
        all
    }

    #[test]
    fn terms_of_one_kind_become_one() {
        let call = AttnShape { b: 2, h: 2, s_q: 3, s_kv: 5 };
        let device = Device::Cpu;
        let ids = |ids: [[u32; 5]; 2], s: usize| Tensor::new(&ids, &device).unwrap().narrow(1, 0, s).unwrap();
        let segments = |a: [[u32; 5]; 2]| AttentionMask::segments(&ids(a, 3), &ids(a, 5)).unwrap();
        let bias = Tensor::new(&[[f32::MIN, 1.0, 2.0, f32::NEG_INFINITY, 3.0]], &device).unwrap();
        let half = bias.to_dtype(DType::F16).unwrap();
        let keep = Tensor::new(&[[1u8, 1, 0, 1, 1], [0, 1, 1, 1, 1]], &device).unwrap();
        let masks = [
            AttentionMask::full(),
            AttentionMask::lengths(&[5, 2]).and(AttentionMask::lengths(&[1, 4])).and(AttentionMask::padding(&[3, 3])),
            AttentionMask::padding(&[3, 1]).and(AttentionMask::query_lengths(&[[1usize, 5, 3], [4, 0, 2]])),
            AttentionMask::causal().and(AttentionMask::window(Some(1), None)).with_query_starts(vec![0, 2]),
            AttentionMask::keep_keys(&keep)
                .unwrap()
                .and(AttentionMask::exclude_keys(&keep.narrow(0, 1, 1).unwrap()).unwrap()),
            AttentionMask::additive_keys(&bias)
                .unwrap()
                .and(AttentionMask::additive_keys(&(&half * 0.5).unwrap()).unwrap()),
            segments([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]]).and(segments([[5, 5, 5, 6, 6], [5, 5, 6, 5, 6]])),
            AttentionMask::prefix_lm(&[4, 2]).and(segments([[5, 5, 5, 6, 6]; 2]).or(AttentionMask::causal()).unwrap()),
            AttentionMask::distances(vec![0.5, 1.0], false)
                .and(AttentionMask::distances(vec![1.0, 0.0], false))
                .and(AttentionMask::distances(vec![2.0, 3.0], true)),
            AttentionMask::from_term(Stripes { heads: 2 }).and(AttentionMask::causal()).with_query_starts(vec![0, 2]),
            AttentionMask::from_term(Stripes { heads: 2 }).and(AttentionMask::additive_keys(&bias).unwrap()),
        ];
        for mask in masks {
            let merged = scores(&mask.merge(call, &device).unwrap(), call);
            let dense = mask.dense(call, 0, DType::F32, &device).unwrap();
            let of = |tensor: Option<Tensor>, without: f32| match tensor {
                Some(t) => t.broadcast_as((2, 2, 3, 5)).unwrap().to_dtype(DType::F32).unwrap().flatten_all().unwrap(),
                None => Tensor::full(without, 60, &device).unwrap(),
            };
            let (keep, bias) = (of(dense.keep, 1.0).to_vec1::<f32>().unwrap(), of(dense.bias, 0.0).to_vec1().unwrap());
            let want: Vec<f32> =
                keep.iter().zip(bias).map(|(keep, bias)| if *keep == 0.0 { f32::NEG_INFINITY } else { bias }).collect();
            assert_eq!(merged, want, "{mask}");
        }
    }

    #[test]
    fn integers_that_gpus_cannot_compare_mean_the_same() {
        let call = AttnShape { b: 2, h: 1, s_q: 3, s_kv: 3 };
        let device = Device::Cpu;
        let mask = Tensor::new(&[[3i64, 0, 3], [0, 1, 1]], &device).unwrap();
        let masks = |dtype: DType| {
            let mask = mask.to_dtype(dtype).unwrap();
            let masks = [
                AttentionMask::keep_keys(&mask),
                AttentionMask::exclude_keys(&mask),
                AttentionMask::segments(&mask, &mask),
            ];
            masks.map(Result::unwrap)
        };
        for dtype in [DType::I16, DType::I32] {
            for (mask, want) in masks(dtype).into_iter().zip(masks(DType::U8)) {
                let got = scores(&mask.merge(call, &device).unwrap(), call);
                assert_eq!(got, scores(&want.merge(call, &device).unwrap(), call), "{mask} in {dtype:?}");
            }
        }
    }

    #[test]
    fn what_one_bias_hides_stays_hidden() {
        let call = AttnShape { b: 1, h: 1, s_q: 1, s_kv: 2 };
        let bias =
            |biases: [f32; 2]| AttentionMask::additive(&Tensor::new(&[[[biases]]], &Device::Cpu).unwrap()).unwrap();
        let (hides, raises) = (bias([f32::MIN, 1.0]), bias([1e38, 2.0]));
        for mask in [hides.clone().and(raises.clone()), raises.and(hides)] {
            assert_eq!(scores(&mask.merge(call, &Device::Cpu).unwrap(), call), [f32::NEG_INFINITY, 3.0]);
        }
    }
}
