//! A block of the encoder: self-attention and feed-forward, each added to what it read.

use candle_attention::Result;
use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::norm::Norm;
use candle_attention::{map_fields, share_fields};

use crate::families::model::BlockNorms;
use crate::model::embedding_gate::{EmbeddingGate, EmbeddingProjections};
use crate::model::feed_forward::FeedForward;
use crate::model::mixer::{Mixer, Stack};
use crate::model::stream::Stream;

/// A transformer block: `hidden += attention(hidden)`, then `hidden += feed_forward(hidden)`, with norms where the
/// family has them.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    pub mixer: Mixer,
    attention_norms: Norms,
    pub(super) feed_forward: FeedForward,
    feed_forward_norms: Norms,
    pub(super) embedding_gate: Option<EmbeddingGate>,
}

/// The norms around a sub-layer; most families have one of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Norms {
    /// The norm of what the sub-layer reads: `hidden + f(norm(hidden))`, a pre-norm block
    /// ([Xiong 2020](https://arxiv.org/abs/2002.04745)).
    pub input: Option<Norm>,
    /// The norm of the input plus the branch, which is then added to the input once more:
    /// `hidden + norm(hidden + f(hidden))`.
    pub inner: Option<Norm>,
    /// The norm of what the sub-layer returns, before it is added: `hidden + norm(f(hidden))`.
    pub branch: Option<Norm>,
    /// The norm of the sum: `norm(hidden + f(hidden))`, a post-norm block as in the original transformer.
    pub output: Option<Norm>,
}

map_fields!(Norms { input, inner, branch, output });

map_fields!(Block { mixer, attention_norms, feed_forward, feed_forward_norms, embedding_gate });
share_fields!(Block { mixer, feed_forward, embedding_gate });

impl Norms {
    /// Applies the norms that come before the branch is added.
    fn normalize<S: Stream>(&self, stream: &mut S, mut branch: S::Branch) -> Result<S::Branch> {
        if let Some(norm) = &self.inner {
            branch = stream.normalize_sum(branch, norm)?;
        }
        if let Some(norm) = &self.branch {
            branch = stream.normalize_branch(branch, norm)?;
        }
        Ok(branch)
    }
}

impl Block {
    /// Reads block `index` from `source`. `gates` are the projections of embeddings.
    pub fn load(stack: Stack, source: &AnySource, index: usize, gates: Option<&EmbeddingProjections>) -> Result<Self> {
        let Stack { config, row, .. } = stack;
        let norm = |name: &str| config.norm(row, config.hidden_size, &source.child(name));
        let (mut attention_norms, mut feed_forward_norms) = (Norms::default(), Norms::default());
        attention_norms.inner = row.inner_norm.map(norm).transpose()?;
        let is_normalized = index > 0 || row.first_attention_norm;
        match row.norms {
            BlockNorms::Post { attention, feed_forward } => {
                attention_norms.output = Some(norm(attention)?);
                feed_forward_norms.output = Some(norm(feed_forward)?);
            }
            BlockNorms::Pre { attention, feed_forward } => {
                attention_norms.input = is_normalized.then(|| norm(attention)).transpose()?;
                feed_forward_norms.input = Some(norm(feed_forward)?);
            }
            BlockNorms::Sandwich { attention, feed_forward } => {
                attention_norms.input = is_normalized.then(|| norm(attention[0])).transpose()?;
                attention_norms.branch = Some(norm(attention[1])?);
                feed_forward_norms.input = Some(norm(feed_forward[0])?);
                feed_forward_norms.branch = Some(norm(feed_forward[1])?);
            }
        }
        Ok(Self {
            mixer: Mixer::load(stack, source, index)?,
            attention_norms,
            feed_forward: FeedForward::load(config, row, source, index)?,
            feed_forward_norms,
            embedding_gate: gates.map(|gates| EmbeddingGate::load(config, row, gates, source, index)).transpose()?,
        })
    }

