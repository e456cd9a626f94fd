//! The importance of each head: measured and printed.

use std::io::Write;

use candle_attention_text::{EncodeOptions, HeadImportance, ImportanceMethod, RankedHead, SentenceEncoder};

use super::super::shared::{Result, bar};

/// How many of the least and the most important heads are listed.
const LISTED: usize = 8;

/// The importance of each head for these texts.
pub fn importance(
    encoder: &SentenceEncoder,
    texts: &[&str],
    method: ImportanceMethod,
    options: &EncodeOptions,
) -> Result<HeadImportance> {
    let bar = bar::bar(texts.len(), "ranking heads by", "texts")?;
    let on_progress = |done: usize, _: usize| bar.set_position(done as u64);
    let importance = encoder.head_importance(texts, method, &options.with_on_progress(&on_progress))?;
    bar.finish_and_clear();
    Ok(importance)
}

/// Prints a table of all heads, and the least and the most important ones.
pub fn print(out: &mut impl Write, importance: &HeadImportance) -> Result<()> {
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
