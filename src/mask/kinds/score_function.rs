//! Functions of scores, as in FlexAttention ([Dong 2024](https://arxiv.org/abs/2412.05496)).
//!
//! The CPU kernel calls the function tile by tile, in its forward and its backward pass, and stores no scores. The
//! eager backend calls it for all scores, which it brings to the CPU; no other backend has such functions.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use candle_attention_kernels::ScoreRule;
use candle_core::{DType, Device};

use crate::error::{Error, Result, panic_message};
use crate::mask::dense::DenseMask;
use crate::mask::lowered::LoweredMask;
use crate::mask::term::{MaskCall, MaskTerm, Part};

/// A function of the score of query `q` of head `h` in sequence `b` with a key, for consecutive keys at a time.
trait RowFunction: Send + Sync {
    /// Replaces the scores with the keys from `from` on.
    fn replace(&self, place: [usize; 3], from: usize, scores: &mut [f32]);
}

impl<F: Fn(f32, usize, usize, usize, usize) -> f32 + Send + Sync> RowFunction for F {
    fn replace(&self, [b, h, q]: [usize; 3], from: usize, scores: &mut [f32]) {
        for (score, key) in scores.iter_mut().zip(from..) {
            *score = self(*score, b, h, q, key);
        }
    }
}

/// A function that scores go through.
#[derive(Clone)]
pub(crate) struct ScoreFunction {
    function: Arc<dyn RowFunction>,
    derivative: Option<Arc<dyn RowFunction>>,
    /// The position of query 0 of each sequence, or of all, if the queries are some of those of another call.
    starts: Option<Vec<i64>>,
    /// The heads of that call.
    heads: Option<Vec<usize>>,
}

impl ScoreFunction {
    pub(crate) fn new(function: impl Fn(f32, usize, usize, usize, usize) -> f32 + Send + Sync + 'static) -> Self {
        Self { function: Arc::new(function), derivative: None, starts: None, heads: None }
    }

    pub(crate) fn with_derivative(
        self,
        derivative: impl Fn(f32, usize, usize, usize, usize) -> f32 + Send + Sync + 'static,
    ) -> Self {
        Self { derivative: Some(Arc::new(derivative)), ..self }
    }

    pub(crate) fn has_derivative(&self) -> bool {
        self.derivative.is_some()
    }

    /// The position of query 0 of each sequence, or of all: that after the tokens in a cache, or 0.
    fn starts(&self, call: &MaskCall) -> Vec<i64> {
        match &self.starts {
            Some(starts) => starts.clone(),
            None if call.has_starts => call.starts.to_vec(),
            None => vec![0],
        }
    }

    /// The function in one call.
    pub(crate) fn in_call(&self, call: &MaskCall) -> ScoreFunctionCall {
        ScoreFunctionCall { function: self.clone(), starts: self.starts(call), failure: OnceLock::new() }
    }
}

impl MaskTerm for ScoreFunction {
    /// # Errors
    /// Always: backends that read masks as tensors do not run such calls.
    fn dense(&self, _: &MaskCall, _: DType, _: &Device) -> Result<DenseMask> {
        Err(Error::value("the mask of a backend without functions of scores", self.describe(), "one without them"))
    }

    fn dense_dims(&self, _: &MaskCall) -> [usize; 4] {
        [1; 4]
    }

    fn lower(&self, lowered: &mut LoweredMask, call: &MaskCall, device: &Device) -> Result<()> {
        if !lowered.is_for_cpu_kernel {
            return self.dense(call, DType::F32, device).map(|_| ());
        }
        lowered.score_functions.push(self.in_call(call));
        Ok(())
    }

    fn select(&self, part: &Part, call: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        let mut selected = self.clone();
        match part {
            Part::Queries(queries) => {
                let starts = self.starts(call).into_iter().map(|start| start + queries.start as i64);
                selected.starts = Some(starts.collect());
            }
            Part::Heads(heads) => {
                let head = |h: &usize| self.heads.as_ref().map_or(*h, |heads| heads[*h]);
                selected.heads = Some(heads.iter().map(head).collect());
            }
        }
        Ok(Some(Arc::new(selected)))
    }

    fn is_function(&self) -> bool {
        true
    }

    fn counts_tokens(&self) -> bool {
        true
    }

    fn score_function(&self) -> Option<&ScoreFunction> {
        Some(self)
    }

    fn describe(&self) -> String {
        "a function of (score, b, h, q, k)".to_string()
    }
}

/// A function of scores as a backend calls it in one call.
pub(crate) struct ScoreFunctionCall {
    function: ScoreFunction,
    starts: Vec<i64>,
    /// The message of a panic of the function.
    failure: OnceLock<String>,
}

impl ScoreFunctionCall {
    /// The error of a function that has panicked.
    pub(crate) fn failed(&self) -> Result<()> {
        let Some(message) = self.failure.get() else { return Ok(()) };
        Err(Error::value("the function of a score", format!("a panic: {message}"), "a score for each query and key"))
    }

    fn replace(&self, function: &dyn RowFunction, (b, h, i): (usize, usize, usize), from: usize, scores: &mut [f32]) {
        let start = self.starts[if self.starts.len() == 1 { 0 } else { b }];
        let q = usize::try_from(start + i as i64).unwrap_or(0);
        let h = self.function.heads.as_ref().map_or(h, |heads| heads[h]);
        let replace = || function.replace([b, h, q], from, scores);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(replace)) {
            _ = self.failure.set(panic_message(&*panic).to_string());
        }
    }
}

impl fmt::Debug for ScoreFunctionCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function.describe())
    }
}

impl ScoreRule for ScoreFunctionCall {
    fn apply(&self, place: (usize, usize, usize), from: usize, scores: &mut [f32]) {
        self.replace(&*self.function.function, place, from, scores);
    }

    fn differentiate(&self, place: (usize, usize, usize), from: usize, scores: &mut [f32]) {
        match &self.function.derivative {
            Some(derivative) => self.replace(&**derivative, place, from, scores),
            // Such a call is refused before.
            None => scores.fill(f32::NAN),
        }
    }
}
