//! What pruning costs and saves: quality and time without a share of the heads, the least important first.

use std::io::Write;
use std::time::Instant;

use candle_attention_text::{EncodeOptions, HeadImportance, SentenceEncoder, SimilarityFunction};
use candle_core::{DType, Tensor};

use super::super::shared::{Result, bar};

/// Quality and time of the model without a share of its heads.
pub struct Row {
    /// The share of heads that are pruned, from 0 to 1.
    pub share: f64,
    /// The number of heads that are left.
    pub heads: usize,
    /// The mean cosine between embeddings with and without these heads.
    pub cosine: f64,
    /// The time of the pruned model in units of that of the whole; `None` if it is not measured.
    pub time: Option<f64>,
}

/// The texts that are measured on, and how they are encoded.
pub struct Texts<'a> {
    pub texts: &'a [&'a str],
    pub options: EncodeOptions<'a>,
}

impl Texts<'_> {
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

/// Measures the model without 0, 10, …, 100 % of its heads and without `chosen` of them, and prints each row.
pub fn measure(
    out: &mut impl Write,
    encoder: &SentenceEncoder,
    importance: &HeadImportance,
    texts: &Texts,
    chosen: Option<usize>,
    runs: usize,
) -> Result<Vec<Row>> {
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
    let mut rows = Vec::new();
    for count in counts {
        bar.tick();
        let pruned = encoder.prune_heads(&importance.least_important(count))?;
        let cosines = SimilarityFunction::Cosine.similarity_pairwise(&whole, &texts.encode(&pruned)?)?;
        let cosine = f64::from(cosines.mean_all()?.to_dtype(DType::F32)?.to_scalar::<f32>()?);
        // Without a pruned head it is the whole model, whose time is the unit.
        let time = if count == 0 && runs > 0 { Some(1.0) } else { texts.time(encoder, &pruned, runs)? };
        let row = Row { share: count as f64 / all as f64, heads: all - count, cosine, time };
        let shown = time.map(|time| format!(" {time:>18.2}")).unwrap_or_default();
        bar.suspend(|| -> Result<()> {
            writeln!(out, "{:>6.0}% {:>6} {:>8.4}{shown}", row.share * 100.0, row.heads, row.cosine)?;
            Ok(out.flush()?)
        })?;
        bar.inc(1);
        rows.push(row);
    }
    bar.finish_and_clear();
    Ok(rows)
}
