//! Two masks of which one has to show a key.

use std::ops::Range;
use std::sync::Arc;

use candle_attention_kernels::Lengths;
use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::attention_mask::AttentionMask;
use crate::mask::dense::DenseMask;
use crate::mask::kinds::{FunctionCall, KeptSummary, PairFunction};
use crate::mask::lowered::{LoweredMask, TermStructure};
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm, Part};
use crate::tensor::{check_allocation, element_count, with_slice};

/// A key is visible if one of both masks shows it. Neither adds to scores.
#[derive(Clone)]
pub(crate) struct Or {
    masks: [AttentionMask; 2],
}

impl Or {
    pub(crate) fn new(masks: [AttentionMask; 2]) -> Result<Self> {
        match masks.iter().find(|mask| mask.adds_to_scores()) {
            None => Ok(Self::from_hiding(masks)),
            Some(mask) => {
                let expected = "one that only hides keys; a bias is joined to the whole mask, by `and`";
                Err(Error::value("a mask under `or`", mask, expected))
            }
        }
    }

    /// The `or` of masks that only hide keys.
    pub(crate) fn from_hiding(masks: [AttentionMask; 2]) -> Self {
        Self { masks }
    }
}

impl MaskTerm for Or {
    fn check(&self, shape: AttnShape) -> Result<()> {
        self.masks.iter().try_for_each(|mask| mask.check(shape))
    }

    fn dense(&self, call: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        let [a, b] = &self.masks;
        // A mask that shows every key has no tensor.
        let Some(a) = a.dense_for(call, dtype, device)?.keep else { return Ok(DenseMask::default()) };
        let Some(b) = b.dense_for(call, dtype, device)?.keep else { return Ok(DenseMask::default()) };
        Ok(DenseMask::keep(a.broadcast_maximum(&b)?))
    }

    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        let [a, b] = self.masks.each_ref().map(|mask| mask.dense_dims(call));
        std::array::from_fn(|i| a[i].max(b[i]))
    }

    /// Lengths, if both masks show the first keys of a query: a prefix LM needs no tensor of booleans. A function, if
    /// there are functions among rules. Otherwise that tensor, for the CPU with the range of keys around what a query
    /// sees.
    fn lower(&self, lowered: &mut LoweredMask, call: &MaskCall, device: &Device) -> Result<()> {
        let AttnShape { b, s_q, .. } = call.shape;
        check_allocation::<usize>("a mask", element_count("a mask", &[b, s_q])?)?;
        let [one, other] = &self.masks;
        let end = |b, i| Some(first_keys(one, call, b, i)?.max(first_keys(other, call, b, i)?));
        let ends = |b| (0..s_q).map(|i| end(b, i)).collect::<Option<Vec<_>>>();
        if let Some(ends) = (0..b).map(ends).collect::<Option<Vec<_>>>() {
            lowered.structure.lengths.push(Lengths::PerQuery(ends));
            return Ok(());
        }
        if lowered.is_for_cpu_kernel
            && let Some(sees) = self.pair_function(call)
        {
            let [sequences, heads, ..] = self.dense_dims(call);
            let starts = vec![0; sequences];
            let call = FunctionCall { sees, shape: call.shape, planes: [sequences, heads], starts };
            // Not kept: which keys the parts show depends on where the sequences of this call stand.
            lowered.functions.push(KeptSummary::default().rule(call)?);
            return Ok(());
        }
        // One byte for each element of both masks and of the result.
        check_allocation::<[u8; 3]>("a mask", element_count("a mask", &self.dense_dims(call))?)?;
        let Some(keep) = self.dense(call, DType::F32, device)?.keep else { return Ok(()) };
        if device.is_cpu() {
            let (left, ends) = bounds(&keep, call)?;
            lowered.structure.narrow_window(Some(left), None);
            lowered.structure.lengths.push(Lengths::PerQuery(ends));
        }
        lowered.keep.push(keep);
        Ok(())
    }

    fn select(&self, part: &Part, call: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        let mut masks = self.masks.clone();
        for term in masks.iter_mut().flat_map(|mask| &mut mask.terms).filter(|term| !term.is_rule()) {
            let Some(selected) = term.select(part, call)? else { return Ok(None) };
            *term = selected;
        }
        Ok(Some(Arc::new(Self::from_hiding(masks))))
    }

    fn depends_on_position(&self) -> bool {
        self.masks.iter().flat_map(|mask| &mask.terms).any(|term| term.depends_on_position())
    }

    /// A function, if one of the terms is one, and none is a tensor.
    fn pair_function(&self, call: &MaskCall) -> Option<Arc<dyn PairFunction>> {
        let mut is_function = false;
        let mut functions = |mask: &AttentionMask| {
            let function = |term: &Arc<dyn MaskTerm>| {
                let function = term.pair_function(call);
                is_function |= function.is_some();
                function.or_else(|| rule_function(&**term, call))
            };
            mask.terms.iter().map(function).collect::<Option<Vec<_>>>()
        };
        let [one, other] = self.masks.each_ref().map(&mut functions);
        let either = EitherFunction([one?, other?]);
        is_function.then(|| Arc::new(either) as Arc<dyn PairFunction>)
    }

    fn counts_tokens(&self) -> bool {
        self.masks.iter().any(AttentionMask::counts_tokens)
    }

    fn adds_to_scores(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        let [a, b] = &self.masks;
        format!("({a} or {b})")
    }
}

