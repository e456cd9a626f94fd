//! Ranks the attention heads of a sentence encoder, measures what pruning costs and saves, and writes a smaller model.

use std::path::PathBuf;
use std::time::Instant;

use super::shared::model::{Batches, Model};
use super::shared::output::{Kind, Output};
use super::shared::plot::{self, Chart, Line};
use super::shared::program::Command;
use super::shared::{Result, bar, read};
use candle_attention::encoder::{SentenceEncoder, write_pruned};
use candle_attention::pruning::{HeadImportance, ImportanceMethod, RankedHead};
use candle_core::{DType, Tensor};
use clap::{Parser, ValueEnum};
use plotters::prelude::SeriesLabelPosition;

/// Ranks the attention heads of a sentence encoder by their importance on your texts, and prunes the least important.
///
/// Every second text ranks the heads. The other texts measure the quality: the cosine between the embeddings of the
/// pruned and of the whole model.
///
/// Example: prune --model all-MiniLM-L6-v2 --file texts.txt --plot pruned.svg --share 0.25 --output smaller
#[derive(Parser)]
#[command(name = "prune", verbatim_doc_comment)]
pub struct Prune {
    #[command(flatten)]
    model: Model,
    #[command(flatten)]
    batches: Batches,
    /// A file of texts, one per line; `-` is standard input
    #[arg(long)]
    file: PathBuf,
    /// How the importance of a head is measured
    #[arg(long, value_enum, default_value_t = By::Gradient)]
    by: By,
    /// Compare heads within their layer only: divide the scores of each layer by their norm
    #[arg(long)]
    by_layer: bool,
    /// The share of heads to prune in the written model, from 0 to 1
    #[arg(long, default_value_t = 0.25)]
    share: f64,
    /// Write the pruned model to this folder, which must not exist
    #[arg(long)]
    output: Option<PathBuf>,
    /// Draw quality and time against the share of pruned heads, as SVG
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Read at most this many texts
    #[arg(long, default_value_t = 400)]
    limit: usize,
    /// The number of timed runs; the median is reported
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    Gradient,
    Ablation,
    Entropy,
}

/// Quality and time of the model without a share of its heads.
struct Point {
    share: f64,
    heads: usize,
    cosine: f64,
    time: f64,
}

impl Command for Prune {
    fn run(self) -> Result<()> {
        prune(&self)
    }
}

fn prune(arguments: &Prune) -> Result<()> {
    if !(0.0..=1.0).contains(&arguments.share) {
        return Err(format!("--share is {}, expected 0 to 1", arguments.share).into());
    }
    if arguments.runs == 0 {
        return Err("--runs is 0, expected at least 1".into());
    }
    if let Some(output) = arguments.output.as_ref().filter(|output| output.exists()) {
        return Err(format!("{}: exists already", output.display()).into());
    }
    let plot = arguments.plot.as_deref().map(|path| Output::new(path, Kind::Svg, &[&arguments.file])).transpose()?;
    let texts = texts(arguments)?;
    let (rank, judge): (Vec<_>, Vec<_>) = texts.iter().enumerate().partition(|(i, _)| i % 2 == 0);
    let [rank, judge] = [rank, judge].map(|texts| texts.into_iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>());
    let folder = arguments.model.folder()?;
    if folder.is_none() && arguments.output.is_some() {
        return Err(
            "--output needs --model: the embedded model has no folder (in this repository it is the folder `weights`)"
                .into(),
        );
    }
    let encoder = arguments.model.load(folder.as_deref())?;

    let importance = importance(arguments, &encoder, &rank)?;
    print_heads(&importance);
    let points = points(arguments, &encoder, &importance, &judge)?;
    if let Some(output) = &plot {
        draw(&points, output)?;
    }
    if let (Some(folder), Some(output)) = (folder, &arguments.output) {
        let all: usize = encoder.heads().iter().sum();
        let pruned = importance.least_important((arguments.share * all as f64).round() as usize);
        write_pruned(folder, output, &pruned)?;
        println!("\n{}: written without {} of {all} heads", output.display(), pruned.count());
    }
    Ok(())
}

fn texts(arguments: &Prune) -> Result<Vec<String>> {
    let text = read::text(&arguments.file)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let texts: Vec<String> = lines.take(arguments.limit).map(str::to_string).collect();
    match texts.len() {
        0 | 1 => Err(format!("{}: {} texts, expected at least 2", arguments.file.display(), texts.len()).into()),
        _ => Ok(texts),
    }
}

