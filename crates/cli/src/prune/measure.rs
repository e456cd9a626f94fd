//! The importance of each head, and what pruning costs and saves: quality and time without a share of the heads, the
//! least important first.

use std::io::Write;
use std::time::Instant;

use candle_attention_text::{
    EncodeOptions, HeadImportance, ImportanceMethod, RankedHead, SentenceEncoder, SimilarityFunction,
};
use candle_core::{DType, Tensor};

use super::super::shared::{Result, bar};

/// How many of the least and the most important heads are listed.
const LISTED: usize = 8;

/// Prints a table of all heads, and the least and the most important ones.
pub fn print_importance(out: &mut impl Write, importance: &HeadImportance) -> Result<()> {
    let most = importance.scores().iter().flatten().copied().fold(0.0, f64::max);
    writeln!(out, "importance of each head; 100 is the most important")?;
    let widest = importance.scores().iter().map(Vec::len).max().unwrap_or(0);
    write!(out, "{:<8}", "head")?;
    (0..widest).try_for_each(|head| write!(out, "{head:>5}"))?;
    writeln!(out)?;
    for (layer, scores) in importance.scores().iter().enumerate() {
        write!(out, "{:<8}", format!("layer {layer}"))?;
        let percent = |score: &f64| if most > 0.0 { score / most * 100.0 } else { 0.0 };
        scores.iter().try_for_each(|score| write!(out, "{:>5.0}", percent(score)))?;
        writeln!(out)?;
    }
    let ranking = importance.ranking();
    // No head is in both lists.
    let listed = LISTED.min(ranking.len() / 2);
    let names = |heads: &mut dyn Iterator<Item = &RankedHead>| {
        heads.take(listed).map(|head| format!("L{}H{}", head.layer, head.head)).collect::<Vec<_>>().join(" ")
    };
    writeln!(out, "least important: {} (L0H1 is head 1 of layer 0)", names(&mut ranking.iter()))?;
    writeln!(out, "most important:  {}", names(&mut ranking.iter().rev()))?;
    Ok(())
}

/// The texts that are measured on, and how they are encoded.
pub struct Texts<'a> {
    pub texts: &'a [&'a str],
    pub options: EncodeOptions<'a>,
}

impl Texts<'_> {
    /// The importance of each head for these texts.
    pub fn importance(&self, encoder: &SentenceEncoder, method: ImportanceMethod) -> Result<HeadImportance> {
        let bar = bar::bar(self.texts.len(), "ranking heads by", "texts")?;
        let on_progress = |done: usize, _: usize| bar.set_position(done as u64);
        let options = self.options.with_on_progress(&on_progress);
        let importance = encoder.head_importance(self.texts, method, &options)?;
        bar.finish_and_clear();
        Ok(importance)
    }

    fn encode(&self, encoder: &SentenceEncoder) -> Result<Tensor> {
        Ok(encoder.encode(self.texts, &self.options)?)
    }

    /// The seconds that `repeats` encodings take.
    fn seconds(&self, encoder: &SentenceEncoder, repeats: usize) -> Result<f64> {
        let start = Instant::now();
        for _ in 0..repeats {
            self.encode(encoder)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// The time of `pruned` in units of that of `whole`: the median of `runs` pairs of measurements.
    fn time(&self, whole: &SentenceEncoder, pruned: &SentenceEncoder, runs: usize) -> Result<Option<f64>> {
        if runs == 0 {
            return Ok(None);
        }
        let once = self.seconds(whole, 1)? + self.seconds(pruned, 1)?;
        let repeats = (PAIR_SECONDS / once).ceil().clamp(1.0, MAX_REPEATS) as usize;
        // Alternating, so that other load on the machine affects both.
        let pair = |_| -> Result<f64> {
            let before = self.seconds(whole, repeats)?;
            Ok(self.seconds(pruned, repeats)? / before)
        };
        let mut ratios = (0..runs).map(pair).collect::<Result<Vec<f64>>>()?;
        ratios.sort_by(f64::total_cmp);
        Ok(Some(ratios[ratios.len() / 2]))
    }
}

/// The seconds that a pair of measurements takes at least: a shorter one measures what else the machine does.
const PAIR_SECONDS: f64 = 1.0;

/// The most encodings of one measurement.
const MAX_REPEATS: f64 = 1e5;

/// Measures the model without 0, 10, …, 100 % of its heads and without `chosen` of them, and prints each row; the mean
/// cosine between embeddings with and without the `chosen` heads.
pub fn measure(
    out: &mut impl Write,
    encoder: &SentenceEncoder,
    importance: &HeadImportance,
    texts: &Texts,
    chosen: Option<usize>,
    runs: usize,
) -> Result<Option<f64>> {
    let whole = texts.encode(encoder)?;
    let all: usize = encoder.heads().iter().sum();
    let tenths = (0..=10).map(|tenth| (f64::from(tenth) / 10.0 * all as f64).round() as usize);
    let mut counts: Vec<usize> = tenths.chain(chosen).collect();
    counts.sort_unstable();
    // With fewer than ten heads, some tenths are equal.
    counts.dedup();

    let time = if runs > 0 { format!(" {:>18}", "time of the whole") } else { String::new() };
    writeln!(out, "\n{:>7} {:>6} {:>8}{time}", "pruned", "heads", "cosine")?;
    let bar = bar::bar(counts.len(), "measuring", "rows")?;
    let mut chosen_cosine = None;
    for count in counts {
        bar.tick();
        let pruned = encoder.prune_heads(&importance.least_important(count))?;
        let cosines = SimilarityFunction::Cosine.similarity_pairwise(&whole, &texts.encode(&pruned)?)?;
        let cosine = f64::from(cosines.mean_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?);
        // Without a pruned head it is the whole model, whose time is the unit.
        let time = if count == 0 && runs > 0 { Some(1.0) } else { texts.time(encoder, &pruned, runs)? };
        let (share, heads) = (count as f64 / all as f64 * 100.0, all - count);
        let shown = time.map(|time| format!(" {time:>18.2}")).unwrap_or_default();
        bar.suspend(|| -> Result<()> {
            writeln!(out, "{share:>6.0}% {heads:>6} {cosine:>8.4}{shown}")?;
            Ok(out.flush()?)
        })?;
        bar.inc(1);
        chosen_cosine = chosen_cosine.or(Some(cosine).filter(|_| chosen == Some(count)));
    }
    bar.finish_and_clear();
    Ok(chosen_cosine)
}
