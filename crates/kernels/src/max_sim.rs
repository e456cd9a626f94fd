//! MaxSim of one query with one document: for each token of the query the largest product with a token of the document,
//! summed (late interaction, [Khattab 2020](https://arxiv.org/abs/2004.12832)).
//!
//! The products of a block of the document's tokens with all tokens of the query are all that is kept: a few KB that
//! stay in the L1 cache, whatever the length of the document.

use super::activation::Activation;
use super::error::{Error, Result};
use super::memory::ScratchPool;
use super::packed_weights::PackedWeights;
use super::team::Team;

/// Tokens of a document that are multiplied at a time.
const ROWS: usize = 64;

/// `Σ_i max_j q_i · t_j` for the packed tokens of a query `q` and the tokens `t` of a document `(tokens, features)`, at
/// least one. NaN stays NaN. The result does not depend on other documents.
///
/// # Errors
/// If `document` or the query is empty, or `document` of another width, and if there is not enough memory.
pub fn max_sim(query: &PackedWeights, document: &[f32], pool: &ScratchPool) -> Result<f32> {
    let (width, count) = (query.in_features(), query.out_features());
    if width == 0 || count == 0 {
        return Err(Error::shape("the tokens of a query", &[count, width], "at least one of at least one feature"));
    }
    if document.is_empty() || !document.len().is_multiple_of(width) {
        return Err(Error::shape("the tokens of a document", &[document.len()], format!("a multiple of {width}")));
    }
    let mut scratch = pool.take(count * (ROWS + 1))?;
    let (largest, products) = scratch.split_at_mut(count);
    largest.fill(f32::NEG_INFINITY);
    for block in document.chunks(ROWS * width) {
        let rows = block.len() / width;
        let products = &mut products[..rows * count];
        query.multiply_into(Team::ALONE, block, rows, Activation::Identity, products)?;
        for row in products.chunks_exact(count) {
            for (largest, &product) in largest.iter_mut().zip(row) {
                *largest = if product > *largest || product.is_nan() { product } else { *largest };
            }
        }
    }
    Ok(largest.iter().sum())
}
