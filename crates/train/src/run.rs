//! The training loop, and the file in which a run is saved.

use std::path::{Path, PathBuf};

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::{create_folder, is_present, write_tensors};
use candle_attention::{Error, Result};
use candle_attention_text::Fingerprint;
use candle_core::DType;
use tokenizers::Tokenizer;

use crate::adamw::AdamW;
use crate::config::TrainConfig;
use crate::data::Batches;
use crate::loss::{Distillation, SIMILARITY_WEIGHT};
use crate::student::{Student, unit};
use crate::teacher::{Teacher, basis};
use crate::{vocabulary, write};

/// Name of the file in the folder of a run.
const FILE: &str = "run.safetensors";

/// A training run: the student, what it learns from, and its progress.
///
/// ```no_run
/// use candle_attention_train::{Teacher, TrainConfig, Trainer};
/// let texts = ["The cat sleeps.", "A kitten naps.", "Stocks fell sharply today."].map(String::from);
/// let teacher = Teacher::open("all-MiniLM-L6-v2", candle_core::DType::F32)?;
/// let mut trainer = Trainer::new(TrainConfig::default(), &texts, &teacher, "run", None)?;
/// while let Some(step) = trainer.step()? {
///     println!("{} {}", step.number, step.loss);
/// }
/// trainer.write("model", candle_core::DType::F16)?;
/// # Ok::<(), candle_attention::Error>(())
/// ```
pub struct Trainer {
    config: TrainConfig,
    tokenizer: Tokenizer,
    ids: Vec<Vec<u32>>,
    batches: Batches,
    student: Student,
    distillation: Distillation,
    optimizer: AdamW,
    step: usize,
    /// The saved run.
    path: PathBuf,
    /// The identity of the run: its configuration, and a fingerprint of the texts and the teacher.
    identity: [(String, String); 2],
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Step {
    /// Number of the step, from 1.
    pub number: usize,
    /// Loss of its batch, before the update.
    pub loss: f32,
    /// Global norm of the gradients, before clipping.
    pub grad_norm: f64,
    /// Learning rate.
    pub learning_rate: f64,
}

impl Trainer {
    /// A run on these texts: the student learns the teacher's embeddings, and each word embedding starts as the
    /// teacher's embedding of the word.
    ///
    /// `folder` holds the saved run and the teacher's embeddings. If there is a saved run, this one continues it.
    ///
    /// `on_progress` is called with the number of texts that the teacher has encoded so far, and of all texts.
    ///
    /// # Errors
    /// An invalid configuration; a vocabulary too small for the characters of the texts; a student wider than its
    /// teacher; [`Error::NotFinite`] for a teacher that gives NaN, of which nothing is kept; a saved run of another
    /// configuration, other texts or another teacher; files that cannot be read or written.
    pub fn new(
        config: TrainConfig,
        texts: &[String],
        teacher: &Teacher,
        folder: impl AsRef<Path>,
        on_progress: Option<&dyn Fn(usize, usize)>,
    ) -> Result<Self> {
        config.validate()?;
        if texts.len() < 2 || u32::try_from(texts.len()).is_err() {
            return Err(Error::value("the number of texts", texts.len(), "at least 2, at most 2^32 - 1"));
        }
        let width = teacher.embedding_size();
        if width < config.hidden_size {
            let allowed = format!("at most {width}, the teacher's embedding size");
            return Err(Error::config("hidden_size", config.hidden_size, allowed));
        }
        let (folder, path) = (folder.as_ref(), folder.as_ref().join(FILE));
        let key = texts.iter().chain([&teacher.key]);
        let key = key.map(String::as_bytes).collect::<Fingerprint>().hex();
        let asked = serde_json::to_string(&config).map_err(|e| Error::file(&path, e))?;
        let identity = [("config", asked), ("key", key)].map(|(name, value)| (name.to_string(), value));
        let saved = if is_present(&path)? { Some(open_saved(&path, &identity)?) } else { None };

        let tokenizer = vocabulary::train(texts, config.vocab_size)?;
        let config = TrainConfig { vocab_size: tokenizer.get_vocab_size(true), ..config };
        let ids = vocabulary::encode(&tokenizer, texts, config.max_length)?;
        let embeddings = teacher.encode_once(texts, folder, &identity[1].1, on_progress)?;
        let basis = basis(&embeddings, config.hidden_size)?;
        let mut words = None;
        if saved.is_none() {
            let vectors = teacher.encode(&vocabulary::words(&tokenizer))?.matmul(&basis)?;
            // The mean of all words would dominate the mean of every text.
            words = Some(unit(&vectors.broadcast_sub(&vectors.mean_keepdim(0)?)?)?);
        }
        let distillation = Distillation { embeddings, basis };
        let student = Student::new(&config, words.as_ref())?;
        let optimizer = AdamW::new(&student.variables)?;
        saved.iter().try_for_each(|(saved, _)| optimizer.restore(saved))?;
        let step = saved.map_or(0, |(_, step)| step);
        let batches = Batches::new(ids.iter().map(Vec::len).collect(), config.batch_size, config.seed);
        Ok(Self { config, tokenizer, ids, batches, student, distillation, optimizer, step, path, identity })
    }

