//! The cost of int8: the loss of each projection alone, and which are kept so that the model loses little.

use std::collections::HashSet;
use std::path::Path;

use candle_attention_text::{EncodeOptions, SentenceEncoder, SimilarityFunction, load_int8};
use candle_core::{DType, Tensor};
use serde::Serialize;

use super::super::shared::{Result, bar};

/// A projection, or projections of the same input that are int8 together.
#[derive(Serialize)]
pub struct Projection {
    /// The names of its weights.
    #[serde(rename = "weights")]
    pub names: Vec<String>,
    /// The mean loss of the model with nothing but this in int8.
    pub loss: f64,
    /// Whether it is in bf16 instead.
    pub kept: bool,
}

impl Projection {
    /// Whether one of its weights has this name.
    pub fn holds(&self, name: &str) -> bool {
        self.names.iter().any(|own| own == name)
    }
}

/// Texts with their embeddings in f32.
pub struct Judge<'a> {
    folder: &'a Path,
    texts: &'a [&'a str],
    options: EncodeOptions<'a>,
    embeddings: Tensor,
}

impl<'a> Judge<'a> {
    /// `whole` is the model of `folder` in f32.
    pub fn new(
        folder: &'a Path,
        whole: &SentenceEncoder,
        texts: &'a [&'a str],
        options: EncodeOptions<'a>,
    ) -> Result<Self> {
        Ok(Self { folder, texts, options, embeddings: whole.encode(texts, &options)? })
    }

    /// The cosine between the embeddings of each text in f32 and with those weights in int8 and in bf16 for whose names
    /// the functions return true.
    pub fn cosines(&self, is_int8: impl Fn(&str) -> bool, is_bf16: impl Fn(&str) -> bool) -> Result<Vec<f64>> {
        let int8 = load_int8(self.folder, is_int8, is_bf16)?.encode(self.texts, &self.options)?;
        let cosines = SimilarityFunction::Cosine.similarity_pairwise(&self.embeddings, &int8)?;
        Ok(cosines.to_dtype(DType::F64)?.to_vec1()?)
    }

    fn loss(&self, is_int8: impl Fn(&str) -> bool, is_bf16: impl Fn(&str) -> bool) -> Result<f64> {
        // Rounding can give a cosine above 1.
        Ok((1.0 - mean(&self.cosines(is_int8, is_bf16)?)).max(0.0))
    }
}

pub fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// The loss of each group of weights alone.
pub fn alone(judge: &Judge, groups: Vec<Vec<String>>) -> Result<Vec<Projection>> {
    let bar = bar::bar(groups.len(), "measuring", "projections")?;
    let mut projections = Vec::with_capacity(groups.len());
    for names in groups {
        bar.tick();
        let mut projection = Projection { names, loss: 0.0, kept: false };
        projection.loss = judge.loss(|name| projection.holds(name), |_| false)?;
        projections.push(projection);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(projections)
}

/// Keeps those that lose most, the fewest with which the model loses at most `max_loss`.
pub fn keep(judge: &Judge, projections: &mut [Projection], max_loss: f64) -> Result<()> {
    let mut order: Vec<usize> = (0..projections.len()).collect();
    order.sort_by(|&i, &j| projections[j].loss.total_cmp(&projections[i].loss));
    let loss = |kept: usize| {
        let [bf16, int8] = [&order[..kept], &order[kept..]].map(|some| {
            some.iter().flat_map(|&i| &projections[i].names).map(String::as_str).collect::<HashSet<&str>>()
        });
        judge.loss(|name| int8.contains(name), |name| bf16.contains(name))
    };
    // Enough are kept at `enough`, too few below `fewest`. Mostly none has to be, so that is tried first.
    let (mut fewest, mut enough, mut tried) = (0, projections.len(), 0);
    while fewest < enough {
        if loss(tried)? <= max_loss {
            enough = tried
        } else {
            fewest = tried + 1
        }
        tried = (fewest + enough) / 2;
    }
    let all = projections.len();
    order[..enough].iter().for_each(|&i| projections[i].kept = true);
    match projections.iter().map(|projection| projection.loss).reduce(f64::min) {
        Some(least) if enough == all => {
            let reason = format!("each projection in int8 loses more, the best of them {least:.2e}");
            Err(format!("--max-loss {max_loss}: {reason}").into())
        }
        _ => Ok(()),
    }
}
