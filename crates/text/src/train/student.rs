//! The model that is trained: its variables, and its differentiable forward pass from texts to vectors.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use candle_attention::{Error, PaddedIds, Result};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use fastrand::Rng;

use crate::train::config::{INITIALIZER_RANGE, TrainConfig};
use crate::train::data::generator;
use crate::{Pooling, PoolingMode, TextModel};

/// Standard deviation of fresh position and type embeddings: smaller, because they are added to every word embedding
/// and would outweigh it.
const POSITION_INITIALIZER_RANGE: f64 = 0.01;

/// Name of the word embeddings.
const WORDS: &str = "embeddings.word_embeddings.weight";

/// The model, its variables and its pooling.
pub(super) struct Student {
    variables: VarMap,
    model: TextModel,
    pooling: Pooling,
}

impl Student {
    /// Fresh weights: matrices from a normal distribution, biases 0, scales of norms 1. The word embeddings are `words`
    /// `(vocab_size, hidden_size)` if given.
    pub fn new(config: &TrainConfig, words: Option<&Tensor>) -> Result<Self> {
        let mut rng = generator(config.seed, usize::MAX / 2);
        let variables = VarMap::new();
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
            let mut data = variables.data().lock().unwrap_or_else(PoisonError::into_inner);
            data.insert(name, Var::from_tensor(&tensor)?);
        }
        let model = TextModel::load(&config.bert()?, VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu))?;
        Ok(Self { variables, model, pooling: Pooling::new(vec![PoolingMode::Mean])? })
    }

    /// All variables, by their names in Hugging Face layout.
    pub fn variables(&self) -> BTreeMap<String, Var> {
        let data = self.variables.data().lock().unwrap_or_else(PoisonError::into_inner);
        data.iter().map(|(name, variable)| (name.clone(), variable.clone())).collect()
    }

    /// The word embeddings `(vocab_size, hidden_size)`.
    pub fn words(&self) -> Result<Var> {
        let words = self.variables().remove(WORDS);
        words.ok_or_else(|| Error::MissingTensor { name: WORDS.into(), why: "BERT has word embeddings".into() })
    }

    /// Hidden states `(b, s, hidden_size)`.
    pub fn hidden(&self, padded: &PaddedIds) -> Result<Tensor> {
        self.model.forward(&padded.ids, None, &padded.mask())
    }

    /// One unit vector per text, `(b, hidden_size)`.
    pub fn embed(&self, padded: &PaddedIds) -> Result<Tensor> {
        let (b, s) = padded.ids.dims2()?;
        let mask = padded.lengths.iter().flat_map(|&n| (0..s).map(move |i| u8::from(i < n))).collect();
        let mask = Tensor::from_vec::<_, u8>(mask, (b, s), &Device::Cpu)?;
        unit(&self.pooling.forward(&self.hidden(padded)?, &mask)?)
    }
}

/// The rows of a matrix, scaled to length 1.
pub(super) fn unit(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.broadcast_div(&(xs.sqr()?.sum_keepdim(1)? + 1e-12)?.sqrt()?)?)
}

/// Names and shapes of the tensors of BERT.
fn shapes(config: &TrainConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let table = |name: &str, rows: usize| (format!("embeddings.{name}.weight"), vec![rows, hidden]);
    let mut shapes = vec![
        (WORDS.to_string(), vec![config.vocab_size, hidden]),
        table("position_embeddings", config.max_position_embeddings),
        table("token_type_embeddings", 2),
    ];
    let mut module = |name: String, weight: Vec<usize>| {
        shapes.push((format!("{name}.bias"), vec![weight[0]]));
        shapes.push((format!("{name}.weight"), weight));
    };
    module("embeddings.LayerNorm".to_string(), vec![hidden]);
    for layer in (0..config.num_hidden_layers).map(|i| format!("encoder.layer.{i}")) {
        for name in ["self.query", "self.key", "self.value", "output.dense"] {
            module(format!("{layer}.attention.{name}"), vec![hidden, hidden]);
        }
        module(format!("{layer}.attention.output.LayerNorm"), vec![hidden]);
        module(format!("{layer}.intermediate.dense"), vec![inner, hidden]);
        module(format!("{layer}.output.dense"), vec![hidden, inner]);
        module(format!("{layer}.output.LayerNorm"), vec![hidden]);
    }
    shapes
}

/// A sample of the standard normal distribution ([Box and Muller 1958](https://doi.org/10.1214/aoms/1177706645)).
fn normal(rng: &mut Rng) -> f32 {
    let (radius, angle) = ((-2.0 * (1.0 - rng.f64()).ln()).sqrt(), std::f64::consts::TAU * rng.f64());
    (radius * angle.cos()) as f32
}
