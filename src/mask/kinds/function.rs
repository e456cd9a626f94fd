//! Masks that are functions of a query and a key, as in FlexAttention ([Dong 2024](https://arxiv.org/abs/2412.05496)).
//!
//! The CPU kernel asks the function tile by tile, and no matrix of the mask is made. Which blocks of keys a query sees
//! whole, in part or not at all is found out once for a size of calls, and kept with the mask: of the first the kernel
//! does not ask the function, and the last it skips. Other backends read the mask as a tensor.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_attention_kernels::{KEY_BLOCK, PairRule, Seen};
use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result, panic_message};
use crate::mask::dense::DenseMask;
use crate::mask::lowered::LoweredMask;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm};
use crate::tensor::{element_count, zeros};

/// Whether query `q` of head `h` in sequence `b` sees key `k`, for consecutive keys at a time.
pub(crate) trait PairFunction: Send + Sync {
    /// Calls `hide` with the index of each hidden one of `count` keys from `from` on.
    fn for_each_hidden(&self, place: [usize; 3], from: usize, count: usize, hide: &mut dyn FnMut(usize));
}

impl<F: Fn(usize, usize, usize, usize) -> bool + Send + Sync> PairFunction for F {
    fn for_each_hidden(&self, [b, h, q]: [usize; 3], from: usize, count: usize, hide: &mut dyn FnMut(usize)) {
        for i in 0..count {
            if !self(b, h, q, from + i) {
                hide(i);
            }
        }
    }
}

/// A mask that is a function.
#[derive(Clone)]
pub(crate) struct Function {
    sees: Arc<dyn PairFunction>,
    /// Whether all sequences and heads have the same mask.
    is_pattern: bool,
    summary: KeptSummary,
}

impl Function {
    pub(crate) fn new(
        sees: impl Fn(usize, usize, usize, usize) -> bool + Send + Sync + 'static,
        is_pattern: bool,
    ) -> Self {
        Self { sees: Arc::new(sees), is_pattern, summary: KeptSummary::default() }
    }

    /// The numbers of sequences and heads whose masks differ. Those of a pattern do if sequences start elsewhere.
    fn planes(&self, call: &MaskCall) -> [usize; 2] {
        let AttnShape { b, h, .. } = call.shape;
        let alike = !call.has_starts || call.starts.iter().all(|start| *start == call.starts[0]);
        match (self.is_pattern, alike) {
            (false, _) => [b, h],
            (true, true) => [1, 1],
            (true, false) => [b, 1],
        }
    }

    fn in_call(&self, call: &MaskCall) -> FunctionCall {
        let planes = self.planes(call);
        let start = |b: usize| if call.has_starts { call.start(b) } else { 0 };
        FunctionCall { sees: self.sees.clone(), shape: call.shape, planes, starts: (0..planes[0]).map(start).collect() }
    }
}

/// A function in one call.
pub(crate) struct FunctionCall {
    pub sees: Arc<dyn PairFunction>,
    pub shape: AttnShape,
    /// The numbers of sequences and heads whose masks differ.
    pub planes: [usize; 2],
    /// The position of query 0 of each of these sequences: that after the tokens in a cache, or 0.
    pub starts: Vec<i64>,
}

impl FunctionCall {
    /// The place that the function is asked for. Where all sequences or heads are alike, it is the first one.
    fn place(&self, [b, h, i]: [usize; 3]) -> [usize; 3] {
        let [sequences, heads] = self.planes;
        let b = b.min(sequences - 1);
        [b, h.min(heads - 1), usize::try_from(self.starts[b] + i as i64).unwrap_or(0)]
    }

    /// Calls `row` with each query's row of `width` elements and its sequence, head and position. A panic of the
    /// function of the caller is an error.
    fn for_each_row<T>(&self, width: usize, rows: &mut [T], mut row: impl FnMut([usize; 3], &mut [T])) -> Result<()> {
        let each = |(i, elements): (usize, &mut [T])| {
            let (plane, i) = (i / self.shape.s_q, i % self.shape.s_q);
            let (b, h) = (plane / self.planes[1], plane % self.planes[1]);
            row(self.place([b, h, i]), elements);
        };
        let all = || rows.chunks_mut(width.max(1)).enumerate().for_each(each);
        catch_unwind(AssertUnwindSafe(all)).map_err(|panic| panicked(panic_message(&*panic)))
    }

    /// How much each query sees of each block of keys.
    fn summarize(&self) -> Result<Summary> {
        let Self { shape, planes: [sequences, heads], .. } = *self;
        let blocks = shape.s_kv.div_ceil(KEY_BLOCK);
        let size = element_count("the blocks of a mask", &[sequences, heads, shape.s_q, blocks])?;
        let mut states: Vec<u8> = zeros("the blocks of a mask", size)?;
        self.for_each_row(blocks, &mut states, |place, row| {
            for (block, state) in row.iter_mut().enumerate() {
                let (from, mut hidden) = (block * KEY_BLOCK, 0);
                let count = KEY_BLOCK.min(shape.s_kv - from);
                self.sees.for_each_hidden(place, from, count, &mut |_| hidden += 1);
                *state = if hidden == 0 { 2 } else { u8::from(hidden < count) };
            }
        })?;
        let seen = states.into_iter().map(|state| [Seen::None, Seen::Some, Seen::All][usize::from(state)]).collect();
        Ok(Summary { shape, starts: self.starts.clone(), seen, blocks })
    }
}

