//! Agreement of two encoders on the same texts.

use candle_attention::{Error, Result};
use candle_attention_text::SimilarityFunction;
use candle_core::{DType, Tensor};

use crate::teacher::dot;

/// The number of texts that are compared with each other.
pub const AGREEMENT_GROUP: usize = 1_000;

/// Agreement of the embeddings of two encoders on the same texts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreement {
    /// Spearman's rank correlation of the cosine similarities of all pairs of texts.
    pub spearman: f64,
    /// Share of texts whose nearest neighbor in the second encoder is among the ten nearest in the first.
    pub top_1_in_10: f64,
}

/// Compares embeddings `ours` `(texts, d)` with embeddings `theirs` `(texts, d')` of the same texts: the mean agreement
/// within groups of [`AGREEMENT_GROUP`] texts; fewer are one group.
///
/// # Errors
/// [`Error::Shape`] for different numbers of texts, [`Error::Value`] for fewer than three texts.
pub fn agreement(ours: &Tensor, theirs: &Tensor) -> Result<Agreement> {
    let (n, _) = ours.dims2().map_err(|_| Error::shape("ours", ours.dims(), "(texts, d)"))?;
    if theirs.rank() != 2 || theirs.dims()[0] != n {
        return Err(Error::shape("theirs", theirs.dims(), format!("({n}, d)")));
    }
    if n < 3 {
        return Err(Error::value("the number of texts", n, "at least 3, to compare pairs"));
    }
    let size = AGREEMENT_GROUP.min(n);
    let group = |i: usize| in_group(&ours.narrow(0, i * size, size)?, &theirs.narrow(0, i * size, size)?);
    let groups = (0..n / size).map(group).collect::<Result<Vec<Agreement>>>()?;
    let mean = |part: fn(&Agreement) -> f64| groups.iter().map(part).sum::<f64>() / groups.len() as f64;
    Ok(Agreement { spearman: mean(|a| a.spearman), top_1_in_10: mean(|a| a.top_1_in_10) })
}

/// The agreement of embeddings that are all compared with each other.
fn in_group(ours: &Tensor, theirs: &Tensor) -> Result<Agreement> {
    let n = ours.dim(0)?;
    let similarities = |xs: &Tensor| {
        let xs = xs.to_dtype(DType::F32)?;
        Ok::<_, Error>(SimilarityFunction::Cosine.similarity(&xs, &xs)?.to_vec2::<f32>()?)
    };
    let (ours, theirs) = (similarities(ours)?, similarities(theirs)?);
    let nearest = |row: &[f32], i: usize| {
        let mut others: Vec<usize> = (0..n).filter(|&j| j != i).collect();
        others.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        others.truncate(10);
        others
    };
    let found = (0..n).filter(|&i| nearest(&ours[i], i).contains(&nearest(&theirs[i], i)[0])).count();
    let pairs = |rows: &[Vec<f32>]| -> Vec<f32> {
        rows.iter().enumerate().flat_map(|(i, row)| row[i + 1..].iter().copied()).collect()
    };
    let spearman = pearson(&ranks(&pairs(&ours)), &ranks(&pairs(&theirs)));
    Ok(Agreement { spearman, top_1_in_10: found as f64 / n as f64 })
}

/// The rank of each value, from 0; equal values share their mean rank.
fn ranks(numbers: &[f32]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|&a, &b| numbers[a].total_cmp(&numbers[b]));
    let mut ranks = vec![0.0; numbers.len()];
    let mut start = 0;
    for equal in order.chunk_by(|&a, &b| numbers[a] == numbers[b]) {
        let rank = start as f64 + (equal.len() as f64 - 1.0) / 2.0;
        equal.iter().for_each(|&i| ranks[i] = rank);
        start += equal.len();
    }
    ranks
}

/// Pearson's correlation; 0 if one of the sequences is constant.
fn pearson(xs: &[f64], ys: &[f64]) -> f64 {
    let centered = |xs: &[f64]| {
        let mean = xs.iter().sum::<f64>() / xs.len() as f64;
        xs.iter().map(|x| x - mean).collect::<Vec<f64>>()
    };
    let (xs, ys) = (centered(xs), centered(ys));
    let squares = dot(&xs, &xs) * dot(&ys, &ys);
    if squares > 0.0 { dot(&xs, &ys) / squares.sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::{pearson, ranks};

    #[test]
    fn equal_values_share_their_mean_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [2.5, 0.0, 2.5, 1.0]);
        // Worked out by hand: 1 - 6 · (1 + 1) / (4 · 15).
        let spearman = pearson(&ranks(&[1.0, 2.0, 3.0, 4.0]), &ranks(&[1.0, 2.0, 4.0, 3.0]));
        assert!((spearman - 0.8).abs() < 1e-12, "{spearman}");
    }
}
