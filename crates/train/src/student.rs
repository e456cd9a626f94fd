//! The model that is trained: its variables, and its differentiable forward pass from texts to vectors.

use std::collections::BTreeMap;

use candle_attention::{PaddedIds, Result};
use candle_attention_text::{Pooling, PoolingMode, TextModel};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::VarBuilder;
use fastrand::Rng;

use crate::config::{INITIALIZER_RANGE, TrainConfig, WORDS, shapes};
use crate::data::generator;

/// Standard deviation of fresh position and type embeddings: smaller, because they are added to every word embedding
/// and would outweigh it.
const POSITION_INITIALIZER_RANGE: f64 = 0.01;

/// The model, its variables and its pooling.
pub(super) struct Student {
    /// All variables, by their names in Hugging Face layout.
    pub variables: BTreeMap<String, Var>,
    model: TextModel,
    pooling: Pooling,
}

impl Student {
    /// Fresh weights: matrices from a normal distribution, biases 0, scales of norms 1. The word embeddings are `words`
    /// `(vocab_size, hidden_size)` if given.
    pub fn new(config: &TrainConfig, words: Option<&Tensor>) -> Result<Self> {
        let mut rng = generator(config.seed, usize::MAX / 2);
        let mut variables = BTreeMap::new();
        for (name, shape) in shapes(config) {
            let count = shape.iter().product();
            let numbers: Vec<f32> = match shape[..] {
                [_] => vec![f32::from(u8::from(name.ends_with("LayerNorm.weight"))); count],
                _ => {
                    let added = name.starts_with("embeddings.") && name != WORDS;
                    let range = if added { POSITION_INITIALIZER_RANGE } else { INITIALIZER_RANGE } as f32;
                    (0..count).map(|_| normal(&mut rng) * range).collect()
                }
            };
            let tensor = match words.filter(|_| name == WORDS) {
                Some(words) => words.copy()?,
                None => Tensor::from_vec(numbers, shape, &Device::Cpu)?,
            };
            variables.insert(name, Var::from_tensor(&tensor)?);
        }
        let tensors = variables.iter().map(|(name, variable)| (name.clone(), variable.as_tensor().clone())).collect();
        let model = TextModel::load(&config.bert()?, VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu))?;
        Ok(Self { variables, model, pooling: Pooling::new(vec![PoolingMode::Mean])? })
    }

    /// One unit vector per text, `(b, hidden_size)`.
    pub fn embed(&self, padded: &PaddedIds) -> Result<Tensor> {
        let (b, s) = padded.ids.dims2()?;
        let mask = padded.lengths.iter().flat_map(|&n| (0..s).map(move |i| u8::from(i < n))).collect();
        let mask = Tensor::from_vec::<_, u8>(mask, (b, s), &Device::Cpu)?;
        let hidden = self.model.forward(&padded.ids, None, &padded.mask())?; // (b, s, hidden_size)
        unit(&self.pooling.forward(&hidden, &mask)?)
    }
}

/// The rows of a matrix, scaled to length 1.
pub(super) fn unit(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.broadcast_div(&(xs.sqr()?.sum_keepdim(1)? + 1e-12)?.sqrt()?)?)
}

/// A sample of the standard normal distribution ([Box and Muller 1958](https://doi.org/10.1214/aoms/1177706645)).
fn normal(rng: &mut Rng) -> f32 {
    let (radius, angle) = ((-2.0 * (1.0 - rng.f64()).ln()).sqrt(), std::f64::consts::TAU * rng.f64());
    (radius * angle.cos()) as f32
}
