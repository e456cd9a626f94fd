//! Trains a small text encoder on the vectors of another, writes it in the layout of Hugging Face, and measures it.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use candle_attention::ComputeType;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_attention_train::{AGREEMENT_GROUP, Agreement, Step, Teacher, TrainConfig, Trainer, agreement};
use candle_core::{DType, Device};
use clap::Parser;

use super::shared::bar::bar;
use super::shared::checkpoint::{check_weights, locate};
use super::shared::output::{check_new_folder, check_parent};
use super::shared::program::{Command, Interrupted, name_option};
use super::shared::{Result, about, device, fail, interrupt, model, positive, print, read};

/// Train a small text encoder on the vectors of another.
///
/// The run is saved every --save-every steps and after Ctrl-C, and the same command then continues it. With --eval and
/// without --text, the model in --output is only measured.
///
/// 20 or 100 steps are a smoke test: they take a minute or so, and the model is of no use yet. A useful one takes
/// thousands of steps on some hundred thousand texts: the model in this program took 9,000, about half an hour.
#[derive(Parser)]
#[command(name = "train", after_help = model::examples("Examples:
  candle-attention train --text texts.txt --teacher sentence-transformers/all-MiniLM-L6-v2 --output student \\
      --steps 20 --batch-size 16 --vocab-size 400 --hidden-size 16
  candle-attention train --text texts.txt --eval held_back.txt --teacher sentence-transformers/all-MiniLM-L6-v2 \\
      --output measured --steps 20 --batch-size 16 --vocab-size 400 --hidden-size 16"))]
pub struct Train {
    /// The file of texts to train on, one per line
    #[arg(long, value_name = "FILE", required_unless_present = "eval")]
    text: Option<PathBuf>,
    #[arg(
        long,
        value_name = model::FOLDER_OR_ID,
        help = model::or_hub_id("The model to learn from: a folder of sentence-transformers", "")
    )]
    teacher: String,
    /// The branch, tag or commit of a teacher on the hub [default: main]
    #[arg(long, hide = !cfg!(feature = "hub"))]
    revision: Option<String>,
    /// What the teacher encodes the training texts in: f32, f64, f16, bf16, int8, q8_0 or q4_0; measurements are in f32
    /// [default: f32, with weights that are stored in few bits as they are]
    #[arg(long, hide_possible_values = true, value_parser = device::compute_type())]
    teacher_dtype: Option<ComputeType>,
    /// A file of texts to measure the model on, one per line; these texts are not trained on [default: none]
    #[arg(long, value_name = "FILE")]
    eval: Option<PathBuf>,
    /// The folder to write the model to, which must not exist; OUTPUT.run holds the saved run
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
    /// The dtype of the written weights
    #[arg(long, default_value = "f16", value_parser = device::dtype())]
    dtype: DType,
    /// Steps between two saves
    #[arg(long, value_name = "STEPS", default_value_t = 500, value_parser = positive::<u64>)]
    save_every: u64,
    /// The largest size of the vocabulary; short texts give a smaller one
    #[arg(long, value_name = "TOKENS", default_value_t = TrainConfig::default().vocab_size)]
    vocab_size: usize,
    /// The width of the hidden states
    #[arg(long, value_name = "NUMBERS", default_value_t = TrainConfig::default().hidden_size)]
    hidden_size: usize,
    /// The number of layers
    #[arg(long, value_name = "LAYERS", default_value_t = TrainConfig::default().num_hidden_layers)]
    layers: usize,
    /// The number of attention heads per layer
    #[arg(long, value_name = "HEADS", default_value_t = TrainConfig::default().num_attention_heads)]
    heads: usize,
    /// The width of the feed-forward layers
    #[arg(long, value_name = "NUMBERS", default_value_t = TrainConfig::default().intermediate_size)]
    intermediate_size: usize,
    /// The longest text of the trained model
    #[arg(long, value_name = "TOKENS", default_value_t = TrainConfig::default().max_position_embeddings)]
    max_positions: usize,
    /// The longest text during training
    #[arg(long, value_name = "TOKENS", default_value_t = TrainConfig::default().max_length)]
    max_length: usize,
    /// Texts per training step
    #[arg(long, value_name = "TEXTS", default_value_t = TrainConfig::default().batch_size)]
    batch_size: usize,
    /// The number of training steps
    #[arg(long, default_value_t = TrainConfig::default().steps)]
    steps: usize,
    /// The largest learning rate
    #[arg(long, value_name = "RATE", default_value_t = TrainConfig::default().learning_rate)]
    learning_rate: f64,
    /// The seed of all random numbers
    #[arg(long, default_value_t = TrainConfig::default().seed)]
    seed: u64,
}

impl Command for Train {
    fn run(self) -> Result<()> {
        let teacher = locate(&self.teacher, self.revision.as_deref())?;
        let held_back = self.eval.as_deref().map(|path| read_texts(path, &[], 3)).transpose()?;
        if let Some(text) = &self.text {
            self.train(text, held_back.as_deref().unwrap_or_default(), &teacher)?;
        }
        held_back.map_or(Ok(()), |texts| report(&self.output, &texts, &teacher))
    }
}

impl Train {
    fn config(&self) -> TrainConfig {
        TrainConfig {
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            num_hidden_layers: self.layers,
            num_attention_heads: self.heads,
            intermediate_size: self.intermediate_size,
            max_position_embeddings: self.max_positions,
            max_length: self.max_length,
            batch_size: self.batch_size,
            steps: self.steps,
            learning_rate: self.learning_rate,
            seed: self.seed,
        }
    }

