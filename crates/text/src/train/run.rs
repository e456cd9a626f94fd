//! The training loop.

use std::path::{Path, PathBuf};

use candle_attention::io::{create_folder, is_present};
use candle_attention::{Error, PaddedIds, Result};
use candle_core::{DType, Device, Tensor};
use tokenizers::Tokenizer;

use crate::hash::Fingerprint;
use crate::train::adamw::AdamW;
use crate::train::config::{StudentKind, TrainConfig};
use crate::train::data::Batches;
use crate::train::loss::Objective;
use crate::train::state;
use crate::train::state::State;
use crate::train::student::{Student, unit};
use crate::train::teacher::{Teacher, basis};
use crate::train::{vocabulary, write};

/// A training run: the student, what it learns from, and its progress.
///
/// ```no_run
/// use candle_attention_text::train::{Teacher, TrainConfig, Trainer, read_texts};
/// let texts = read_texts("text.txt", &[])?;
/// let teacher = Teacher::open("all-MiniLM-L6-v2", candle_core::DType::F32)?;
/// let mut trainer = Trainer::new(TrainConfig::default(), &texts, Some(&teacher), "run", None)?;
/// while let Some(step) = trainer.step()? {
///     println!("{} {}", step.number, step.loss);
/// }
/// trainer.write("model", candle_core::DType::F16)?;
/// # Ok::<(), candle_attention::Error>(())
/// ```
pub struct Trainer {
    /// As it was asked for: the vocabulary may be larger than what the texts give.
    asked: TrainConfig,
    config: TrainConfig,
    tokenizer: Tokenizer,
    ids: Vec<Vec<u32>>,
    batches: Batches,
    student: Student,
    objective: Objective,
    optimizer: AdamW,
    step: usize,
    /// The number of steps that the saved run had, if this one has more.
    prolonged_from: Option<usize>,
    folder: PathBuf,
    /// Fingerprint of the texts and the teacher.
    key: String,
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
    /// A run on these texts. With a teacher, the student learns the teacher's embeddings, and each word embedding
    /// starts as the teacher's embedding of the word; without one, it learns to predict masked words.
    ///
    /// `folder` holds the saved run and the teacher's embeddings. If there is a saved run, this one continues it. With
    /// more steps than the saved run had, it is prolonged: from here on the learning rate is that of the longer run at
    /// this step, so it jumps up again if it had fallen already.
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
        teacher: Option<&Teacher>,
        folder: impl AsRef<Path>,
        on_progress: Option<&dyn Fn(usize, usize)>,
    ) -> Result<Self> {
        let folder = folder.as_ref().to_path_buf();
        let Start { asked, key, saved } = Start::new(config, texts, teacher, &folder)?;
        create_folder(&folder)?;
        let tokenizer = match &saved {
            Some(saved) => saved.tokenizer(asked.vocab_size)?,
            None => vocabulary::train(texts, asked.vocab_size)?,
        };
        let config = TrainConfig { vocab_size: tokenizer.get_vocab_size(true), ..asked.clone() };
        let objective = match teacher {
            Some(teacher) => {
                let embeddings = teacher.encode_once(texts, &folder, on_progress)?;
                let basis = basis(&embeddings, config.hidden_size)?;
                Objective::Teacher { embeddings, basis, similarity_weight: config.similarity_weight }
            }
            None => Objective::MaskedWords { vocab_size: config.vocab_size, seed: config.seed },
        };
        let student = match (&saved, teacher, &objective) {
            (Some(saved), ..) => Student::from_tensors(&config, saved.parameters(&config)?)?,
            (None, Some(teacher), Objective::Teacher { basis, .. }) => {
                let words = teacher.encode(&vocabulary::words(&tokenizer))?.matmul(basis)?;
                // The mean of all words would dominate the mean of every text.
                let words = words.broadcast_sub(&words.mean_keepdim(0)?)?;
                Student::new(&config, Some(&unit(&words)?))?
            }
            _ => Student::new(&config, None)?,
        };
        let mut optimizer = AdamW::new(student.variables(), config.weight_decay, config.max_grad_norm)?;
        if let Some(saved) = &saved {
            saved.restore(&mut optimizer)?;
        }
        let ids = vocabulary::encode(&tokenizer, texts, config.max_length)?;
        let batches = Batches::new(ids.iter().map(Vec::len).collect(), config.batch_size, config.seed);
        let prolonged_from = saved.as_ref().map(|saved| saved.steps).filter(|steps| *steps < config.steps);
        let step = saved.map_or(0, |saved| saved.step);
        Ok(Self {
            asked,
            config,
            tokenizer,
            ids,
            batches,
            student,
            objective,
            optimizer,
            step,
            prolonged_from,
            folder,
            key,
        })
    }

    /// The configuration, with the size of the vocabulary and the number of warm-up steps that the run has.
    pub fn config(&self) -> &TrainConfig {
        &self.config
    }

    /// Number of trained parameters.
    pub fn parameters(&self) -> usize {
        self.optimizer.parameters.values().map(|parameter| parameter.variable.elem_count()).sum()
    }

    /// Number of completed steps.
    pub fn steps_done(&self) -> usize {
        self.step
    }

    /// The number of steps that the saved run had, if this one has more.
    pub fn prolonged_from(&self) -> Option<usize> {
        self.prolonged_from
    }

    /// Trains on one batch; `None` once all steps are done.
    ///
    /// # Errors
    /// [`Error::Value`] if the loss, the norm of the gradients or an updated weight is not finite. Then nothing has
    /// changed: the run can still be saved, as it was after the step before.
    pub fn step(&mut self) -> Result<Option<Step>> {
        if self.step >= self.config.steps {
            return Ok(None);
        }
        let batch = self.batches.at(self.step);
        let rows: Vec<&[u32]> = batch.iter().map(|&text| &self.ids[text as usize][..]).collect();
        let loss = self.objective.loss(&self.student, batch, &rows, self.step)?;
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

    /// Saves the run to its folder, atomically: after a kill, a full disk or a power failure the run continues from
    /// this save or from the one before. A trainer made of the same configuration, texts and teacher continues it; the
    /// [module](crate::train) says how exactly.
    ///
    /// # Errors
    /// If the file cannot be written; the save before is then still there.
    pub fn save(&self) -> Result<()> {
        let tokenizer = vocabulary::to_json(&self.tokenizer)?;
        state::save(&self.folder.join(state::FILE), &self.asked, &self.key, self.step, tokenizer, &self.optimizer)
    }

    /// One unit vector per text, `(texts, hidden_size)`, by the student in its current state.
    ///
    /// # Errors
    /// If there is no text.
    pub fn encode(&self, texts: &[String]) -> Result<Tensor> {
        let ids = vocabulary::encode(&self.tokenizer, texts, self.config.max_position_embeddings)?;
        let batch = |rows: &[Vec<u32>]| Ok(self.student.embed(&PaddedIds::new(rows, 0, &Device::Cpu)?)?.detach());
        Ok(Tensor::cat(&ids.chunks(64).map(batch).collect::<Result<Vec<_>>>()?, 0)?)
    }

    /// Writes the model in its current state, with weights in `dtype`, to a folder that transformers,
    /// sentence-transformers and [`SentenceEncoder::from_folder`](crate::SentenceEncoder::from_folder) read.
    ///
    /// A new folder appears complete or not at all. In a folder that this run wrote, only the weights are replaced,
    /// atomically: a kill, a full disk or a power failure leaves the old ones or the new ones. Other files there stay.
    /// What the run wrote is recognized by `candle_attention_run` in the metadata of the weights: a fingerprint of the
    /// configuration except the number of steps, the texts and the teacher.
    ///
    /// # Errors
    /// The errors of [`check_writable`](Self::check_writable); [`Error::Io`] for a file that cannot be written.
    pub fn write(&self, folder: impl AsRef<Path>, dtype: DType) -> Result<()> {
        let small = self.small_files()?;
        let weights = self.student.variables().into_iter();
        let weights = weights.map(|(name, variable)| Ok((name, variable.as_detached_tensor().to_dtype(dtype)?)));
        write::write_folder(folder.as_ref(), self.mark()?, &small, weights.collect::<Result<_>>()?)
    }

    /// Checks that [`write`](Self::write) may write to `folder`: there is nothing, an empty folder, or a model that
    /// this run wrote. Call it before a long training.
    ///
    /// # Errors
    /// [`Error::Config`] for static vectors; [`Error::File`] for a folder or a file that the run did not write.
    pub fn check_writable(&self, folder: impl AsRef<Path>) -> Result<()> {
        write::check_writable(folder.as_ref(), &self.mark()?, &self.small_files()?)
    }

    /// Checks before any work, so before the teacher encodes, what [`new`](Self::new) and, if there is an `output`,
    /// [`check_writable`](Self::check_writable) would refuse. It writes nothing.
    ///
    /// # Errors
    /// An invalid configuration; a saved run in `folder` of another configuration, other texts or another teacher;
    /// [`Error::File`] for an `output` that this run did not write.
    pub fn check(
        config: &TrainConfig,
        texts: &[String],
        teacher: Option<&Teacher>,
        folder: impl AsRef<Path>,
        output: Option<&Path>,
    ) -> Result<()> {
        let start = Start::new(config.clone(), texts, teacher, folder.as_ref())?;
        output.map_or(Ok(()), |output| write::check_folder(output, &write::mark(&start.asked, &start.key)?))
    }

    fn mark(&self) -> Result<String> {
        write::mark(&self.asked, &self.key)
    }

    fn small_files(&self) -> Result<write::SmallFiles> {
        if self.config.kind == StudentKind::Static {
            return Err(Error::config("kind", "static", "encoder, because static vectors are for comparison only"));
        }
        write::small_files(&self.config, &self.tokenizer)
    }
}

