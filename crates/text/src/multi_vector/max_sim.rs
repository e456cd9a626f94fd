//! MaxSim of a query with documents, on tensors.

use candle_attention::ensure;
use candle_attention::tensor::{compute_dtype, with_slices};
use candle_attention::{Error, Result};
use candle_attention_kernels::max_sim as kernel;
use candle_attention_kernels::{
    Isa, PackedWeights, Packer, ScratchPool, Team, WeightFormat, check_allocation, element_count,
};
use candle_core::{D, DType, Device, Tensor};

/// The fewest multiply-adds of a task, a few documents together if they are short: some microseconds.
const MIN_TASK_WORK: usize = 1 << 18;

/// How well documents answer a query by late interaction (ColBERT, [Khattab 2020](https://arxiv.org/abs/2004.12832)):
/// `Σ_i max_j q_i · d_j` for the vectors `q_i` of the query's tokens and `d_j` of the document's.
///
/// # Shapes
/// query `(tokens, dim)`, each document `(its tokens, dim)` → one score per document. Documents may have any lengths;
/// no product of all of them with the query is ever in memory.
///
/// # DTypes
/// f32, f16, bf16 or f64; f64 on the CPU and tensors on a GPU are multiplied by candle. Otherwise in f32, and the score
/// of a document is the same bits whatever other documents there are.
///
/// # Errors
/// A query or a document without tokens; widths that differ; a tensor on another device than the query.
pub fn max_sim(query: &Tensor, documents: &[Tensor]) -> Result<Vec<f32>> {
    let (tokens, width) = dims("the query", query)?;
    let mut longest = 0;
    for (i, document) in documents.iter().enumerate() {
        let (count, own) = dims(&format!("document {i}"), document)?;
        ensure!(own == width, Error::shape(format!("document {i}"), document.dims(), format!("(tokens, {width})")));
        if !document.device().same_device(query.device()) {
            let found = format!("{:?}", document.device().location());
            let expected = format!("{:?}, where the query is", query.device().location());
            return Err(Error::Device { tensor: format!("document {i}"), found, expected });
        }
        longest = longest.max(count);
    }
    let fused = |tensor: &Tensor| tensor.device().is_cpu() && tensor.dtype() != DType::F64;
    if !fused(query) || !documents.iter().all(fused) {
        return documents.iter().map(|document| composite(query, document)).collect();
    }
    let query = with_slices([&in_f32(query)?], |[query]| pack(query, tokens, width))??;
    let work = tokens.saturating_mul(width).saturating_mul(longest).max(1);
    let step = (MIN_TASK_WORK / work).max(1);
    let (mut scores, pool) = (vec![0f32; documents.len()], ScratchPool::default());
    Team::with(work.saturating_mul(documents.len()), |team| {
        team.try_for_chunks(&mut scores, step, |chunk, scores| {
            for (score, document) in scores.iter_mut().zip(&documents[chunk * step..]) {
                *score = with_slices([&in_f32(document)?], |[document]| kernel(&query, document, &pool))??;
            }
            Ok::<_, Error>(())
        })
    })?;
    Ok(scores)
}

/// `(tokens, dim)` of a matrix without an empty side.
fn dims(name: &str, tensor: &Tensor) -> Result<(usize, usize)> {
    match *tensor.dims() {
        [tokens, width] if tokens > 0 && width > 0 => Ok((tokens, width)),
        ref other => Err(Error::shape(name, other, "(tokens, dim), at least one of each")),
    }
}

fn in_f32(tensor: &Tensor) -> Result<Tensor> {
    if tensor.dtype() != DType::F32 {
        check_allocation::<f32>("an f32 copy of a tensor", element_count("a tensor", tensor.dims())?)?;
    }
    Ok(tensor.to_dtype(DType::F32)?)
}

fn pack(query: &[f32], tokens: usize, width: usize) -> Result<PackedWeights> {
    let mut packer = Packer::new(Isa::detect()?, WeightFormat::F32, tokens, width)?;
    packer.push(tokens, query, None)?;
    Ok(packer.finish()?)
}

/// By candle's operations.
fn composite(query: &Tensor, document: &Tensor) -> Result<f32> {
    let dtype = compute_dtype(query.dtype());
    let products = query.to_dtype(dtype)?.matmul(&document.to_dtype(dtype)?.t()?)?; // (query tokens, document tokens)
    let score = products.max(D::Minus1)?.sum_all()?;
    Ok(score.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_scalar()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values between -1 and 1 that look random.
    fn values(seed: usize, count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0).collect()
    }

    fn tensor(values: &[f32], width: usize) -> Tensor {
        Tensor::from_slice(values, (values.len() / width, width), &Device::Cpu).unwrap()
    }

    /// The definition, in f64.
    fn naive(query: &[f32], document: &[f32], width: usize) -> f64 {
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let largest = |q: &[f32]| document.chunks(width).map(|d| product(q, d)).fold(f64::NEG_INFINITY, f64::max);
        query.chunks(width).map(largest).sum()
    }

    #[test]
    fn scores_equal_the_definition_whatever_the_other_documents() {
        for (width, tokens) in [(1, 1), (7, 3), (128, 32), (33, 130)] {
            let query = values(1, tokens * width);
            let lengths = [1, 2, 63, 64, 65, 127, 300];
            let documents: Vec<Vec<f32>> =
                lengths.iter().enumerate().map(|(i, length)| values(i + 2, length * width)).collect();
            let tensors: Vec<Tensor> = documents.iter().map(|document| tensor(document, width)).collect();
            let scores = max_sim(&tensor(&query, width), &tensors).unwrap();
            for ((score, document), one) in scores.iter().zip(&documents).zip(&tensors) {
                let want = naive(&query, document, width);
                assert!((f64::from(*score) - want).abs() < 1e-5 * (1.0 + want.abs()), "{width}: {score}, want {want}");
                let alone = max_sim(&tensor(&query, width), std::slice::from_ref(one)).unwrap();
                assert_eq!(alone, [*score]);
                let composite = composite(&tensor(&query, width), one).unwrap();
                assert!((f64::from(composite) - want).abs() < 1e-4 * (1.0 + want.abs()));
            }
        }
    }

    #[test]
    fn wrong_shapes_are_named_and_nan_stays() {
        let query = tensor(&[1.0, 2.0, 3.0, 4.0], 2);
        let wrong = |documents: &[Tensor]| max_sim(&query, documents).unwrap_err().to_string();
        let good = tensor(&[1.0, 0.0], 2);
        let narrow = tensor(&[1.0], 1);
        assert!(wrong(&[good.clone(), narrow]).contains("document 1"));
        let empty = Tensor::zeros((0, 2), DType::F32, &Device::Cpu).unwrap();
        assert!(wrong(std::slice::from_ref(&empty)).contains("document 0"));
        assert!(max_sim(&empty, &[]).unwrap_err().to_string().contains("the query"));
        assert!(max_sim(&query, &[]).unwrap().is_empty());
        assert_eq!(max_sim(&query, &[good]).unwrap(), [4.0]);
        let broken = tensor(&[f32::NAN, 0.0, 1.0, 1.0], 2);
        assert!(max_sim(&query, &[broken]).unwrap()[0].is_nan());
    }
}