    /// Packs the weights of projections and gives their tensors back; nobody else may hold these.
    pub fn pack(&mut self) -> Result<()> {
        self.mixer.pack()?;
        self.feed_forward.pack()?;
        self.embedding_gate.as_mut().map_or(Ok(()), EmbeddingGate::pack)
    }

    /// Runs the block as layer `index` of the model on hidden states of any kind.
    pub fn forward<S: Stream>(&self, stream: &mut S, index: usize) -> Result<()> {
        let (first, second) = (&self.attention_norms, &self.feed_forward_norms);
        stream.set_input(first.input.as_ref())?;
        let branch = match &self.mixer {
            Mixer::Attention(attention, mask) => stream.attend(index, attention, mask)?,
            Mixer::Convolution(convolution) => stream.convolve(convolution)?,
        };
        let branch = first.normalize(stream, branch)?;
        stream.add(branch, first.output.as_ref(), second.input.as_ref())?;
        let branch = stream.feed_forward(&self.feed_forward)?;
        let branch = second.normalize(stream, branch)?;
        stream.add(branch, second.output.as_ref(), None)?;
        let Some(gate) = &self.embedding_gate else { return Ok(()) };
        let branch = stream.gate_by_embeddings(gate)?;
        let branch = stream.normalize_branch(branch, &gate.norm)?;
        stream.add(branch, None, None)?;
        stream.scale(&gate.factor)
    }

    /// Multiply-adds of the block for a ragged batch on f32 rows.
    pub fn ragged_multiply_adds(&self, offsets: &[usize]) -> Result<usize> {
        let tokens = offsets.last().copied().unwrap_or(0);
        let gate = self.embedding_gate.as_ref().map_or(Ok(0), |gate| gate.multiply_adds(tokens))?;
        let parts = [self.mixer.ragged_multiply_adds(offsets)?, self.feed_forward.multiply_adds(tokens)?, gate];
        Ok(parts.into_iter().fold(0, usize::saturating_add))
    }

