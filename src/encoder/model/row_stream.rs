//! Hidden states as f32 rows in reused buffers: ragged batches on the CPU.

use crate::attention::MultiHeadAttention;
use crate::attention::ragged::Buffers as AttentionBuffers;
use crate::encoder::model::feed_forward::{FeedForward, FeedForwardBuffers};
use crate::encoder::model::stream::Stream;
use crate::error::Result;
use crate::kernels::cpu::Isa;
use crate::mask::AttentionMask;
use crate::norm::Norm;
use crate::ops::{Activation, Linear};

/// Hidden states `(tokens, width)` of a ragged batch, changed in place: each step is a single pass over the rows, and
/// all layers share their buffers. Inference only.
pub(crate) struct RowStream<'a> {
    pub hidden: Vec<f32>,
    isa: Isa,
    /// Where each sequence starts, and where the last one ends.
    offsets: &'a [usize],
    /// The norm of `hidden`, if that is the input of the next sub-layer.
    normalized: Vec<f32>,
    input_is_normalized: bool,
    /// Memory of the last branch, for the next one.
    branch: Vec<f32>,
    attention: AttentionBuffers,
    feed_forward: FeedForwardBuffers,
}

impl<'a> RowStream<'a> {
    pub fn new(hidden: Vec<f32>, offsets: &'a [usize]) -> Result<Self> {
        Ok(Self {
            hidden,
            isa: Isa::detect()?,
            offsets,
            normalized: Vec::new(),
            input_is_normalized: false,
            branch: Vec::new(),
            attention: AttentionBuffers::default(),
            feed_forward: FeedForwardBuffers::default(),
        })
    }

    fn tokens(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }
}

impl Stream for RowStream<'_> {
    type Branch = Vec<f32>;

    fn set_input(&mut self, norm: Option<&Norm>) -> Result<()> {
        self.input_is_normalized = norm.is_some();
        let Some(norm) = norm else { return Ok(()) };
        self.normalized.clear();
        self.normalized.extend_from_slice(&self.hidden);
        norm.forward_rows(self.isa, &mut self.normalized, None)
    }

    fn attend(&mut self, _: usize, attention: &MultiHeadAttention, mask: &AttentionMask) -> Result<Vec<f32>> {
        let mut branch = std::mem::take(&mut self.branch);
        let input = if self.input_is_normalized { &self.normalized } else { &self.hidden };
        attention.attend_ragged_cpu(input, self.offsets, mask, &mut self.attention, &mut branch)?;
        Ok(branch)
    }

    fn feed_forward(&mut self, feed_forward: &FeedForward) -> Result<Vec<f32>> {
        let (tokens, mut branch) = (self.tokens(), std::mem::take(&mut self.branch));
        let input = if self.input_is_normalized { &self.normalized } else { &self.hidden };
        feed_forward.forward_rows(input, tokens, &mut self.feed_forward, &mut branch)?;
        Ok(branch)
    }

    fn normalize_branch(&mut self, mut branch: Vec<f32>, norm: &Norm) -> Result<Vec<f32>> {
        norm.forward_rows(self.isa, &mut branch, None)?;
        Ok(branch)
    }

    fn normalize_sum(&mut self, mut branch: Vec<f32>, norm: &Norm) -> Result<Vec<f32>> {
        norm.forward_rows(self.isa, &mut branch, Some(&self.hidden))?;
        Ok(branch)
    }

    fn add(&mut self, branch: Vec<f32>, output: Option<&Norm>, input: Option<&Norm>) -> Result<()> {
        match output {
            Some(norm) => norm.forward_rows(self.isa, &mut self.hidden, Some(&branch))?,
            None => self.hidden.iter_mut().zip(&branch).for_each(|(x, y)| *x += y),
        }
        self.branch = branch;
        self.set_input(input)
    }

    fn normalize(&mut self, norm: &Norm) -> Result<()> {
        norm.forward_rows(self.isa, &mut self.hidden, None)
    }

    fn drop_out(&mut self) -> Result<()> {
        Ok(())
    }

    fn project(&mut self, projection: &Linear) -> Result<()> {
        let mut projected = Vec::new();
        projection.packed()?.multiply(&self.hidden, self.tokens(), Activation::Identity, &mut projected)?;
        self.hidden = projected;
        Ok(())
    }
}
