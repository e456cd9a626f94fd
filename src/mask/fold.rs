//! Masks with at most one part of each kind, as the GPU's kernel reads them.

use candle_core::{Device, Tensor};

use crate::error::Result;
use crate::kernels::cpu::Lengths;
use crate::mask::AttentionMask;
use crate::mask::check::AttnShape;
use crate::mask::dense::distances;

/// What a mask says, each kind once. Numbers are the host's, tensors the device's.
#[derive(Debug, Default)]
pub(crate) struct Folded {
    /// Keys of each row.
    pub lengths: Option<Vec<i32>>,
    /// Tokens of each row, as queries and as keys.
    pub padding: Option<Vec<i32>>,
    /// Keys that each query sees, `(b, s_q)`.
    pub query_ends: Option<Vec<i32>>,
    /// The key at which query 0 of each row stands, if not at `s_kv - s_q`.
    pub starts: Option<Vec<i32>>,
    /// Keys seen before and after a query's own position; -1 is no limit.
    pub left: i32,
    pub right: i32,
    /// A slope a head: that times the distance is taken from the scores.
    pub slopes: Option<Vec<f32>>,
    pub symmetric: bool,
    /// `(b, s_q)` and `(b, s_kv)`, i64.
    pub segments: Option<[Tensor; 2]>,
    /// u8, 4-D, broadcasts to `(b, h, s_q, s_kv)`; 0 = hidden.
    pub keep: Option<Tensor>,
    /// f32, likewise; at or below the lowest finite f32 = hidden.
    pub bias: Option<Tensor>,
}

impl AttentionMask {
    pub(crate) fn folded(&self, call: AttnShape, device: &Device) -> Result<Folded> {
        let lowered = self.lower(device)?;
        let structure = lowered.structure;
        let limit = |limit: Option<usize>| limit.map_or(-1, |limit| i32::try_from(limit).unwrap_or(i32::MAX));
        let mut folded = Folded {
            starts: structure.starts.map(|starts| starts.into_iter().map(|start| start as i32).collect()),
            left: limit(structure.left),
            right: limit(structure.right),
            ..Folded::default()
        };
        for lengths in structure.lengths {
            match lengths {
                Lengths::PerSequence(rows) => shortest(&mut folded.lengths, &rows),
                Lengths::Padding(rows) => shortest(&mut folded.padding, &rows),
                Lengths::PerQuery(rows) => shortest(&mut folded.query_ends, &rows.concat()),
            }
        }
        for tensor in lowered.bias {
            folded.add_bias(tensor)?;
        }
        for more in structure.distances {
            match &mut folded.slopes {
                None => (folded.slopes, folded.symmetric) = (Some(more.slopes), more.symmetric),
                Some(slopes) if folded.symmetric == more.symmetric => {
                    slopes.iter_mut().zip(&more.slopes).for_each(|(slope, more)| *slope += more);
                }
                Some(_) => {
                    let slopes: Vec<f64> = more.slopes.iter().map(|slope| f64::from(*slope)).collect();
                    let bias = distances(&slopes, more.symmetric, call, &self.query_starts(call))?;
                    folded.add_bias(bias.to_dtype(candle_core::DType::F32)?.to_device(device)?)?;
                }
            }
        }
        for tensor in lowered.keep {
            folded.and_keep(tensor)?;
        }
        for [queries, keys] in lowered.segments {
            match &folded.segments {
                None => folded.segments = Some([queries, keys]),
                Some(_) => {
                    let queries = queries.unsqueeze(1)?.unsqueeze(3)?;
                    folded.and_keep(queries.broadcast_eq(&keys.unsqueeze(1)?.unsqueeze(1)?)?)?;
                }
            }
        }
        Ok(folded)
    }
}

impl Folded {
    fn and_keep(&mut self, more: Tensor) -> Result<()> {
        self.keep = Some(match self.keep.take() {
            // Booleans, which are 0 or 1.
            Some(keep) => keep.broadcast_mul(&more)?,
            None => more,
        });
        Ok(())
    }

    fn add_bias(&mut self, more: Tensor) -> Result<()> {
        // What hides in one of them hides in the sum.
        let hiding = |bias: &Tensor| {
            let hidden = Tensor::full(f32::NEG_INFINITY, bias.shape(), bias.device())?;
            bias.le(f32::MIN)?.where_cond(&hidden, bias)
        };
        self.bias = Some(match self.bias.take() {
            Some(bias) => hiding(&bias)?.broadcast_add(&hiding(&more)?)?,
            None => more,
        });
        Ok(())
    }
}