/// The keys that all functions of one of both lists show.
struct EitherFunction([Vec<Arc<dyn PairFunction>>; 2]);

/// The keys that are asked for at a time.
const KEYS: usize = 256;

impl PairFunction for EitherFunction {
    fn for_each_hidden(&self, place: [usize; 3], from: usize, count: usize, hide: &mut dyn FnMut(usize)) {
        for start in (0..count).step_by(KEYS) {
            let count = KEYS.min(count - start);
            let hidden = self.0.each_ref().map(|all| {
                let mut hidden = [false; KEYS];
                let mut mark = |key: usize| hidden[key] = true;
                all.iter().for_each(|each| each.for_each_hidden(place, from + start, count, &mut mark));
                hidden
            });
            (0..count).filter(|&key| hidden[0][key] && hidden[1][key]).for_each(|key| hide(start + key));
        }
    }
}

/// The keys of a range, for each query of each sequence.
struct RangeFunction<F>(F);

impl<F: Fn(usize, usize) -> Range<usize> + Send + Sync> PairFunction for RangeFunction<F> {
    fn for_each_hidden(&self, [b, _, i]: [usize; 3], from: usize, count: usize, hide: &mut dyn FnMut(usize)) {
        let seen = (self.0)(b, i);
        (0..count).filter(|key| !seen.contains(&(from + key))).for_each(hide);
    }
}

/// The function of a window or of lengths.
fn rule_function(term: &dyn MaskTerm, call: &MaskCall) -> Option<Arc<dyn PairFunction>> {
    match term.structure()? {
        TermStructure::Window(window) => {
            let (starts, s_kv) = (call.starts.to_vec(), call.shape.s_kv);
            let start = move |b: usize| starts[if starts.len() == 1 { 0 } else { b }];
            let range = move |b: usize, i: usize| window.visible(start(b) + i as i64, s_kv);
            Some(Arc::new(RangeFunction(range)))
        }
        TermStructure::Lengths(lengths) => {
            let lengths = lengths.clone();
            Some(Arc::new(RangeFunction(move |b: usize, i: usize| 0..lengths.visible(b, i))))
        }
        TermStructure::Distances { .. } => None,
    }
}

/// The number of keys that query `i` of sequence `b` sees, if by rules alone these are the first ones.
fn first_keys(mask: &AttentionMask, call: &MaskCall, b: usize, i: usize) -> Option<usize> {
    mask.terms.iter().try_fold(call.shape.s_kv, |end, term| match term.structure()? {
        TermStructure::Window(window) if window.left.is_none() => {
            Some(window.visible(call.start(b) + i as i64, end).end)
        }
        TermStructure::Lengths(lengths) => Some(end.min(lengths.visible(b, i))),
        _ => None,
    })
}

