//! Hidden states as a tensor: padded batches on every device, ragged batches on GPUs.

use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::ragged::Buffers;
use candle_attention::{
    AttentionInputs, AttentionMask, AttentionOptions, AttentionStats, Error, MultiHeadAttention, Result,
};
use candle_core::{Module, Tensor};
use candle_nn::ops::dropout;

use crate::model::embedding_gate::EmbeddingGate;
use crate::model::feed_forward::FeedForward;
use crate::model::options::ForwardOptions;
use crate::model::short_convolution::ShortConvolution;
use crate::model::stream::Stream;

/// Hidden states `(b, s, width)`: differentiable, and without waiting for the device. A ragged batch is
/// `(1, tokens, width)`.
pub(crate) struct TensorStream<'a> {
    pub hidden: Tensor,
    /// The attention statistics observed so far, with the index of their layer.
    pub observed: Vec<(usize, AttentionStats)>,
    /// The input of the next sub-layer, if it is not `hidden`.
    input: Option<Tensor>,
    /// The embeddings of the tokens, in families that read them again.
    embeddings: Option<Tensor>,
    batch: Batch<'a>,
    /// Probability of dropping an element; 0 outside training.
    dropout: f64,
}

/// How the tokens of a batch are stored.
pub(crate) enum Batch<'a> {
    /// `lengths` are those of the sequences, if they are not what the mask says.
    Padded {
        mask: &'a AttentionMask,
        options: &'a ForwardOptions<'a>,
        lengths: Option<&'a [usize]>,
    },
    Ragged {
        lengths: &'a [usize],
        buffers: Buffers,
    },
}

impl<'a> Batch<'a> {
    /// Sequences of these lengths one after another; what their positions mean is computed once for all layers.
    pub fn ragged(lengths: &'a [usize]) -> Self {
        Self::Ragged { lengths, buffers: Buffers::default() }
    }
}

impl<'a> TensorStream<'a> {
    /// `dropout` is applied only to a padded batch whose options ask for training.
    pub fn new(hidden: Tensor, batch: Batch<'a>, dropout: f64) -> Self {
        let train = matches!(&batch, Batch::Padded { options, .. } if options.train);
        let dropout = if train { dropout } else { 0.0 };
        Self { hidden, observed: Vec::new(), input: None, embeddings: None, batch, dropout }
    }

    /// The input is read once: without this reference its memory is free as soon as the sub-layer is done with it.
    fn take_input(&mut self) -> Tensor {
        self.input.take().unwrap_or_else(|| self.hidden.clone())
    }

    fn drop_out_branch(&self, branch: Tensor) -> Result<Tensor> {
        if self.dropout == 0.0 { Ok(branch) } else { Ok(dropout(&branch, self.dropout as f32)?) }
    }
}

impl Stream for TensorStream<'_> {
    type Branch = Tensor;

    fn set_input(&mut self, norm: Option<&Norm>) -> Result<()> {
        self.input = norm.map(|norm| norm.forward(&self.hidden)).transpose()?;
        Ok(())
    }

    fn attend(&mut self, index: usize, attention: &MultiHeadAttention, mask: &AttentionMask) -> Result<Tensor> {
        let xs = self.take_input();
        let branch = match &self.batch {
            Batch::Padded { mask: batch_mask, options, .. } => {
                let mask = (*batch_mask).clone().and(mask.clone());
                let inputs = AttentionInputs::self_attention(&xs, mask);
                let layer_options = options.for_layer(index);
                match options.observed_in(index) {
                    Some(what) => {
                        let observed = attention.observe(&inputs, &layer_options, what)?;
                        let output = observed.output.clone();
                        self.observed.push((index, observed));
                        output
                    }
                    None => attention.attend_with(&inputs, &layer_options)?.output,
                }
            }
            Batch::Ragged { lengths, buffers } => {
                let xs = xs.squeeze(0)?;
                let inputs = AttentionInputs::ragged(&xs, lengths, mask).with_buffers(buffers);
                attention.attend_with(&inputs, &AttentionOptions::default())?.output.unsqueeze(0)?
            }
        };
        self.drop_out_branch(branch)
    }

    fn convolve(&mut self, convolution: &ShortConvolution) -> Result<Tensor> {
        let xs = self.take_input();
        let (b, s, _) = xs.dims3()?;
        let all = vec![s; b];
        let lengths = match &self.batch {
            Batch::Padded { lengths: Some(lengths), .. } | Batch::Ragged { lengths, .. } => lengths,
            Batch::Padded { mask, .. } if mask.is_full() => all.as_slice(),
            Batch::Padded { mask, .. } => {
                mask.sequence_lengths().filter(|lengths| lengths.len() == b).ok_or_else(|| {
                    let expected = format!("the lengths of {b} sequences alone, which short convolutions need to know");
                    Error::value("the mask", mask, expected)
                })?
            }
        };
        self.drop_out_branch(convolution.forward(&xs, lengths)?)
    }

    fn feed_forward(&mut self, feed_forward: &FeedForward) -> Result<Tensor> {
        let branch = feed_forward.forward(&self.take_input())?;
        self.drop_out_branch(branch)
    }

    fn keep_embeddings(&mut self) -> Result<()> {
        self.embeddings = Some(self.hidden.clone());
        Ok(())
    }

    fn gate_by_embeddings(&mut self, gate: &EmbeddingGate) -> Result<Tensor> {
        let embeddings = self.embeddings.as_ref().unwrap_or(&self.hidden);
        self.drop_out_branch(gate.forward(&self.hidden, embeddings)?)
    }

    fn scale(&mut self, factor: &Tensor) -> Result<()> {
        self.hidden = self.hidden.broadcast_mul(factor)?;
        Ok(())
    }

    fn normalize_branch(&mut self, branch: Tensor, norm: &Norm) -> Result<Tensor> {
        Ok(norm.forward(&branch)?)
    }

    fn normalize_sum(&mut self, branch: Tensor, norm: &Norm) -> Result<Tensor> {
        Ok(norm.forward(&(&self.hidden + branch)?)?)
    }

    fn add(&mut self, branch: Tensor, output: Option<&Norm>, input: Option<&Norm>) -> Result<()> {
        let sum = (&self.hidden + branch)?;
        self.hidden = output.map_or(Ok(sum.clone()), |output| output.forward(&sum))?;
        self.set_input(input)
    }

    fn normalize(&mut self, norm: &Norm) -> Result<()> {
        self.hidden = norm.forward(&self.hidden)?;
        Ok(())
    }

    fn drop_out(&mut self) -> Result<()> {
        if self.dropout > 0.0 {
            self.hidden = dropout(&self.hidden, self.dropout as f32)?;
        }
        Ok(())
    }

    fn project(&mut self, projection: &Linear) -> Result<()> {
        self.hidden = projection.forward_in_dtype(&self.hidden, self.hidden.dtype())?;
        Ok(())
    }
}