fn shortest(all: &mut Option<Vec<i32>>, more: &[usize]) {
    // No tensor has so many tokens that one could be lost.
    let more = more.iter().map(|&length| i32::try_from(length).unwrap_or(i32::MAX));
    match all {
        Some(all) => all.iter_mut().zip(more).for_each(|(length, more)| *length = (*length).min(more)),
        None => *all = Some(more.collect()),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::mask::Part;

    /// Scores of 0 under what `folded` says, as `dense` would give them.
    fn scores(folded: &Folded, call: AttnShape) -> Vec<f32> {
        let AttnShape { b, h, s_q, s_kv } = call;
        let shape = (b, h, s_q, s_kv);
        let read = |tensor: &Option<Tensor>| {
            let wide = |t: &Tensor| t.broadcast_as(shape)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
            tensor.as_ref().map(|t| wide(t).unwrap())
        };
        let (keep, bias) = (read(&folded.keep), read(&folded.bias));
        let ids = folded.segments.as_ref().map(|ids| ids.each_ref().map(|ids| ids.to_vec2::<i64>().unwrap()));
        let mut all = Vec::new();
        for (b, head, i, j) in
            (0..b * h * s_q * s_kv).map(|n| (n / (h * s_q * s_kv), n / (s_q * s_kv) % h, n / s_kv % s_q, n % s_kv))
        {
            let position = i as i32 + folded.starts.as_ref().map_or(s_kv as i32 - s_q as i32, |starts| starts[b]);
            let key = j as i32;
            let seen = folded.lengths.as_ref().is_none_or(|rows| key < rows[b])
                && folded.padding.as_ref().is_none_or(|rows| key < rows[b] && (i as i32) < rows[b])
                && folded.query_ends.as_ref().is_none_or(|ends| key < ends[b * s_q + i])
                && (folded.left < 0 || key >= position - folded.left)
                && (folded.right < 0 || key <= position + folded.right)
                && keep.as_ref().is_none_or(|keep| keep[all.len()] != 0.0)
                && ids.as_ref().is_none_or(|[queries, keys]| queries[b][i] == keys[b][j]);
            let distance = (position - key) as f32;
            let distance = if folded.symmetric { distance.abs() } else { distance };
            let bias = bias.as_ref().map_or(0.0, |bias| bias[all.len()]);
            let slope = folded.slopes.as_ref().map_or(0.0, |slopes| slopes[head]);
            all.push(if seen && bias > f32::MIN { bias - slope * distance } else { f32::NEG_INFINITY });
        }
        all
    }

    #[test]
    fn parts_of_one_kind_become_one() {
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
            AttentionMask::causal().and(AttentionMask::window(Some(1), None)).and(AttentionMask::starts(vec![0, 2])),
            AttentionMask::keep(&keep).unwrap().and(AttentionMask::exclude(&keep.narrow(0, 1, 1).unwrap()).unwrap()),
            AttentionMask::additive(&bias).unwrap().and(AttentionMask::additive(&(&half * 0.5).unwrap()).unwrap()),
            segments([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]]).and(segments([[5, 5, 5, 6, 6], [5, 5, 6, 5, 6]])),
            AttentionMask::distances(vec![0.5, 1.0], false)
                .and(AttentionMask::distances(vec![1.0, 0.0], false))
                .and(AttentionMask::distances(vec![2.0, 3.0], true)),
        ];
        for mask in masks {
            let folded = scores(&mask.folded(call, &device).unwrap(), call);
            let dense = mask.dense(call, 0, DType::F32, &device).unwrap();
            let of = |tensor: Option<Tensor>, without: f32| match tensor {
                Some(t) => t.broadcast_as((2, 2, 3, 5)).unwrap().to_dtype(DType::F32).unwrap().flatten_all().unwrap(),
                None => Tensor::full(without, 60, &device).unwrap(),
            };
            let (keep, bias) = (of(dense.keep, 1.0).to_vec1::<f32>().unwrap(), of(dense.bias, 0.0).to_vec1().unwrap());
            let want: Vec<f32> =
                keep.iter().zip(bias).map(|(keep, bias)| if *keep == 0.0 { f32::NEG_INFINITY } else { bias }).collect();
            assert_eq!(folded, want, "{mask}");
        }
    }

    #[test]
    fn no_mask_stays_in_integers_that_gpus_cannot_compare() {
        let call = AttnShape { b: 2, h: 1, s_q: 3, s_kv: 3 };
        let device = Device::Cpu;
        let mask = Tensor::new(&[[3i64, 0, 3], [0, 1, 1]], &device).unwrap();
        let masks = |dtype: DType| {
            let mask = mask.to_dtype(dtype).unwrap();
            let masks =
                [AttentionMask::keep(&mask), AttentionMask::exclude(&mask), AttentionMask::segments(&mask, &mask)];
            masks.map(Result::unwrap)
        };
        for dtype in [DType::I16, DType::I32] {
            for (mask, want) in masks(dtype).into_iter().zip(masks(DType::U8)) {
                let got = scores(&mask.folded(call, &device).unwrap(), call);
                assert_eq!(got, scores(&want.folded(call, &device).unwrap(), call), "{mask} in {dtype:?}");
                let [Part::Keep(kept) | Part::Drop(kept) | Part::Segments { queries: kept, .. }] = &mask.parts[..]
                else {
                    panic!("{mask}");
                };
                assert_eq!(kept.dtype(), DType::I64);
            }
        }
    }
}
