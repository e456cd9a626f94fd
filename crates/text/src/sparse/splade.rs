//! Pooling of the logits of a masked language model to one weight per token of the vocabulary
//! (SPLADE, [Formal 2021](https://arxiv.org/abs/2109.10086)).

use candle_attention::{Error, Result};
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use serde::de::IgnoredAny;

use crate::model::hidden_states::HiddenStates;

/// How logits become weights: `log(1 + relu(x))`, pooled over the tokens of a text. Read from `config.json` of the
/// module.
#[derive(Debug, Clone, Copy, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct SpladePooling {
    #[serde(rename = "pooling_strategy")]
    strategy: Strategy,
    #[serde(rename = "activation_function")]
    activation: Activation,
    /// The size of the vocabulary.
    #[serde(alias = "word_embedding_dimension")]
    embedding_dimension: IgnoredAny,
    /// How many texts are pooled at a time.
    chunk_size: IgnoredAny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Strategy {
    #[default]
    Max,
    Sum,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Activation {
    /// `log(1 + relu(x))`.
    #[default]
    Relu,
    /// `log(1 + log(1 + relu(x)))`.
    Log1pRelu,
}

/// The most logits that are computed at a time: 16 MiB of them.
const MAX_LOGITS: usize = 1 << 22;

/// The fewest rows of a product that use the kernels well.
const MIN_ROWS: usize = 16;

/// Features that a thread pools at a time.
const FEATURES: usize = 4096;

impl SpladePooling {
    /// The weights of each text of a batch, `vocabulary` each. `decode` makes logits `(1, n, vocabulary)` of hidden
    /// states `(1, n, width)`; only as many as needed are kept at a time.
    pub fn pool(
        self,
        hidden: &HiddenStates,
        vocabulary: usize,
        decode: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Vec<Vec<f32>>> {
        let tokens = hidden.flat()?; // (tokens, width)
        let texts: Vec<usize> =
            hidden.lengths.iter().enumerate().flat_map(|(text, length)| std::iter::repeat_n(text, *length)).collect();
        let mut pooled = vec![vec![0.0; vocabulary]; hidden.lengths.len()];
        let rows = (MAX_LOGITS / vocabulary.max(1)).max(MIN_ROWS);
        for (chunk, texts) in texts.chunks(rows).enumerate() {
            let xs = tokens.narrow(0, chunk * rows, texts.len())?.unsqueeze(0)?;
            let logits = decode(&xs)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
            if logits.len() != texts.len() * vocabulary {
                return Err(Error::shape("logits", &[logits.len()], format!("{}", texts.len() * vocabulary)));
            }
            let mut left = logits.as_slice();
            for text in texts.chunk_by(|a, b| a == b) {
                let (own, rest) = left.split_at(text.len() * vocabulary);
                self.add(own, &mut pooled[text[0]], tokens.device().is_cpu());
                left = rest;
            }
        }
        if self.strategy == Strategy::Max {
            pooled.iter_mut().flatten().for_each(|x| *x = self.activation.apply(*x));
        }
        Ok(pooled)
    }

    /// Pools rows of logits into `pooled`. NaN stays. A thread that holds the permit of a GPU shares no work: it would
    /// take up other work meanwhile, which may wait for that permit.
    fn add(self, logits: &[f32], pooled: &mut [f32], is_shared: bool) {
        let vocabulary = pooled.len();
        let add = |(i, pooled): (usize, &mut [f32])| {
            for row in logits.chunks_exact(vocabulary) {
                for (pooled, &x) in pooled.iter_mut().zip(&row[i * FEATURES..]) {
                    match self.strategy {
                        // The activation grows with its argument: that of the largest is the largest.
                        Strategy::Max if x > *pooled || x.is_nan() => *pooled = x,
                        Strategy::Max => {}
                        Strategy::Sum => *pooled += self.activation.apply(x),
                    }
                }
            }
        };
        if is_shared {
            pooled.par_chunks_mut(FEATURES).enumerate().for_each(add)
        } else {
            pooled.chunks_mut(FEATURES).enumerate().for_each(add)
        }
    }
}

impl Activation {
    fn apply(self, x: f32) -> f32 {
        // A product with 0 keeps NaN.
        let once = if x > 0.0 { x.ln_1p() } else { x * 0.0 };
        match self {
            Self::Relu => once,
            Self::Log1pRelu => once.ln_1p(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts that begin and end within a chunk of logits, against a plain loop.
    #[test]
    fn logits_are_pooled_across_chunks() {
        let (vocabulary, lengths) = ((1 << 18) + 3, vec![5, 0, 21, 16, 1]);
        let states: Vec<f32> = (0..43).map(|i| ((i * 29) % 41) as f32 / 4.0 - 5.0).collect();
        let logit = |state: f32, id: usize| state - (id % 1013) as f32 / 100.0;
        let tokens = Tensor::from_slice(&states, (43, 1), &Device::Cpu).unwrap();
        let hidden = HiddenStates { tokens, lengths: lengths.clone() };
        let decode = |xs: &Tensor| {
            let states = xs.flatten_all()?.to_vec1::<f32>()?;
            assert!(states.len() <= 16);
            let logits = states.iter().flat_map(|state| (0..vocabulary).map(|id| logit(*state, id)));
            Ok(Tensor::from_iter(logits, &Device::Cpu)?.reshape((1, states.len(), vocabulary))?)
        };
        for (strategy, activation) in [(Strategy::Max, Activation::Log1pRelu), (Strategy::Sum, Activation::Relu)] {
            let pooled = SpladePooling { strategy, activation, ..SpladePooling::default() }
                .pool(&hidden, vocabulary, decode)
                .unwrap();
            let mut start = 0;
            for (pooled, length) in pooled.iter().zip(&lengths) {
                let own = &states[start..start + length];
                start += length;
                for (id, got) in pooled.iter().enumerate().step_by(97) {
                    let weights = own.iter().map(|state| activation.apply(logit(*state, id)));
                    let want = match strategy {
                        Strategy::Max => weights.fold(0.0, f32::max),
                        Strategy::Sum => weights.sum(),
                    };
                    assert_eq!(*got, want, "{strategy:?} {id}");
                }
            }
        }
        let broken = |xs: &Tensor| Ok(Tensor::full(f32::NAN, (1, xs.dim(1)?, 2), &Device::Cpu)?);
        let pooled = SpladePooling::default().pool(&hidden, 2, broken).unwrap();
        assert!(pooled[0][0].is_nan() && pooled[1] == [0.0, 0.0]);
    }
}
