//! Hidden states as f32 rows in reused buffers: ragged batches on the CPU.

use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::ragged::Buffers;
use candle_attention::{AttentionMask, MultiHeadAttention, Result};

use candle_attention_kernels::{Activation, AlignedVec, Isa, Team};
use candle_core::{DType, Tensor};

use crate::model::embedding_gate::EmbeddingGate;
use crate::model::feed_forward::FeedForward;
use crate::model::mlp::Rows;
use crate::model::short_convolution::ShortConvolution;
use crate::model::stream::Stream;

/// Hidden states `(tokens, width)` of a ragged batch, changed in place: each step is a single pass over the rows, and
/// all layers share their buffers. Inference only.
pub(crate) struct RowStream<'a> {
    pub hidden: AlignedVec<f32>,
    isa: Isa,
    team: Team<'a>,
    /// Where each sequence starts, and where the last one ends.
    offsets: &'a [usize],
    /// The norm of `hidden`, if that is the input of the next sub-layer.
    normalized: AlignedVec<f32>,
    input_is_normalized: bool,
    /// Memory of the last branch, for the next one.
    branch: AlignedVec<f32>,
    buffers: Buffers,
    /// The embeddings of the tokens, in families that read them again.
    embeddings: AlignedVec<f32>,
}

impl<'a> RowStream<'a> {
    pub fn new(team: Team<'a>, hidden: AlignedVec<f32>, offsets: &'a [usize]) -> Result<Self> {
        Ok(Self {
            hidden,
            isa: Isa::detect()?,
            team,
            offsets,
            normalized: AlignedVec::default(),
            input_is_normalized: false,
            branch: AlignedVec::default(),
            buffers: Buffers::default(),
            embeddings: AlignedVec::default(),
        })
    }

    /// Memory for a branch of `size` values.
    fn new_branch(&mut self, size: usize) -> Result<AlignedVec<f32>> {
        let mut branch = std::mem::take(&mut self.branch);
        branch.resize("hidden states", size)?;
        Ok(branch)
    }

    fn tokens(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// The input of the next sub-layer.
    fn input(&self) -> &[f32] {
        if self.input_is_normalized { &self.normalized } else { &self.hidden }
    }

    fn rows<'b>(&'b self, xs: &'b [f32]) -> Rows<'b> {
        Rows { team: self.team, xs, tokens: self.tokens(), scratch: &self.buffers.scratch }
    }
}

impl Stream for RowStream<'_> {
    type Branch = AlignedVec<f32>;

    fn set_input(&mut self, norm: Option<&Norm>) -> Result<()> {
        self.input_is_normalized = norm.is_some();
        let Some(norm) = norm else { return Ok(()) };
        self.normalized.resize("hidden states", self.hidden.len())?;
        self.normalized.copy_from_slice(&self.hidden);
        norm.forward_rows(self.isa, self.team, &mut self.normalized, None)
    }

    fn attend(&mut self, _: usize, attention: &MultiHeadAttention, mask: &AttentionMask) -> Result<AlignedVec<f32>> {
        let mut branch = self.new_branch(self.tokens() * attention.config().resolved_output_size())?;
        attention.attend_rows(self.team, self.input(), self.offsets, mask, &self.buffers, &mut branch)?;
        Ok(branch)
    }

    fn convolve(&mut self, convolution: &ShortConvolution) -> Result<AlignedVec<f32>> {
        let mut branch = self.new_branch(self.hidden.len())?;
        convolution.forward_rows(self.rows(self.input()), self.offsets, &mut branch)?;
        Ok(branch)
    }

    fn feed_forward(&mut self, feed_forward: &FeedForward) -> Result<AlignedVec<f32>> {
        let mut branch = self.new_branch(self.hidden.len())?;
        feed_forward.forward_rows(self.rows(self.input()), &mut branch)?;
        Ok(branch)
    }

    fn keep_embeddings(&mut self) -> Result<()> {
        self.embeddings.resize("hidden states", self.hidden.len())?;
        self.embeddings.copy_from_slice(&self.hidden);
        Ok(())
    }

    fn gate_by_embeddings(&mut self, gate: &EmbeddingGate) -> Result<AlignedVec<f32>> {
        let mut branch = self.new_branch(self.hidden.len())?;
        gate.forward_rows(self.isa, self.rows(&self.hidden), &self.embeddings, &mut branch)?;
        Ok(branch)
    }

    fn scale(&mut self, factor: &Tensor) -> Result<()> {
        let factor = factor.to_dtype(DType::F32)?.to_vec1::<f32>()?[0];
        self.hidden.iter_mut().for_each(|x| *x *= factor);
        Ok(())
    }

    fn normalize_branch(&mut self, mut branch: AlignedVec<f32>, norm: &Norm) -> Result<AlignedVec<f32>> {
        norm.forward_rows(self.isa, self.team, &mut branch, None)?;
        Ok(branch)
    }

    fn normalize_sum(&mut self, mut branch: AlignedVec<f32>, norm: &Norm) -> Result<AlignedVec<f32>> {
        norm.forward_rows(self.isa, self.team, &mut branch, Some(&self.hidden))?;
        Ok(branch)
    }

    fn add(&mut self, branch: AlignedVec<f32>, output: Option<&Norm>, input: Option<&Norm>) -> Result<()> {
        match output {
            Some(norm) => norm.forward_rows(self.isa, self.team, &mut self.hidden, Some(&branch))?,
            None => self.hidden.iter_mut().zip(&*branch).for_each(|(x, y)| *x += y),
        }
        self.branch = branch;
        self.set_input(input)
    }

    fn normalize(&mut self, norm: &Norm) -> Result<()> {
        norm.forward_rows(self.isa, self.team, &mut self.hidden, None)
    }

    fn drop_out(&mut self) -> Result<()> {
        Ok(())
    }

    fn project(&mut self, projection: &Linear) -> Result<()> {
        let (tokens, projection) = (self.tokens(), projection.packed()?);
        let mut projected = AlignedVec::zeros("hidden states", tokens * projection.out_features())?;
        projection.multiply_into(self.team, &self.hidden, tokens, Activation::Identity, &mut projected)?;
        self.hidden = projected;
        Ok(())
    }
}
