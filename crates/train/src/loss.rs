//! The loss of distillation.

use candle_attention::{PaddedIds, Result};
use candle_core::{DType, Device, Tensor};

use crate::student::{Student, unit};

/// The weight of the loss of similarities, relative to that of directions.
pub(super) const SIMILARITY_WEIGHT: f64 = 30.0;

/// The targets of the student: the direction of each text's vector, projected to the student's dimension, and the
/// similarities of all pairs of a batch.
pub(super) struct Distillation {
    /// The teacher's vectors, `(texts, d)` f16.
    pub embeddings: Tensor,
    /// The projection from the teacher's space to the student's, `(d, hidden_size)`.
    pub basis: Tensor,
}

impl Distillation {
    /// The loss of the texts with the indices `batch` and the token ids `rows`.
    pub fn loss(&self, student: &Student, similarity_weight: f64, batch: &[u32], rows: &[&[u32]]) -> Result<Tensor> {
        let student = student.embed(&PaddedIds::new(rows, 0, &Device::Cpu)?)?; // (b, hidden)
        let batch = Tensor::new(batch, &Device::Cpu)?;
        let teacher = self.embeddings.index_select(&batch, 0)?.to_dtype(DType::F32)?; // (b, d)
        let directions = unit(&teacher.matmul(&self.basis)?)?;
        let direction = (1.0 - (&student * directions)?.sum(1)?.mean_all()?)?;
        let (ours, theirs) = (student.matmul(&student.t()?)?, teacher.matmul(&teacher.t()?)?); // (b, b)
        let similarity = (ours - theirs)?.sqr()?.mean_all()?;
        Ok((direction + (similarity * similarity_weight)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainConfig;
    use crate::data::generator;

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

    /// The formula over plain numbers.
    #[test]
    fn the_loss_of_a_teacher_is_of_directions_and_of_similarities() {
        let student = Student::new(&config(), None).unwrap();
        let mut rng = generator(1, 0);
        let mut random = |rows: usize, columns: usize| {
            let values = (0..rows * columns).map(|_| rng.f32() * 4.0 - 2.0).collect::<Vec<_>>();
            Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
        };
        let (embeddings, basis) = (unit(&random(5, 6)).unwrap(), random(6, 8));
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
        let distillation = Distillation { embeddings, basis };
        for similarity_weight in [0.0, 1.0, 2.5] {
            let got = distillation.loss(&student, similarity_weight, &batch, &rows).unwrap();
            let got = f64::from(got.to_scalar::<f32>().unwrap());
            let want = direction + similarity_weight * similarity;
            assert!((got - want).abs() < 1e-5, "{similarity_weight}: {got}, want {want}");
        }
    }
}
