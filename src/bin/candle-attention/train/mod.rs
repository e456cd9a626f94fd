//! Trains a small text encoder from scratch, writes it in the layout of Hugging Face, and measures it.

mod record;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::shared::output::{Kind, Output};
use super::shared::program::Command;
use super::shared::{Result, device};
use candle_attention::encoder::{EncodeOptions, SentenceEncoder};
use candle_attention::train::{Agreement, Step, StudentKind, Teacher, TrainConfig, Trainer, agreement, read_texts};
use candle_core::{DType, Device, Tensor};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

use record::{Mean, Record};

/// Trains a small text encoder from scratch.
///
/// An interrupted run continues from its last save when it is started again with the same arguments, with the same losses
/// bit for bit. With --eval and without --text, the model in --output is only measured.
///
/// Example: train --text train.txt --teacher all-MiniLM-L6-v2 --eval held_back.txt --output model
#[derive(Parser)]
#[command(name = "train", verbatim_doc_comment)]
pub struct Train {
    /// The file of texts to train on, one per line
    #[arg(long, required_unless_present = "eval")]
    text: Option<PathBuf>,
    /// The folder of a sentence-transformers model to learn from [default: train a masked language model]
    #[arg(long)]
    teacher: Option<PathBuf>,
    /// The dtype in which the teacher encodes the training texts; measurements are in f32
    #[arg(long, default_value = "f32", value_parser = device::dtype)]
    teacher_dtype: DType,
    /// A file of texts to measure on, one per line; these texts are excluded from training
    #[arg(long, requires = "teacher")]
    eval: Option<PathBuf>,
    /// The folder to write the model to
    #[arg(long)]
    output: PathBuf,
    /// The folder of the run: its saved state, and the teacher's embeddings
    #[arg(long, default_value = "target/train")]
    run: PathBuf,
    /// Draw the losses and the measurements on held-out texts as SVG, anew at each save
    #[arg(long, value_name = "FILE", requires = "text")]
    plot: Option<PathBuf>,
    /// Train static embeddings instead: one vector per token, averaged; they are measured, not written
    #[arg(long = "static")]
    static_vectors: bool,
    /// The dtype of the written weights: f32, f64, f16 or bf16
    #[arg(long, default_value = "f16", value_parser = device::dtype)]
    dtype: DType,
    /// Steps between two saves
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..))]
    save_every: u64,
    #[command(flatten)]
    sizes: Sizes,
}

/// The settings of `TrainConfig` that the command line can change.
#[derive(clap::Args)]
struct Sizes {
    /// The size of the vocabulary, in tokens
    #[arg(long)]
    vocab_size: Option<usize>,
    /// The width of the hidden states
    #[arg(long)]
    hidden_size: Option<usize>,
    /// The number of layers
    #[arg(long)]
    layers: Option<usize>,
    /// The number of attention heads per layer
    #[arg(long)]
    heads: Option<usize>,
    /// The width of the feed-forward layers
    #[arg(long)]
    intermediate_size: Option<usize>,
    /// The longest text of the trained model, in tokens
    #[arg(long)]
    max_positions: Option<usize>,
    /// The longest text during training, in tokens
    #[arg(long)]
    max_length: Option<usize>,
    /// Texts per training step
    #[arg(long)]
    batch_size: Option<usize>,
    /// The number of training steps
    #[arg(long)]
    steps: Option<usize>,
    /// The steps over which the learning rate rises to its maximum
    #[arg(long)]
    warmup_steps: Option<usize>,
    /// The largest learning rate
    #[arg(long)]
    learning_rate: Option<f64>,
    /// The weight of the loss on similarities between texts
    #[arg(long)]
    similarity_weight: Option<f64>,
    /// The seed of all random numbers
    #[arg(long)]
    seed: Option<u64>,
}

impl Train {
    fn config(&self) -> TrainConfig {
        let (sizes, mut config) = (&self.sizes, TrainConfig::default());
        fn set<T: Copy>(field: &mut T, given: Option<T>) {
            *field = given.unwrap_or(*field);
        }
        set(&mut config.vocab_size, sizes.vocab_size);
        set(&mut config.hidden_size, sizes.hidden_size);
        set(&mut config.num_hidden_layers, sizes.layers);
        set(&mut config.num_attention_heads, sizes.heads);
        set(&mut config.intermediate_size, sizes.intermediate_size);
        set(&mut config.max_position_embeddings, sizes.max_positions);
        set(&mut config.max_length, sizes.max_length);
        set(&mut config.batch_size, sizes.batch_size);
        set(&mut config.steps, sizes.steps);
        set(&mut config.warmup_steps, sizes.warmup_steps);
        set(&mut config.learning_rate, sizes.learning_rate);
        set(&mut config.similarity_weight, sizes.similarity_weight);
        set(&mut config.seed, sizes.seed);
        config.with_kind(if self.static_vectors { StudentKind::Static } else { StudentKind::Encoder })
    }
}

impl Command for Train {
    fn run(self) -> Result<()> {
        train(&self)
    }
}