    /// Whether the block runs on f32 rows on the CPU.
    pub fn supports_rows(&self) -> bool {
        let gate = self.embedding_gate.as_ref().is_none_or(EmbeddingGate::supports_rows);
        self.mixer.supports_rows() && self.feed_forward.supports_rows() && gate
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use candle_attention_kernels::{AlignedVec, Team};
    use candle_core::{D, DType, Device, Tensor};
    use candle_nn::VarBuilder;

    use super::*;
    use crate::families::model::{Block as BlockRow, FeedForwardNames};
    use crate::model::config::TextModelConfig;
    use crate::model::options::ForwardOptions;
    use crate::model::row_stream::RowStream;
    use crate::model::tensor_stream::{Batch, TensorStream};
    use crate::random::Random;
    use candle_attention::checkpoint::SharedTables;
    use candle_attention::{AttentionMask, NormKind};

    const WIDTH: usize = 12;
    const HEADS: usize = 3;
    const INNER: usize = 20;
    const LENGTHS: [usize; 3] = [5, 1, 7];

    const POST: BlockRow = BlockRow {
        attention: "attention",
        norms: BlockNorms::Post { attention: "n1", feed_forward: "n2" },
        norm_kind: NormKind::Layer,
        norm_bias: true,
        inner_norm: None,
        first_attention_norm: true,
        feed_forward: FeedForwardNames::Plain { first: "up", last: "down" },
        feed_forward_bias: true,
        has_experts: false,
        has_convolutions: false,
        has_embedding_gate: false,
    };
    const GATED: FeedForwardNames = FeedForwardNames::Apart { activated: "gate", plain: "up", last: "down" };
    const PRE: BlockNorms = BlockNorms::Pre { attention: "n1", feed_forward: "n2" };
    const SANDWICH: BlockNorms = BlockNorms::Sandwich { attention: ["n1", "n3"], feed_forward: ["n2", "n4"] };

    fn tensors(random: &mut Random) -> HashMap<String, Tensor> {
        let mut random = |dims: &[usize]| (random.tensor(dims) * 0.25).unwrap();
        let mut tensors = HashMap::new();
        let attention =
            ["self.query", "self.key", "self.value", "output.dense"].map(|name| format!("attention.{name}"));
        let square = attention.iter().map(|name| (name.as_str(), WIDTH, WIDTH));
        for (name, out, input) in square.chain([("up", INNER, WIDTH), ("gate", INNER, WIDTH), ("down", WIDTH, INNER)]) {
            tensors.insert(format!("{name}.weight"), random(&[out, input]));
            tensors.insert(format!("{name}.bias"), random(&[out]));
        }
        for name in ["n0", "n1", "n2", "n3", "n4"] {
            tensors.insert(format!("{name}.weight"), (random(&[WIDTH]) + 1.0).unwrap());
            tensors.insert(format!("{name}.bias"), random(&[WIDTH]));
        }
        tensors
    }

    /// The block of `row` on one sequence `(s, WIDTH)`, in candle's own operations.
    fn reference(row: &BlockRow, index: usize, tensors: &HashMap<String, Tensor>, xs: &Tensor) -> Tensor {
        let linear = |xs: &Tensor, name: &str| {
            let product = xs.matmul(&tensors[&format!("{name}.weight")].t().unwrap()).unwrap();
            product.broadcast_add(&tensors[&format!("{name}.bias")]).unwrap()
        };
        let norm = |xs: &Tensor, name: &str| {
            let weight = &tensors[&format!("{name}.weight")];
            let mean = xs.mean_keepdim(D::Minus1).unwrap();
            let centered = if row.norm_kind == NormKind::Layer { xs.broadcast_sub(&mean).unwrap() } else { xs.clone() };
            let square = (centered.sqr().unwrap().mean_keepdim(D::Minus1).unwrap() + 1e-3).unwrap();
            let ys = centered.broadcast_div(&square.sqrt().unwrap()).unwrap();
            match row.norm_kind {
                NormKind::RmsOffset => ys.broadcast_mul(&(weight + 1.0).unwrap()).unwrap(),
                NormKind::Rms => ys.broadcast_mul(weight).unwrap(),
                _ => {
                    let bias = &tensors[&format!("{name}.bias")];
                    ys.broadcast_mul(weight).unwrap().broadcast_add(bias).unwrap()
                }
            }
        };
        let attend = |xs: &Tensor| {
            let by_head = |name: &str| {
                let ys = linear(xs, &format!("attention.self.{name}"));
                ys.reshape(((), HEADS, WIDTH / HEADS)).unwrap().transpose(0, 1).unwrap().contiguous().unwrap()
            };
            let (q, k, v) = (by_head("query"), by_head("key"), by_head("value"));
            let scores = (q.matmul(&k.t().unwrap()).unwrap() / ((WIDTH / HEADS) as f64).sqrt()).unwrap();
            let context = candle_nn::ops::softmax(&scores, D::Minus1).unwrap().matmul(&v).unwrap();
            linear(&context.transpose(0, 1).unwrap().reshape(((), WIDTH)).unwrap(), "attention.output.dense")
        };
        let feed = |xs: &Tensor| {
            let up = linear(xs, "up");
            let inner = match row.feed_forward {
                FeedForwardNames::Plain { .. } => up.gelu_erf().unwrap(),
                _ => (linear(xs, "gate").gelu_erf().unwrap() * up).unwrap(),
            };
            linear(&inner, "down")
        };
        let add = |xs: &Tensor, branch: Tensor| (xs + branch).unwrap();
        let first = |xs: &Tensor, name: &str| {
            if index > 0 || row.first_attention_norm { norm(xs, name) } else { xs.clone() }
        };
        let inner = |xs: &Tensor, branch: Tensor| match row.inner_norm {
            Some(name) => norm(&add(xs, branch), name),
            None => branch,
        };
        match row.norms {
            BlockNorms::Post { attention, feed_forward } => {
                let xs = norm(&add(xs, inner(xs, attend(xs))), attention);
                norm(&add(&xs, feed(&xs)), feed_forward)
            }
            BlockNorms::Pre { attention, feed_forward } => {
                let xs = add(xs, attend(&first(xs, attention)));
                add(&xs, feed(&norm(&xs, feed_forward)))
            }
            BlockNorms::Sandwich { attention, feed_forward } => {
                let xs = add(xs, norm(&attend(&first(xs, attention[0])), attention[1]));
                add(&xs, norm(&feed(&norm(&xs, feed_forward[0])), feed_forward[1]))
            }
        }
    }

    #[test]
    fn rows_of_every_kind_match_plain_tensors_on_both_streams() {
        let rows = [
            POST,
            BlockRow { inner_norm: Some("n0"), ..POST },
            BlockRow { norm_kind: NormKind::Rms, ..POST },
            BlockRow { norms: PRE, first_attention_norm: false, ..POST },
            // The block of Llama and Qwen, and that of Gemma.
            BlockRow { norms: PRE, norm_kind: NormKind::Rms, feed_forward: GATED, ..POST },
            BlockRow { norms: SANDWICH, norm_kind: NormKind::RmsOffset, feed_forward: GATED, ..POST },
        ];
        let config = serde_json::json!({
            "model_type": "bert", "vocab_size": 9, "hidden_size": WIDTH, "num_hidden_layers": 2, "hidden_act": "gelu",
            "num_attention_heads": HEADS, "intermediate_size": INNER, "max_position_embeddings": 16,
            "type_vocab_size": 2, "layer_norm_eps": 1e-3,
        });
        let config: TextModelConfig = serde_json::from_value(config).unwrap();
        let mut random = Random(1);
        let tensors = tensors(&mut random);
        let tokens = LENGTHS.iter().sum::<usize>();
        let xs = random.tensor(&[tokens, WIDTH]);
        let offsets = candle_attention::ragged::offsets(&LENGTHS);
        for (which, row) in rows.iter().enumerate() {
            for index in [0, 1] {
                let source = VarBuilder::from_tensors(tensors.clone(), DType::F32, &Device::Cpu);
                let stack = Stack { config: &config, row, tables: &SharedTables::default() };
                let block = Block::load(stack, &AnySource::new(&source), index, None).unwrap();
                let sequence = |i: usize| xs.narrow(0, offsets[i], LENGTHS[i]).unwrap();
                let want: Vec<Tensor> =
                    (0..LENGTHS.len()).map(|i| reference(row, index, &tensors, &sequence(i))).collect();
                let check = |got: &Tensor, want: &Tensor, stream: &str| {
                    let difference = (got - want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
                    let difference = difference.to_scalar::<f32>().unwrap();
                    assert!(difference < 2e-5, "row {which}, layer {index}, {stream}: {difference}");
                };

                assert!(block.supports_rows());
                let mut hidden = AlignedVec::zeros("hidden states", tokens * WIDTH).unwrap();
                hidden.copy_from_slice(&xs.flatten_all().unwrap().to_vec1::<f32>().unwrap());
                let mut stream = RowStream::new(Team::ALONE, hidden, &offsets).unwrap();
                block.forward(&mut stream, index).unwrap();
                let got = Tensor::from_slice(&stream.hidden, (tokens, WIDTH), &Device::Cpu).unwrap();
                check(&got, &Tensor::cat(&want, 0).unwrap(), "f32 rows");

                let mut stream = TensorStream::new(xs.unsqueeze(0).unwrap(), Batch::ragged(&LENGTHS), 0.0);
                block.forward(&mut stream, index).unwrap();
                check(&stream.hidden.squeeze(0).unwrap(), &Tensor::cat(&want, 0).unwrap(), "ragged tensor");

                let (mask, options) = (AttentionMask::full(), ForwardOptions::default());
                let batch = Batch::Padded { mask: &mask, options: &options, lengths: None };
                let mut stream = TensorStream::new(sequence(2).unsqueeze(0).unwrap(), batch, 0.0);
                block.forward(&mut stream, index).unwrap();
                check(&stream.hidden.squeeze(0).unwrap(), &want[2], "padded tensor");
            }
        }
    }
}
