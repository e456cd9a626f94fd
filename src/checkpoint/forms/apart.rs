//! Projections of contents, and others of position vectors, read as projections of both side by side (DAB-DETR).

use candle_core::Tensor;

use crate::checkpoint::forms::{Matrix, Reader, Shapes};
use crate::checkpoint::projection::Rows;
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::families::layout::{ApartNames, LinearNames};
use crate::weights::{LinearWeights, QkvWeights};

impl ApartNames {
    pub(super) fn matrices(&self) -> Vec<Matrix> {
        let ApartNames { q: [q, q_position], k: [k, k_position], v, sines } = *self;
        let parts = [(q, 0..1), (q_position, 0..1), (k, 1..2), (k_position, 1..2), (v, 2..3)];
        parts.into_iter().chain(sines.map(|sines| (sines, 0..1))).collect()
    }

    pub(super) fn required(&self) -> Vec<&'static str> {
        let ApartNames { q, k, v, sines } = *self;
        let contents = [q[0], k[0], v].map(|linear| linear.weight);
        let positions = [k[1], sines.unwrap_or(q[1])].map(|linear| [linear.weight, linear.bias]);
        [&contents[..], positions.as_flattened()].concat()
    }

    pub(super) fn read(&self, reader: &Reader) -> Result<QkvWeights> {
        let ApartNames { q, k, v, sines } = *self;
        let has_positions = reader.source.contains(q[1].weight);
        let queries = [Some(q[0]), Some(q[1]).filter(|_| has_positions), sines].into_iter().flatten();
        let parts = |names: Vec<LinearNames>, part: usize, last_in_sum: bool| {
            let Rows { heads, dim } = reader.rows[part];
            let (last, rows) = (names.len() - 1, Rows { heads, dim: dim / (1 + usize::from(sines.is_some())) });
            let width = reader.inputs[part] / names.len();
            let linears = names.iter().map(|linear| reader.linear(*linear, rows, width));
            let linears = linears.collect::<Result<Vec<_>>>()?;
            let has_biases = linears.iter().any(|linear| linear.bias.is_some());
            if let Some(i) = linears.iter().position(|linear| has_biases && linear.bias.is_none()) {
                let name = reader.source.full_name(names[i].bias);
                return Err(Error::MissingTensor { name, why: "the other parts of the sum have biases".into() });
            }
            if linears.iter().any(LinearWeights::tracks_gradient) {
                return Err(Error::value("the weights of contents and positions", "variables", "fixed tensors"));
            }
            let sums = side_by_side(&linears, |i| i < last || last_in_sum)?;
            // Behind the sum in each head.
            if sines.is_some() { sums.with_gate(&side_by_side(&linears, |i| i == last)?, heads) } else { Ok(sums) }
        };
        let q = parts(queries.collect(), 0, sines.is_none())?;
        let k = parts(k.to_vec(), 1, has_positions)?;
        Ok(QkvWeights::Split(Box::new([q, k, reader.part(v, 2)?])))
    }

    pub(super) fn infer(&self, shapes: &Shapes) -> Result<AttentionConfig> {
        let ApartNames { q, k, v, sines } = *self;
        let sines = usize::from(sines.is_some());
        let inputs = 1 + usize::from(shapes.source.contains(q[1].weight)) + sines;
        let all = |(rows, input): (usize, usize), n| (rows.saturating_mul(1 + sines), input.saturating_mul(n));
        let (q, k, v) = (shapes.linear(q[0])?, shapes.linear(k[0])?, shapes.linear(v)?);
        shapes.config([all(q, inputs), all(k, 2), v])
    }
}

/// The sum of the projections of inputs side by side, of those that `counts` has.
fn side_by_side(parts: &[LinearWeights], counts: impl Fn(usize) -> bool) -> Result<LinearWeights> {
    let factors = (0..parts.len()).map(|i| f64::from(u8::from(counts(i))));
    let weights = parts.iter().zip(factors.clone()).map(|(part, factor)| &part.weight * factor);
    let weights = weights.collect::<candle_core::Result<Vec<_>>>()?;
    let mut biases = parts.iter().zip(factors).filter_map(|(part, factor)| Some(part.bias.as_ref()? * factor));
    let bias = biases.next().map(|first| biases.try_fold(first?, |sum, bias| sum + bias?)).transpose()?;
    Ok(LinearWeights { weight: Tensor::cat(&weights, 1)?, bias })
}
