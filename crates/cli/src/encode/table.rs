//! Similarities of texts, printed for people.

use std::io::Write;

use candle_attention_text::SimilarityFunction::Cosine;
use candle_core::Tensor;

use super::super::shared::print::{self, column, one_line};
use super::super::shared::{Result, bar};
use super::embedder::Embedder;

/// The most texts that are shown as a square table.
const TABLE: usize = 10;
/// The columns of a text that are shown.
const WIDTH: usize = 44;
/// The numbers that are shown at each end of an embedding.
const ENDS: usize = 4;
/// Rows of the matrix of similarities that are computed together.
const ROWS: usize = 256;

/// Prints a square table of similarities, or for many texts each with the one nearest to it.
pub fn similarities(texts: &[&str], embeddings: &Tensor, made: &str) -> Result<()> {
    let mut out = print::stdout();
    writeln!(out, "{made}; cosine similarity:")?;
    if texts.len() > TABLE {
        for (text, (other, similarity)) in texts.iter().zip(nearest(embeddings, embeddings, true)?) {
            writeln!(out, "{} {similarity:>6.3}  {}", column(text, WIDTH), one_line(texts[other], WIDTH))?;
        }
        return Ok(out.flush()?);
    }
    write!(out, "{:WIDTH$}", "")?;
    (1..=texts.len()).try_for_each(|i| write!(out, "{i:>7}"))?;
    writeln!(out)?;
    for (i, row) in Cosine.similarity(embeddings, embeddings)?.to_vec2::<f32>()?.iter().enumerate() {
        write!(out, "{}", column(&format!("{:>2} {}", i + 1, texts[i]), WIDTH))?;
        row.iter().try_for_each(|similarity| write!(out, "{similarity:>7.3}"))?;
        writeln!(out)?;
    }
    Ok(out.flush()?)
}

/// Prints the ends of the embedding of one text.
pub fn numbers(embedding: &Tensor, made: &str) -> Result<()> {
    let numbers = embedding.flatten_all()?.to_vec1::<f32>()?;
    let length = numbers.iter().map(|x| x * x).sum::<f32>().sqrt();
    let (first, last) = if numbers.len() > 2 * ENDS {
        (&numbers[..ENDS], &numbers[numbers.len() - ENDS..])
    } else {
        (&numbers[..], &[][..])
    };
    let shown = |numbers: &[f32]| numbers.iter().map(|x| format!("{x:.4}")).collect::<Vec<_>>().join(", ");
    let last = if last.is_empty() { String::new() } else { format!(", …, {}", shown(last)) };
    let mut out = print::stdout();
    writeln!(out, "{made}:")?;
    writeln!(out, "[{}{last}], of length {length:.4}", shown(first))?;
    writeln!(out, "--json prints all of them, --output writes them to a file")?;
    Ok(out.flush()?)
}

/// Prints each text with the nearest of the others.
pub fn nearest_of(embedder: &Embedder, texts: &[&str], others: &[&str]) -> Result<()> {
    let (ours, theirs) = (embedder.embed(texts)?, embedder.embed(others)?);
    let (mut out, count) = (print::stdout(), print::count(others.len(), "text"));
    writeln!(out, "the nearest of {count} to each of {}, by cosine similarity:", texts.len())?;
    for (text, (other, similarity)) in texts.iter().zip(nearest(&ours, &theirs, false)?) {
        writeln!(out, "{} {similarity:>6.3}  {}", column(text, WIDTH), one_line(others[other], WIDTH))?;
    }
    Ok(out.flush()?)
}

/// Prints the similarity of the two texts of each pair.
pub fn pairs(embedder: &Embedder, pairs: &[(String, String)]) -> Result<()> {
    let texts: Vec<&str> = pairs.iter().flat_map(|(first, second)| [first.as_str(), second]).collect();
    let embeddings = embedder.embed(&texts)?.reshape((pairs.len(), 2, ()))?;
    let [first, second] = [embeddings.get_on_dim(1, 0)?, embeddings.get_on_dim(1, 1)?];
    let similarities = Cosine.similarity_pairwise(&first, &second)?.to_vec1::<f32>()?;
    let mut out = print::stdout();
    for ((first, second), similarity) in pairs.iter().zip(similarities) {
        writeln!(out, "{similarity:>6.3}  {}  {}", column(first, WIDTH), one_line(second, WIDTH))?;
    }
    Ok(out.flush()?)
}

/// For each row of `ours` the nearest row of `theirs`, other than itself where they are the same texts.
fn nearest(ours: &Tensor, theirs: &Tensor, same: bool) -> Result<Vec<(usize, f32)>> {
    let count = ours.dim(0)?;
    let bar = bar::bar(count, "comparing", "texts")?;
    let mut found = Vec::with_capacity(count);
    for start in (0..count).step_by(ROWS) {
        let rows = ours.narrow(0, start, ROWS.min(count - start))?;
        let rows = Cosine.similarity(&rows, theirs)?.to_vec2::<f32>()?;
        for (i, row) in (start..).zip(rows) {
            let others = row.into_iter().enumerate().filter(|(j, _)| !same || *j != i);
            found.extend(others.max_by(|a, b| a.1.total_cmp(&b.1)));
        }
        bar.set_position(found.len() as u64);
    }
    bar.finish_and_clear();
    Ok(found)
}