fn importance(arguments: &Prune, encoder: &SentenceEncoder, texts: &[&str]) -> Result<HeadImportance> {
    let bar = bar::bar(texts.len(), "ranking heads by", "texts")?;
    let on_progress = |done: usize, _: usize| bar.set_position(done as u64);
    let options = arguments.batches.options(arguments.model.prompt_name.as_deref()).with_on_progress(&on_progress);
    let by = match arguments.by {
        By::Gradient => ImportanceMethod::Gradient,
        By::Ablation => ImportanceMethod::Ablation,
        By::Entropy => ImportanceMethod::Entropy,
    };
    let importance = encoder.head_importance(texts, by, &options)?;
    bar.finish_and_clear();
    Ok(if arguments.by_layer { importance.normalized_by_layer() } else { importance })
}

fn print_heads(importance: &HeadImportance) {
    let most = importance.scores().iter().flatten().copied().fold(0.0, f64::max);
    println!("importance of each head; 100 is the most important");
    let widest = importance.scores().iter().map(Vec::len).max().unwrap_or(0);
    print!("{:<8}", "head");
    (0..widest).for_each(|head| print!("{head:>5}"));
    println!();
    for (layer, scores) in importance.scores().iter().enumerate() {
        print!("{:<8}", format!("layer {layer}"));
        scores.iter().for_each(|score| print!("{:>5.0}", if most > 0.0 { score / most * 100.0 } else { 0.0 }));
        println!();
    }
    let ranking = importance.ranking();
    let names = |heads: &mut dyn Iterator<Item = &RankedHead>| {
        heads.take(8).map(|head| format!("{}.{}", head.layer, head.head)).collect::<Vec<_>>().join(" ")
    };
    println!("least important (layer.head): {}", names(&mut ranking.iter()));
    println!("most important:               {}", names(&mut ranking.iter().rev()));
}

/// Measures the model without 0, 10, …, 100 % of its heads, the least important first.
fn points(
    arguments: &Prune,
    encoder: &SentenceEncoder,
    importance: &HeadImportance,
    texts: &[&str],
) -> Result<Vec<Point>> {
    let options = arguments.batches.options(arguments.model.prompt_name.as_deref());
    let whole = encoder.encode(texts, &options)?;
    let all: usize = encoder.heads().iter().sum();
    println!("\n{:>7} {:>6} {:>8} {:>18}", "pruned", "heads", "cosine", "time of the whole");
    let mut points = Vec::new();
    let mut counts: Vec<usize> =
        (0..=10).map(|tenth| (f64::from(tenth) / 10.0 * all as f64).round() as usize).collect();
    // With fewer than ten heads, some tenths are equal.
    counts.dedup();
    for count in counts {
        let pruned = encoder.prune_heads(&importance.least_important(count))?;
        let cosine = mean_cosine(&whole, &pruned.encode(texts, &options)?)?;
        // Alternating, so that other load on the machine affects both.
        let mut ratios = Vec::new();
        for _ in 0..arguments.runs {
            let [before, after] = [encoder, &pruned].map(|encoder| {
                let start = Instant::now();
                encoder.encode(texts, &options).map(|_| start.elapsed().as_secs_f64())
            });
            ratios.push(after? / before?);
        }
        ratios.sort_by(f64::total_cmp);
        let point =
            Point { share: count as f64 / all as f64, heads: all - count, cosine, time: ratios[ratios.len() / 2] };
        println!("{:>6.0}% {:>6} {:>8.4} {:>18.2}", point.share * 100.0, point.heads, point.cosine, point.time);
        points.push(point);
    }
    Ok(points)
}

fn mean_cosine(a: &Tensor, b: &Tensor) -> Result<f64> {
    let dot = (a * b)?.sum(1)?;
    let lengths = (a.sqr()?.sum(1)? * b.sqr()?.sum(1)?)?.sqrt()?.maximum(1e-30)?;
    Ok(f64::from((dot / lengths)?.mean_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?))
}

fn draw(points: &[Point], output: &Output) -> Result<()> {
    let line = |name: &'static str, of: fn(&Point) -> f64| Line {
        name,
        points: points.iter().map(|point| (point.share * 100.0, of(point))).collect(),
    };
    let chart = Chart {
        x_name: "heads pruned, %",
        y_name: "of the whole model",
        x_end: 100.0,
        y_end: points.iter().map(|point| point.time).fold(1.0, f64::max) * 1.05,
        legend: SeriesLabelPosition::LowerLeft,
        lines: vec![
            line("cosine to the whole model's vectors", |point| point.cosine),
            line("time", |point| point.time),
        ],
    };
    output.write(plot::svg(&[chart], 400)?.as_bytes())
}
