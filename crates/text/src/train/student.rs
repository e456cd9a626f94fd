//! The model that is trained: its variables, and its differentiable forward pass from texts to vectors.

use std::collections::BTreeMap;

use candle_attention::{PaddedIds, Result};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use fastrand::Rng;

use crate::train::config::{INITIALIZER_RANGE, StudentKind, TrainConfig};
use crate::train::data::generator;
use crate::{Pooling, PoolingMode, TextModel};

/// Standard deviation of fresh position and type embeddings: smaller, because they are added to every word embedding
/// and would outweigh it.
const POSITION_INITIALIZER_RANGE: f64 = 0.01;

/// Name of the word embeddings.
pub(super) const WORDS: &str = "embeddings.word_embeddings.weight";

/// The model, its variables and its pooling.
pub(super) struct Student {
    variables: VarMap,
    /// `None` for static vectors.
    model: Option<TextModel>,
    pooling: Pooling,
}

impl Student {
    /// Fresh weights: matrices from a normal distribution, biases 0, scales of norms 1. The word embeddings are `words`
    /// `(vocab_size, hidden_size)` if given.
    pub fn new(config: &TrainConfig, words: Option<&Tensor>) -> Result<Self> {
        let mut rng = generator(config.seed, usize::MAX / 2);
        let mut tensors = BTreeMap::new();
        for (name, shape) in shapes(config) {
            let count = shape.iter().product();
            let numbers: Vec<f32> = match shape[..] {
                [_] if name.ends_with("LayerNorm.weight") => vec![1.0; count],
                [_] => vec![0.0; count],
                _ => {
                    let positions = name.starts_with("embeddings.") && name != WORDS;
                    let stdev = if positions { POSITION_INITIALIZER_RANGE } else { INITIALIZER_RANGE } as f32;
                    (0..count).map(|_| normal(&mut rng) * stdev).collect()
                }
            };
            let tensor = match words {
                Some(words) if name == WORDS => words.copy()?,
                _ => Tensor::from_vec(numbers, shape, &Device::Cpu)?,
            };
            tensors.insert(name, tensor);
        }
        Self::from_tensors(config, tensors)
    }

    /// The student with these weights.
    pub fn from_tensors(config: &TrainConfig, tensors: BTreeMap<String, Tensor>) -> Result<Self> {
        let variables = VarMap::new();
        {
            let mut data = variables.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for (name, tensor) in tensors {
                data.insert(name, Var::from_tensor(&tensor)?);
            }
        }
        let vb = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
        let model = match config.kind {
            StudentKind::Encoder => Some(TextModel::load(&config.bert()?, vb)?),
            StudentKind::Static => None,
        };
        Ok(Self { variables, model, pooling: Pooling::new(vec![PoolingMode::Mean])? })
    }

    /// All variables, by their names in Hugging Face layout.
    pub fn variables(&self) -> BTreeMap<String, Var> {
        let data = self.variables.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        data.iter().map(|(name, variable)| (name.clone(), variable.clone())).collect()
    }

    /// Hidden states `(b, s, hidden_size)`.
    pub fn hidden(&self, padded: &PaddedIds) -> Result<Tensor> {
        match &self.model {
            Some(model) => Ok(model.forward(&padded.ids, None, &padded.mask())?),
            None => {
                let words = self.variables().remove(WORDS).map(|words| words.as_tensor().clone());
                let words = words.ok_or_else(|| candle_core::Error::Msg(format!("no variable {WORDS}")))?;
                let (b, s) = padded.ids.dims2()?;
                Ok(words.index_select(&padded.ids.flatten_all()?, 0)?.reshape((b, s, words.dim(1)?))?)
            }
        }
    }

    /// One unit vector per text, `(b, hidden_size)`.
    pub fn embed(&self, padded: &PaddedIds) -> Result<Tensor> {
        let (b, s) = padded.ids.dims2()?;
        let mask = padded.lengths.iter().flat_map(|&n| (0..s).map(move |i| u8::from(i < n))).collect();
        let mask = Tensor::from_vec::<_, u8>(mask, (b, s), &Device::Cpu)?;
        let pooled = self.pooling.forward(&self.hidden(padded)?, &mask)?;
        unit(&pooled)
    }
}

/// The rows of a matrix, scaled to length 1.
pub(super) fn unit(xs: &Tensor) -> Result<Tensor> {
    Ok(xs.broadcast_div(&(xs.sqr()?.sum_keepdim(1)? + 1e-12)?.sqrt()?)?)
}

/// Names and shapes of the tensors of BERT, or of its word embeddings alone for static vectors.
pub(super) fn shapes(config: &TrainConfig) -> Vec<(String, Vec<usize>)> {
    let (hidden, inner) = (config.hidden_size, config.intermediate_size);
    let mut shapes = vec![(WORDS.to_string(), vec![config.vocab_size, hidden])];
    if config.kind == StudentKind::Static {
        return shapes;
    }
    let mut linear = |name: String, out: usize, input: usize| {
        shapes.push((format!("{name}.weight"), vec![out, input]));
        shapes.push((format!("{name}.bias"), vec![out]));
    };
    for i in 0..config.num_hidden_layers {
        for name in ["self.query", "self.key", "self.value", "output.dense"] {
            linear(format!("encoder.layer.{i}.attention.{name}"), hidden, hidden);
        }
        linear(format!("encoder.layer.{i}.intermediate.dense"), inner, hidden);
        linear(format!("encoder.layer.{i}.output.dense"), hidden, inner);
    }
    let norms = |i: usize| ["attention.output", "output"].map(|name| format!("encoder.layer.{i}.{name}"));
    let norms = (0..config.num_hidden_layers).flat_map(norms);
    for name in norms.chain(["embeddings".to_string()]) {
        shapes.push((format!("{name}.LayerNorm.weight"), vec![hidden]));
        shapes.push((format!("{name}.LayerNorm.bias"), vec![hidden]));
    }
    let table = |name: &str, rows: usize| (format!("embeddings.{name}.weight"), vec![rows, hidden]);
    shapes.push(table("position_embeddings", config.max_position_embeddings));
    shapes.push(table("token_type_embeddings", 2));
    shapes
}

/// A sample of the standard normal distribution ([Box and Muller 1958](https://doi.org/10.1214/aoms/1177706645)).
fn normal(rng: &mut Rng) -> f32 {
    let (radius, angle) = ((-2.0 * (1.0 - rng.f64()).ln()).sqrt(), std::f64::consts::TAU * rng.f64());
    (radius * angle.cos()) as f32
}