/// What is known of a run before any work.
struct Start {
    asked: TrainConfig,
    key: String,
    saved: Option<State>,
}

impl Start {
    fn new(config: TrainConfig, texts: &[String], teacher: Option<&Teacher>, folder: &Path) -> Result<Self> {
        config.validate()?;
        if texts.len() < 2 || u32::try_from(texts.len()).is_err() {
            return Err(Error::value("the number of texts", texts.len(), "at least 2, at most 2^32 - 1"));
        }
        if teacher.is_none() && config.kind == StudentKind::Static {
            let allowed = "encoder if there is no teacher, because static vectors see no context";
            return Err(Error::config("kind", "static", allowed));
        }
        if let Some(width) = teacher.map(Teacher::embedding_size).filter(|width| *width < config.hidden_size) {
            let allowed = format!("at most {width}, the teacher's embedding size");
            return Err(Error::config("hidden_size", config.hidden_size, allowed));
        }
        let of_teacher = teacher.map_or("", |teacher| &teacher.key);
        let parts = texts.iter().map(|text| text.as_bytes()).chain([of_teacher.as_bytes()]);
        let key = parts.collect::<Fingerprint>().hex();
        let asked = TrainConfig { warmup_steps: Some(config.resolved_warmup_steps()), ..config };
        let path = folder.join(state::FILE);
        let saved = if is_present(&path)? { Some(State::open(&path, &asked, &key)?) } else { None };
        Ok(Self { asked, key, saved })
    }
}