/// The most keys before its own position that a query sees under `keep`, and for each query the keys up to its last
/// visible one: what is outside, kernels skip.
fn bounds(keep: &Tensor, call: &MaskCall) -> Result<(usize, Vec<Vec<usize>>)> {
    let AttnShape { b, s_q, s_kv, .. } = call.shape;
    let (sequences, heads, queries, keys) = keep.dims4()?;
    with_slice(keep, |keep: &[u8]| {
        let mut left = 0;
        let mut end = |b: usize, i: usize| {
            let position = call.start(b) + i as i64;
            let (b, i) = (if sequences == 1 { 0 } else { b }, if queries == 1 { 0 } else { i });
            let rows = (0..heads).map(|h| &keep[((b * heads + h) * queries + i) * keys..][..keys]);
            rows.fold(0, |end, row| match row.iter().position(|keep| *keep != 0) {
                Some(first) => {
                    left = left.max(position - first as i64);
                    // One element stands for all keys.
                    let hidden = row.iter().rev().take_while(|keep| **keep == 0).count();
                    end.max(if keys == 1 { s_kv } else { keys - hidden })
                }
                None => end,
            })
        };
        let ends = (0..b).map(|b| (0..s_q).map(|i| end(b, i)).collect()).collect();
        (left as usize, ends)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: AttnShape = AttnShape { b: 2, h: 1, s_q: 6, s_kv: 6 };

    #[test]
    fn a_prefix_lm_needs_no_tensor() {
        let lowered = AttentionMask::prefix_lm(&[3, 0]).lower(SHAPE, &Device::Cpu).unwrap();
        assert!(lowered.keep.is_empty());
        let ends = vec![vec![3, 3, 3, 4, 5, 6], vec![1, 2, 3, 4, 5, 6]];
        assert_eq!(lowered.structure.lengths, [Lengths::PerQuery(ends)]);
    }

    #[test]
    fn functions_among_rules_need_no_tensor() {
        let function = AttentionMask::from_fn(|_, h, q, k| (q + k) % 2 == h);
        let inner = AttentionMask::lengths(&[3, 6]).or(function.clone()).unwrap();
        let mask = AttentionMask::causal().or(inner).unwrap();
        let lowered = mask.lower(SHAPE, &Device::Cpu).unwrap();
        assert_eq!((lowered.keep.len(), lowered.functions.len()), (0, 1));
        let keep = Tensor::ones((2, 1, 6, 6), DType::U8, &Device::Cpu).unwrap();
        let mask = AttentionMask::keep(&keep).unwrap().or(function).unwrap();
        assert_eq!(mask.lower(SHAPE, &Device::Cpu).unwrap().keep.len(), 1);
    }

    /// Also a window inside of the `or` stays where it stands.
    #[test]
    fn cutting_queries_cuts_the_tensor() {
        let ids = Tensor::new(&[[0u32, 7, 7, 7, 1, 2], [0, 1, 2, 3, 3, 4]], &Device::Cpu).unwrap();
        let segments = AttentionMask::segments(&ids, &ids).unwrap().and(AttentionMask::lengths(&[3, 6]));
        let mask = AttentionMask::window(Some(1), Some(0)).or(segments).unwrap();
        let keep = |mask: &AttentionMask, s_q: usize| {
            mask.dense(AttnShape { s_q, ..SHAPE }, 0, DType::F32, &Device::Cpu).unwrap().keep.unwrap()
        };
        let want = keep(&mask, 6).narrow(2, 2, 3).unwrap().flatten_all().unwrap();
        let got = keep(&mask.select_queries(2..5, SHAPE).unwrap(), 3).flatten_all().unwrap();
        assert_eq!(got.to_vec1::<u8>().unwrap(), want.to_vec1::<u8>().unwrap());
    }

    #[test]
    fn keys_outside_of_what_a_query_sees_are_skipped() {
        let ids = Tensor::new(&[[0u32, 7, 7, 7, 1, 2], [0, 1, 2, 3, 3, 4]], &Device::Cpu).unwrap();
        let segments = AttentionMask::segments(&ids, &ids).unwrap();
        let mask = AttentionMask::window(Some(1), Some(0)).or(segments).unwrap();
        let lowered = mask.lower(SHAPE, &Device::Cpu).unwrap();
        assert_eq!((lowered.keep.len(), lowered.structure.left, lowered.structure.right), (1, Some(2), None));
        let ends = vec![vec![1, 4, 4, 4, 5, 6], vec![1, 2, 3, 5, 5, 6]];
        assert_eq!(lowered.structure.lengths, [Lengths::PerQuery(ends)]);
    }
}