fn train(arguments: &Train) -> Result<()> {
    let inputs: Vec<&Path> = [&arguments.text, &arguments.eval].into_iter().flatten().map(PathBuf::as_path).collect();
    let plot = arguments.plot.as_deref().map(|path| Output::new(path, Kind::Svg, &inputs)).transpose()?;
    let open = |dtype| arguments.teacher.as_ref().map(|folder| Teacher::open(folder, dtype)).transpose();
    let held_back = arguments.eval.as_ref().map(|path| read_texts(path, &[])).transpose()?.unwrap_or_default();
    let measure = match (open(DType::F32)?, held_back.is_empty()) {
        (Some(teacher), false) => Some((&held_back[..], teacher.encode(&held_back)?)),
        _ => None,
    };
    let Some(text) = &arguments.text else { return report(&arguments.output, measure.as_ref()) };
    let texts = read_texts(text, &held_back)?;

    let start = Instant::now();
    let teacher = open(arguments.teacher_dtype)?;
    let bar = bar("{msg} {bar:30} {pos}/{len} {eta}", "encoding with the teacher")?;
    let on_progress = |done: usize, all: usize| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    };
    let mut trainer = Trainer::new(arguments.config(), &texts, teacher.as_ref(), &arguments.run, Some(&on_progress))?;
    bar.finish_and_clear();
    if !arguments.static_vectors {
        trainer.check_writable(&arguments.output)?;
    }
    let config = trainer.config();
    let (parameters, steps) = (trainer.parameters(), config.steps);
    eprintln!("{} texts, {parameters} parameters, step {} of {steps}", texts.len(), trainer.steps_done());
    run(&mut trainer, arguments, plot.as_ref(), measure.as_ref(), start)?;

    if arguments.static_vectors {
        return Ok(());
    }
    trainer.write(&arguments.output, arguments.dtype)?;
    report(&arguments.output, measure.as_ref())
}

/// Texts held out of training, and the teacher's embeddings of them.
type Measure<'a> = (&'a [String], Tensor);

fn run(
    trainer: &mut Trainer,
    arguments: &Train,
    plot: Option<&Output>,
    measure: Option<&Measure>,
    start: Instant,
) -> Result<()> {
    let steps = trainer.config().steps;
    let bar = bar("{bar:30} {pos}/{len} loss {msg} {eta}", "")?;
    bar.set_length(steps as u64);
    bar.reset_eta();
    let mut record = Record::open(&arguments.run, trainer.steps_done(), steps)?;
    // Both means are reset at each save, so that a resumed run reports the same values.
    let (mut since_save, mut since_point) = (Mean::default(), Mean::default());
    while let Some(Step { number, loss, grad_norm, learning_rate, .. }) = trainer.step()? {
        since_save.add(loss);
        since_point.add(loss);
        bar.set_position(number as u64);
        bar.set_message(format!("{:.4}", since_save.value()));
        let saves = number % arguments.save_every as usize == 0 || number == steps;
        if saves || record.has_point(number) {
            record.losses.push((number, std::mem::take(&mut since_point).value()));
        }
        if !saves {
            continue;
        }
        let (mean, seconds) = (std::mem::take(&mut since_save).value(), start.elapsed().as_secs());
        let mut line = format!("step {number}: loss {mean:.4}, gradient {grad_norm:.3}, rate {learning_rate:.1e}");
        if let Some((texts, theirs)) = measure {
            let Agreement { spearman, top_1_in_10 } = compare(&trainer.encode(texts)?, theirs)?;
            line += &format!(", held back: Spearman {spearman:.3}, top 1 in 10 {top_1_in_10:.3}");
            record.held_back.push((number, spearman, top_1_in_10));
        }
        // Before the run: `Record::open` drops measurements from after the run's last save.
        record.save(&arguments.run)?;
        trainer.save()?;
        if let Some(plot) = plot {
            record.draw(plot)?;
        }
        bar.suspend(|| eprintln!("{line} ({seconds} s)"));
    }
    bar.finish_and_clear();
    match plot {
        Some(plot) => record.draw(plot),
        None => Ok(()),
    }
}

/// Measures the model of a folder, loaded as its users load it.
fn report(folder: &Path, measure: Option<&Measure>) -> Result<()> {
    let Some((texts, theirs)) = measure else { return Ok(()) };
    let encoder = SentenceEncoder::from_folder(folder, DType::F32, &Device::Cpu)?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let Agreement { spearman, top_1_in_10 } = compare(&encoder.encode(&texts, &EncodeOptions::default())?, theirs)?;
    println!("{}: {} texts held back", folder.display(), texts.len());
    println!("Spearman's correlation of similarities with the teacher's  {spearman:.3}");
    let group = format!("the teacher's nearest of {} among the ten nearest", GROUP.min(texts.len()));
    println!("{group:<57}  {top_1_in_10:.3}");
    Ok(())
}

/// The number of texts that are compared with each other.
const GROUP: usize = 1_000;

/// The mean agreement within groups of a thousand texts; fewer are one group.
fn compare(ours: &Tensor, theirs: &Tensor) -> Result<Agreement> {
    let n = theirs.dim(0)?;
    let size = GROUP.min(n);
    let group = |i: usize| Ok(agreement(&ours.narrow(0, i * size, size)?, &theirs.narrow(0, i * size, size)?)?);
    let groups = (0..n / size).map(group).collect::<Result<Vec<Agreement>>>()?;
    let mean = |of: fn(&Agreement) -> f64| groups.iter().map(of).sum::<f64>() / groups.len() as f64;
    Ok(Agreement { spearman: mean(|a| a.spearman), top_1_in_10: mean(|a| a.top_1_in_10) })
}

/// A progress bar, visible on a terminal only.
fn bar(template: &str, message: &'static str) -> Result<ProgressBar> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(1) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template(template)?);
    Ok(bar.with_message(message))
}