    /// The folder of the run, beside the output.
    fn run_folder(&self) -> Result<PathBuf> {
        let name = self.output.file_name().ok_or_else(|| about(&self.output, "is not the name of a folder"))?;
        Ok(self.output.with_file_name([name, ".run".as_ref()].join("".as_ref())))
    }

    fn train(&self, text: &Path, held_back: &[String], teacher_folder: &Path) -> Result<()> {
        let (config, run) = (self.config(), self.run_folder()?);
        // Everything that can be refused is refused before the teacher encodes.
        config.validate().map_err(|error| {
            name_option(&error, |field| match field {
                "num_hidden_layers" => Some("layers"),
                "num_attention_heads" => Some("heads"),
                "max_position_embeddings" => Some("max_positions"),
                field => Some(field),
            })
        })?;
        check_new_folder(&self.output)?;
        check_parent(&run)?;
        let texts = read_texts(text, held_back, 2)?;
        let teacher = Teacher::open(teacher_folder, self.teacher_dtype.unwrap_or_default())?;
        check_weights(teacher_folder)?;

        let progress = bar(texts.len(), "encoding with the teacher", "texts")?;
        let on_progress = |done: usize, _: usize| progress.set_position(done as u64);
        let trainer = Trainer::new(config, &texts, &teacher, &run, Some(&on_progress));
        progress.finish_and_clear();
        let mut trainer = trainer?;
        drop(teacher);
        let (count, parameters, done) = (texts.len(), trainer.parameters(), trainer.steps_done());
        print::to_stderr(format_args!("{count} texts, {parameters} parameters, step {done} of {}", self.steps));
        let (found, asked) = (trainer.config().vocab_size, self.vocab_size);
        if found < asked {
            print::note(format_args!("the texts give a vocabulary of {found} tokens, less than --vocab-size {asked}"));
        }
        self.steps(&mut trainer, &run)?;
        trainer.write(&self.output, self.dtype)?;
        let (written, run) = (print::plain(self.output.display()), print::plain(run.display()));
        print::to_stderr(format_args!("{written}: written; {run}, the saved run, may be deleted"));
        Ok(())
    }

    /// Trains until all steps are done, or until an interrupt: then the error is [`Interrupted`].
    fn steps(&self, trainer: &mut Trainer, run: &Path) -> Result<()> {
        let steps = self.steps;
        let progress = bar(steps, "training", "steps")?.with_position(trainer.steps_done() as u64);
        let start = Instant::now();
        interrupt::hold(true);
        while let Some(Step { number, loss, grad_norm, learning_rate, .. }) = trainer.step()? {
            progress.set_position(number as u64);
            let is_asked = interrupt::asked();
            if !number.is_multiple_of(self.save_every as usize) && number < steps && !is_asked {
                continue;
            }
            trainer.save()?;
            if is_asked && number < steps {
                progress.finish_and_clear();
                let run = print::plain(run.display());
                return Err(Interrupted(format!(
                    "interrupted after step {number} of {steps}; saved in {run}: the same command goes on"
                ))
                .into());
            }
            let seconds = start.elapsed().as_secs();
            progress.suspend(|| {
                print::to_stderr(format_args!(
                    "step {number}: loss {loss:.4}, gradient {grad_norm:.3}, learning rate {learning_rate:.1e} ({seconds} s)"
                ))
            });
        }
        interrupt::hold(false);
        progress.finish_and_clear();
        Ok(())
    }
}

/// The different lines of a file that are not blank and not among `held_back`: at least `least`, because pairs of texts
/// are compared.
fn read_texts(path: &Path, held_back: &[String], least: usize) -> Result<Vec<String>> {
    let mut seen: HashSet<String> = held_back.iter().map(|text| text.trim().to_string()).collect();
    let mut texts = read::texts(path, "text")?;
    texts.retain(|text| seen.insert(text.trim().to_string()));
    if texts.len() < least {
        let (found, outside) =
            (print::count(texts.len(), "text"), if held_back.is_empty() { "" } else { " outside --eval" });
        return fail(path, format!("{found}{outside}, expected at least {least} different ones, to compare pairs"));
    }
    Ok(texts)
}

/// Measures the model of a folder, loaded as its users load it, on texts that were held back from training, and prints
/// the result.
fn report(folder: &Path, texts: &[String], teacher: &Path) -> Result<()> {
    let theirs = Teacher::open(teacher, DType::F32)?.encode(texts)?;
    let encoder = SentenceEncoder::from_folder(folder, DType::F32, &Device::Cpu)?;
    let ours = encoder.encode(&read::borrowed(texts), &EncodeOptions::default())?;
    let Agreement { spearman, top_1_in_10 } = agreement(&ours, &theirs)?;
    let group = format!("the teacher's nearest of {} among the ten nearest", AGREEMENT_GROUP.min(texts.len()));
    let mut out = print::stdout_beside_files();
    writeln!(out, "{}: {} texts held back", print::plain(folder.display()), texts.len())?;
    writeln!(out, "Spearman's correlation of similarities with the teacher's  {spearman:.3}")?;
    writeln!(out, "{group:<57}  {top_1_in_10:.3}")?;
    Ok(out.flush()?)
}