/// Queries are counted as in the call.
impl PairFunction for FunctionCall {
    fn for_each_hidden(&self, place: [usize; 3], from: usize, count: usize, hide: &mut dyn FnMut(usize)) {
        self.sees.for_each_hidden(self.place(place), from, count, hide);
    }
}

/// How much each query of a call sees of each block of keys.
#[derive(Debug)]
struct Summary {
    shape: AttnShape,
    starts: Vec<i64>,
    /// `(sequences, heads, s_q, blocks)` of those sequences and heads whose masks differ.
    seen: Vec<Seen>,
    blocks: usize,
}

/// The last summary of a mask, with the call that it is for: clones of the mask share it.
#[derive(Clone, Default)]
pub(crate) struct KeptSummary(Arc<Mutex<Option<Arc<Summary>>>>);

impl KeptSummary {
    /// The rule of a function for the CPU kernel. Its summary is the last one, if that is for such a call.
    pub(crate) fn rule(&self, call: FunctionCall) -> Result<FunctionRule> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = kept().as_ref().filter(|last| last.shape == call.shape && last.starts == call.starts).cloned();
        let summary = match last {
            Some(summary) => summary,
            None => {
                let summary = Arc::new(call.summarize()?);
                *kept() = Some(summary.clone());
                summary
            }
        };
        Ok(FunctionRule { call, summary, failure: OnceLock::new() })
    }
}

fn panicked(message: &str) -> Error {
    Error::value("the function of a mask", format!("a panic: {message}"), "true or false for each query and key")
}

impl MaskTerm for Function {
    fn check(&self, shape: AttnShape) -> Result<()> {
        element_count("a mask", &shape.dims())?;
        Ok(())
    }

    fn dense(&self, call: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        let dims @ [.., s_kv] = self.dense_dims(call);
        let mut keep: Vec<u8> = zeros("a mask", element_count("a mask", &dims)?)?;
        self.in_call(call).for_each_row(s_kv, &mut keep, |place, row| {
            row.fill(1);
            self.sees.for_each_hidden(place, 0, s_kv, &mut |key| row[key] = 0);
        })?;
        Ok(DenseMask::keep(Tensor::from_vec(keep, &dims, device)?))
    }

    fn dense_dims(&self, call: &MaskCall) -> [usize; 4] {
        let [sequences, heads] = self.planes(call);
        [sequences, heads, call.shape.s_q, call.shape.s_kv]
    }

    fn lower(&self, lowered: &mut LoweredMask, call: &MaskCall, device: &Device) -> Result<()> {
        if lowered.is_for_cpu_kernel {
            lowered.functions.push(self.summary.rule(self.in_call(call))?);
        } else {
            lowered.keep.extend(self.dense(call, DType::F32, device)?.keep);
        }
        Ok(())
    }

    fn pair_function(&self, call: &MaskCall) -> Option<Arc<dyn PairFunction>> {
        Some(Arc::new(self.in_call(call)))
    }

    fn is_function(&self) -> bool {
        true
    }

    fn counts_tokens(&self) -> bool {
        true
    }

    fn adds_to_scores(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        if self.is_pattern { "a function of (q, k)" } else { "a function of (b, h, q, k)" }.to_string()
    }
}

/// A function as the CPU kernel asks it in one call.
pub(crate) struct FunctionRule {
    call: FunctionCall,
    summary: Arc<Summary>,
    /// The message of a panic of the function.
    failure: OnceLock<String>,
}

impl FunctionRule {
    /// The error of a function that has panicked in the kernel.
    pub(crate) fn failed(&self) -> Result<()> {
        self.failure.get().map_or(Ok(()), |message| Err(panicked(message)))
    }
}

impl fmt::Debug for FunctionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a function")
    }
}

impl PairRule for FunctionRule {
    fn seen(&self, (b, h, i): (usize, usize, usize), block: usize) -> Seen {
        let Summary { shape, seen, blocks, .. } = &*self.summary;
        let ([b, h, _], [_, heads]) = (self.call.place([b, h, i]), self.call.planes);
        seen[((b * heads + h) * shape.s_q + i) * blocks + block]
    }

    fn hide(&self, (b, h, i): (usize, usize, usize), from: usize, scores: &mut [f32]) {
        let count = scores.len();
        let hide = || {
            let mut hide = |key: usize| scores[key] = f32::NEG_INFINITY;
            self.call.for_each_hidden([b, h, i], from, count, &mut hide);
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(hide)) {
            _ = self.failure.set(panic_message(&*panic).to_string());
        }
    }
}
