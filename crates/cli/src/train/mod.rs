//! Trains a small text encoder from scratch, writes it in the layout of Hugging Face, and measures it.

mod measure;
mod places;
mod progress;
mod record;
mod session;

use std::path::{Path, PathBuf};
use std::time::Duration;

use candle_attention::ComputeType;
use candle_attention_text::train::{StudentKind, Teacher, TrainConfig, Trainer, read_texts};
use candle_core::DType;
use clap::Parser;
use measure::HeldBack;
use progress::Progress;
use record::Record;
use session::Session;

use super::shared::output::{Kind, Output};
use super::shared::program::Command;
use super::shared::{Result, about, device, interrupt, model, print};

/// Train a small text encoder from scratch.
///
/// The run is saved from time to time and after Ctrl-C. The same command then continues it, with the same losses bit
/// for bit; with more --steps, a finished run is prolonged. With --eval and without --text, the model in --output is
/// only measured.
#[derive(Parser)]
#[command(name = "train", after_help = EXAMPLES)]
pub struct Train {
    /// The file of texts to train on, one per line
    #[arg(long, value_name = "FILE", required_unless_present = "eval")]
    text: Option<PathBuf>,
    #[arg(
        long,
        value_name = model::FOLDER_OR_ID,
        help = model::or_hub_id(
            "A model to learn from: a folder of sentence-transformers",
            " [default: none; a masked language model is trained]",
        )
    )]
    teacher: Option<String>,
    /// The branch, tag or commit of a teacher on the hub [default: main]
    #[arg(long, requires = "teacher", hide = !cfg!(feature = "hub"))]
    revision: Option<String>,
    /// What the teacher encodes the training texts in: f32, f64, f16, bf16, int8, q8_0 or q4_0; measurements are in f32
    /// [default: f32, with weights that are stored in few bits as they are]
    #[arg(long, hide_possible_values = true, value_parser = device::compute_type())]
    teacher_dtype: Option<ComputeType>,
    /// A file of texts to measure on, one per line; these texts are not trained on. It needs --teacher [default:
    /// none]
    #[arg(long, value_name = "FILE", requires = "teacher")]
    eval: Option<PathBuf>,
    /// The folder to write the model to: a new or an empty one, or the one that this run wrote before
    #[arg(long, value_name = "FOLDER")]
    output: PathBuf,
    /// The folder of the run: its saved state, and the teacher's embeddings [default: OUTPUT.run]
    #[arg(long, value_name = "FOLDER")]
    run: Option<PathBuf>,
    /// Draw the losses and the measurements on held-back texts as SVG, anew at each save [default: no picture]
    #[arg(long, value_name = "FILE", requires = "text")]
    plot: Option<PathBuf>,
    /// Let --plot replace a file that is no SVG picture [default: such a file is an error]
    #[arg(long, requires = "plot")]
    force: bool,
    /// Train static embeddings instead: one vector per token, averaged; they are measured, not written
    #[arg(long = "static", requires = "teacher")]
    static_vectors: bool,
    /// The dtype of the written weights
    #[arg(long, default_value = "f16", value_parser = device::dtype())]
    dtype: DType,
    /// Steps between two measurements on the held-back texts, each with a save
    #[arg(long, value_name = "STEPS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    save_every: u64,
    /// Seconds between two saves, at most
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    save_seconds: u64,
    /// Seconds between two lines of progress, where standard error is not a terminal
    #[arg(long, value_name = "SECONDS", default_value_t = 15)]
    progress_seconds: u64,
    #[command(flatten)]
    sizes: Sizes,
}

const EXAMPLES: &str = "\
Examples:
  candle-attention train --text texts.txt --output words --steps 20 --batch-size 16 --vocab-size 400 --hidden-size 16
  candle-attention train --text texts.txt --eval held_back.txt --teacher sentence-transformers/all-MiniLM-L6-v2 \\
      --output student --steps 20 --batch-size 16 --vocab-size 400 --hidden-size 16 --plot student.svg";

/// The settings of `TrainConfig` that the command line can change.
#[derive(clap::Args)]
struct Sizes {
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
    /// The number of training steps; more than before prolong the run
    #[arg(long, default_value_t = TrainConfig::default().steps)]
    steps: usize,
    /// The steps over which the learning rate rises to its maximum, at most a tenth of all
    /// [default: a tenth of the steps, at most 250]
    #[arg(long, value_name = "STEPS")]
    warmup_steps: Option<usize>,
    /// The largest learning rate
    #[arg(long, value_name = "RATE", default_value_t = TrainConfig::default().learning_rate)]
    learning_rate: f64,
    /// With a teacher: the weight of the loss on similarities between texts
    #[arg(long, value_name = "WEIGHT", default_value_t = TrainConfig::default().similarity_weight)]
    similarity_weight: f64,
    /// The seed of all random numbers
    #[arg(long, default_value_t = TrainConfig::default().seed)]
    seed: u64,
}