    /// The configuration, with the size of the vocabulary that the run has.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// Number of trained parameters.
    pub fn parameters(&self) -> usize {
        self.student.variables.values().map(|variable| variable.elem_count()).sum()
    }

    /// Number of completed steps.
    pub fn steps_done(&self) -> usize {
        self.step
    }

    /// Trains on one batch; `None` once all steps are done.
    ///
    /// # Errors
    /// [`Error::Value`] if the loss, the norm of the gradients or an updated weight is not finite. The run is then only
    /// good to be made anew from its last save.
    pub fn step(&mut self) -> Result<Option<Step>> {
        if self.step >= self.config.steps {
            return Ok(None);
        }
        let batch = self.batches.at(self.step);
        let rows: Vec<&[u32]> = batch.iter().map(|&text| &self.ids[text as usize][..]).collect();
        let loss = self.distillation.loss(&self.student, SIMILARITY_WEIGHT, batch, &rows)?;
        let value = loss.to_scalar::<f32>()?;
        if !value.is_finite() {
            let expected = "a finite number: try a smaller learning rate";
            return Err(Error::value(format!("the loss of step {}", self.step + 1), value, expected));
        }
        let learning_rate = self.config.learning_rate_at(self.step);
        let grad_norm = self.optimizer.update(&loss.backward()?, learning_rate, self.step)?;
        self.step += 1;
        Ok(Some(Step { number: self.step, loss: value, grad_norm, learning_rate }))
    }

    /// Saves the run to its folder, atomically. A trainer made of the same configuration, texts and teacher continues
    /// it.
    ///
    /// # Errors
    /// If the file cannot be written; the save before is then still there.
    pub fn save(&self) -> Result<()> {
        create_folder(self.path.parent().unwrap_or(Path::new("")))?;
        let step = ("step".to_string(), self.step.to_string());
        let metadata = self.identity.iter().cloned().chain([step]).collect();
        let tensors = self.optimizer.saved().map(|(name, variable)| (name, variable.as_detached_tensor()));
        write_tensors(&self.path, tensors, metadata)
    }

    /// Writes the model in its current state, with weights in `dtype`, to a new folder that transformers,
    /// sentence-transformers and [`SentenceEncoder`](candle_attention_text::SentenceEncoder) read. It appears complete
    /// or not at all.
    ///
    /// # Errors
    /// [`Error::File`] if the folder exists; [`Error::Io`] for a file that cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>, dtype: DType) -> Result<()> {
        let weights = self.student.variables.iter();
        let weights =
            weights.map(|(name, variable)| Ok((name.clone(), variable.as_detached_tensor().to_dtype(dtype)?)));
        write::write_folder(folder.as_ref(), &self.config, &self.tokenizer, weights.collect::<Result<_>>()?)
    }
}

/// Opens a saved run, and finds its number of completed steps; an error if it has another configuration, other texts or
/// another teacher.
fn open_saved(path: &Path, identity: &[(String, String)]) -> Result<(Checkpoint, usize)> {
    let saved = Checkpoint::open(path)?;
    for (name, now) in identity {
        if saved.metadata().get(name) != Some(now) {
            let other = if name == "config" { "other settings" } else { "other texts or another teacher" };
            let reason = format!("is of a run that had {other}: remove it, or train in another folder");
            return Err(Error::file(path, reason));
        }
    }
    let step = saved.metadata().get("step").and_then(|step| step.parse().ok());
    Ok((saved, step.ok_or_else(|| Error::file(path, "its header has no number of steps"))?))
}

#[cfg(test)]
mod tests {
    use candle_attention::PaddedIds;
    use candle_core::Device;

    use super::*;
    use candle_attention_text::{EncodeOptions, SentenceEncoder};

    /// Texts of any length, longer than in training and longer than the model takes, too, have the vectors of the
    /// student.
    #[test]
    fn the_written_model_is_the_student() {
        let config = TrainConfig {
            vocab_size: 60,
            hidden_size: 8,
            num_attention_heads: 2,
            num_hidden_layers: 1,
            intermediate_size: 12,
            max_position_embeddings: 20,
            max_length: 16,
            batch_size: 2,
            steps: 5,
            ..Default::default()
        };
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let texts = ["a cat sleeps", "stocks rose", "", &"cat ".repeat(17), &"cat ".repeat(50)].map(String::from);
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tiny-bert");
        let teacher = Teacher::open(fixture, DType::F32).unwrap();
        let mut trainer = Trainer::new(config, &texts, &teacher, path("run"), None).unwrap();
        while trainer.step().unwrap().is_some() {}
        trainer.write(path("model"), DType::F32).unwrap();
        let ids = vocabulary::encode(&trainer.tokenizer, &texts, 20).unwrap();
        let want = trainer.student.embed(&PaddedIds::new(&ids, 0, &Device::Cpu).unwrap()).unwrap();
        let encoder = SentenceEncoder::from_folder(path("model"), DType::F32, &Device::Cpu).unwrap();
        let got = encoder.encode(&texts.each_ref().map(String::as_str), &EncodeOptions::default()).unwrap();
        let difference = (got - want).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < 1e-5, "{difference}");
    }
}
