//! Training losses.

use candle_attention::{PaddedIds, Result};
use candle_core::{DType, Device, Tensor};

use crate::train::config::TrainConfig;
use crate::train::data::generator;
use crate::train::student::{Student, unit};
use crate::train::vocabulary::{MASK, SPECIAL};

/// The share of tokens to predict, and the shares of them that are masked or replaced by a random token: as in BERT
/// ([Devlin 2019](https://arxiv.org/abs/1810.04805)).
const PREDICTED: f64 = 0.15;
const MASKED: f64 = 0.8;
const REPLACED: f64 = 0.1;

/// What the student learns.
pub(super) enum Objective {
    /// Distillation: the direction of each text's vector, projected to the student's dimension, and the similarities of
    /// all pairs of a batch.
    Teacher {
        /// `(texts, d)` f16.
        embeddings: Tensor,
        /// The projection from the teacher's space to the student's, `(d, hidden_size)`.
        basis: Tensor,
    },
    /// Masked language modeling.
    MaskedWords,
}

impl Objective {
    /// The loss of a step: of the texts with the indices `batch` and the token ids `rows`.
    pub fn loss(
        &self,
        student: &Student,
        config: &TrainConfig,
        batch: &[u32],
        rows: &[&[u32]],
        step: usize,
    ) -> Result<Tensor> {
        match self {
            Self::Teacher { embeddings, basis } => {
                let student = student.embed(&PaddedIds::new(rows, 0, &Device::Cpu)?)?; // (b, hidden)
                let batch = Tensor::new(batch, &Device::Cpu)?;
                let teacher = embeddings.index_select(&batch, 0)?.to_dtype(DType::F32)?; // (b, d)
                let directions = unit(&teacher.matmul(basis)?)?;
                let direction = (1.0 - (&student * directions)?.sum(1)?.mean_all()?)?;
                let (ours, theirs) = (student.matmul(&student.t()?)?, teacher.matmul(&teacher.t()?)?); // (b, b)
                let similarity = (ours - theirs)?.sqr()?.mean_all()?;
                Ok((direction + (similarity * config.similarity_weight)?)?)
            }
            Self::MaskedWords => masked_words(student, config, rows, step),
        }
    }
}

/// Cross-entropy of the masked tokens; the logits are products with the word embeddings.
fn masked_words(student: &Student, config: &TrainConfig, rows: &[&[u32]], step: usize) -> Result<Tensor> {
    let mut rng = generator(!config.seed, step);
    let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let mut rows: Vec<Vec<u32>> = rows.iter().map(|row| row.to_vec()).collect();
    let (mut positions, mut targets) = (Vec::new(), Vec::new());
    for (i, row) in rows.iter_mut().enumerate() {
        for (j, id) in row.iter_mut().enumerate().filter(|(_, id)| **id as usize >= SPECIAL.len()) {
            if rng.f64() >= PREDICTED {
                continue;
            }
            positions.push((i * longest + j) as u32);
            targets.push(*id);
            let other = rng.u32(SPECIAL.len() as u32..config.vocab_size as u32);
            match rng.f64() {
                chance if chance < MASKED => *id = MASK,
                chance if chance < MASKED + REPLACED => *id = other,
                _ => {}
            }
        }
    }
    let words = student.words();
    if positions.is_empty() {
        // In a batch of very short texts there may be nothing to predict.
        return Ok((words.narrow(0, 0, 1)?.sum_all()? * 0.0)?);
    }
    let hidden = student.hidden(&PaddedIds::new(&rows, 0, &Device::Cpu)?)?;
    let hidden = hidden.flatten(0, 1)?.index_select(&Tensor::new(positions, &Device::Cpu)?, 0)?; // (predicted, hidden)
    let logits = hidden.matmul(&words.t()?)?; // (predicted, vocab)
    Ok(candle_nn::loss::cross_entropy(&logits, &Tensor::new(targets, &Device::Cpu)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn config() -> TrainConfig {
        TrainConfig {
            vocab_size: 50,
            hidden_size: 8,
            num_attention_heads: 2,
            num_hidden_layers: 1,
            intermediate_size: 12,
            max_position_embeddings: 16,
            max_length: 16,
            seed: 1,
            ..Default::default()
        }
    }

    fn student() -> Student {
        Student::new(&config(), None).unwrap()
    }

    fn number(loss: Result<Tensor>) -> f64 {
        f64::from(loss.unwrap().to_scalar::<f32>().unwrap())
    }

    #[test]
    fn special_tokens_are_not_predicted() {
        let (student, special) = (student(), SPECIAL.len() as u32);
        let loss = |row: &[u32], step: usize| number(masked_words(&student, &config(), &[row], step));
        let (special, words): (Vec<u32>, Vec<u32>) = ((0..special).collect(), (special..2 * special).collect());
        assert!((0..20).all(|step| loss(&special, step) == 0.0));
        assert!((0..20).any(|step| loss(&words, step) > 0.0));
    }

    /// The formula over plain numbers.
    #[test]
    fn the_loss_of_a_teacher_is_of_directions_and_of_similarities() {
        let student = student();
        let mut random = Random(1);
        let (embeddings, basis) = (unit(&random.tensor(&[5, 6])).unwrap(), random.tensor(&[6, 8]));
        let (batch, rows): (_, [&[u32]; 3]) = ([4, 0, 2], [&[2, 7, 3], &[2, 9, 11, 3], &[2, 20, 3]]);
        let wide = |t: &Tensor| t.to_dtype(DType::F64).unwrap().to_vec2::<f64>().unwrap();
        let ours = wide(&student.embed(&PaddedIds::new(&rows, 0, &Device::Cpu).unwrap()).unwrap());
        let (all, projected) = (wide(&embeddings), wide(&unit(&embeddings.matmul(&basis).unwrap()).unwrap()));
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (mut direction, mut similarity) = (0.0, 0.0);
        for (i, &text) in batch.iter().enumerate() {
            direction += (1.0 - dot(&ours[i], &projected[text as usize])) / 3.0;
            for (j, &other) in batch.iter().enumerate() {
                let theirs = dot(&all[text as usize], &all[other as usize]);
                similarity += (dot(&ours[i], &ours[j]) - theirs).powi(2) / 9.0;
            }
        }
        for similarity_weight in [0.0, 1.0, 2.5] {
            let config = TrainConfig { similarity_weight, ..config() };
            let objective = Objective::Teacher { embeddings: embeddings.clone(), basis: basis.clone() };
            let got = number(objective.loss(&student, &config, &batch, &rows, 0));
            let want = direction + similarity_weight * similarity;
            assert!((got - want).abs() < 1e-5, "{similarity_weight}: {got}, want {want}");
        }
    }
}