impl Train {
    fn config(&self) -> TrainConfig {
        let sizes = &self.sizes;
        let mut config = TrainConfig::default()
            .with_kind(if self.static_vectors { StudentKind::Static } else { StudentKind::Encoder })
            .with_vocab_size(sizes.vocab_size)
            .with_hidden_size(sizes.hidden_size)
            .with_num_hidden_layers(sizes.layers)
            .with_num_attention_heads(sizes.heads)
            .with_intermediate_size(sizes.intermediate_size)
            .with_max_position_embeddings(sizes.max_positions)
            .with_max_length(sizes.max_length)
            .with_batch_size(sizes.batch_size)
            .with_steps(sizes.steps)
            .with_learning_rate(sizes.learning_rate)
            .with_similarity_weight(sizes.similarity_weight)
            .with_seed(sizes.seed);
        config.warmup_steps = sizes.warmup_steps;
        config
    }

    /// Reads the texts to train on.
    fn texts(&self, path: &Path, held_back: &[String]) -> Result<Vec<String>> {
        let texts = read_texts(path, held_back)?;
        match texts.len() {
            1 => Err(about(path, &"holds 1 text, expected at least 2").into()),
            _ => Ok(texts),
        }
    }
}

impl Command for Train {
    fn run(self) -> Result<()> {
        let teacher = self.teacher.as_ref().map(|name| model::locate(name, self.revision.as_deref())).transpose()?;
        match &self.text {
            Some(text) => train(&self, text, teacher.as_deref()),
            None => {
                let held_back = HeldBack::open(self.eval.as_deref(), teacher.as_deref())?;
                held_back.map_or(Ok(()), |held_back| held_back.report(&self.output, false))
            }
        }
    }
}

/// Everything that can be refused is refused before the teacher encodes and the student learns.
fn train(arguments: &Train, text: &Path, teacher_folder: Option<&Path>) -> Result<()> {
    let config = arguments.config();
    config.validate()?;
    let run_folder = places::run_folder(&arguments.output, arguments.run.as_deref())?;
    let plot = arguments.plot.as_deref().map(|path| Output::new(path, Kind::Svg, arguments.force)).transpose()?;
    if !arguments.static_vectors {
        places::check_output(&arguments.output, &run_folder, teacher_folder, arguments.plot.as_deref())?;
    }
    places::check_run(&run_folder, teacher_folder)?;
    // A file of this name that is no record of a run is not replaced.
    Record::open(&run_folder, config.steps, config.steps)?;
    let held_back = arguments.eval.as_deref().map(measure::read).transpose()?.unwrap_or_default();
    let texts = arguments.texts(text, &held_back)?;
    let open = |folder| Teacher::open(folder, arguments.teacher_dtype.unwrap_or_default());
    let teacher = teacher_folder.map(open).transpose()?;
    teacher_folder.map(model::check_weights).transpose()?;
    let output = (!arguments.static_vectors).then_some(arguments.output.as_path());
    Trainer::check(&config, &texts, teacher.as_ref(), &run_folder, output)?;

    let run = places::RunFolder::lock(&run_folder)?;
    interrupt::set_outcome(&format!("the same command goes on with what {} holds", run_folder.display()));
    let every = Duration::from_secs(arguments.progress_seconds);
    let progress = Progress::of_texts(texts.len(), every)?;
    let on_progress = |done: usize, _: usize| progress.at(done, "");
    let trainer = Trainer::new(config, &texts, teacher.as_ref(), run.path(), Some(&on_progress));
    progress.finish();
    let mut trainer = trainer?;
    drop(teacher);
    if !arguments.static_vectors {
        trainer.check_writable(&arguments.output)?;
    }
    let held_back = HeldBack::open(arguments.eval.as_deref(), teacher_folder)?;
    introduce(&trainer, texts.len(), arguments.sizes.vocab_size);
    let session = Session {
        run: run.path(),
        plot: plot.as_ref(),
        held_back: held_back.as_ref(),
        save_every: arguments.save_every,
        save_seconds: Duration::from_secs(arguments.save_seconds),
        progress_seconds: every,
    };
    session.run(&mut trainer)?;

    if arguments.static_vectors {
        return Ok(());
    }
    trainer.write(&arguments.output, arguments.dtype)?;
    let on_stderr = plot.is_some_and(|plot| plot.is_stdout());
    held_back.map_or(Ok(()), |held_back| held_back.report(&arguments.output, on_stderr))
}

/// Prints what is trained, and what is otherwise than the user may expect.
fn introduce(trainer: &Trainer, texts: usize, vocab_size: usize) {
    let (config, done) = (trainer.config(), trainer.steps_done());
    let (parameters, steps) = (trainer.parameters(), config.steps);
    print::to_stderr(format_args!("{texts} texts, {parameters} parameters, step {done} of {steps}"));
    if config.vocab_size < vocab_size {
        let found = config.vocab_size;
        print::note(format_args!("the texts give a vocabulary of {found} tokens, less than --vocab-size {vocab_size}"));
    }
    if let Some(before) = trainer.prolonged_from() {
        print::note(format_args!(
            "the run of {before} steps is prolonged to {steps}: the learning rate goes on as that of {steps} steps, so it may \
             rise again"
        ));
    }
}
