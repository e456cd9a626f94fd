//! The fused projection of queries, keys and values.

use std::sync::{Arc, OnceLock};

use candle_core::{D, DType, Tensor};

use super::linear::Linear;
use super::pack::{multiply, pack};
use crate::error::{Error, Result};
use crate::kernels::cpu::{Isa, PackedWeights};
use crate::tensor::same_dtype_and_device;
use crate::weights::{LinearWeights, QkvWeights, in_order};

/// The projections of queries, keys and values.
#[derive(Debug, Clone)]
pub(crate) struct Qkv {
    parts: Box<[Linear; 3]>,
    /// All three in one, if they are stored so; `parts` are then views of it.
    stored: Option<Linear>,
    /// The rows as they are stored, if that is another order and they may change: they are put in order for each call.
    unordered: Option<QkvWeights>,
    /// All three packed in one, made when first needed.
    packed: Arc<OnceLock<PackedWeights>>,
    /// The outputs of q, k, v.
    rows: [usize; 3],
    h_kv: usize,
}

const NAMES: [&str; 3] = ["q_proj", "k_proj", "v_proj"];

impl Qkv {
    /// `rows`: the outputs of q, k, v; `inputs`: their inputs.
    /// `h_kv`: key-value heads.
    pub(crate) fn new(weights: QkvWeights, rows: [usize; 3], inputs: [usize; 3], h_kv: usize) -> Result<Self> {
        if let Some(ordered) = in_order(&weights, rows, h_kv)? {
            let ordered = Self::new(ordered, rows, inputs, h_kv)?;
            let may_change = weights.tracks_gradient();
            return Ok(Self { unordered: may_change.then_some(weights), ..ordered });
        }
        let packed = |all: LinearWeights| {
            let all = Linear::new("packed q, k, v", all, rows.iter().sum(), inputs[0])?;
            let [q, k, v] = rows;
            Ok::<_, Error>(([all.rows(0, q)?, all.rows(q, k)?, all.rows(q + k, v)?], Some(all)))
        };
        let (parts, stored) = match weights {
            QkvWeights::Split(dense) => {
                let [q, k, v] = *dense;
                let dense = |i: usize, weights| Linear::new(NAMES[i], weights, rows[i], inputs[i]);
                let parts = [dense(0, q)?, dense(1, k)?, dense(2, v)?];
                for (dense, name) in parts.iter().zip(NAMES) {
                    same_dtype_and_device(&format!("{name} weight"), &dense.weight, &parts[0].weight)?;
                }
                // On a GPU one large product costs less than three. On the CPU they are packed into one when needed.
                let one = if parts[0].weight.device().is_cpu() { None } else { joined(&parts)? };
                one.map_or(Ok((parts, None)), packed)?
            }
            QkvWeights::Packed(all) => packed(all)?,
            QkvWeights::Ordered(..) | QkvWeights::OrderedSplitBias { .. } => unreachable!("put in order above"),
        };
        Ok(Self { parts: Box::new(parts), stored, unordered: None, packed: Arc::default(), rows, h_kv })
    }

    /// Any of the weights, to tell dtype and device.
    pub(crate) fn weight(&self) -> &Tensor {
        self.parts[0].weight()
    }

    /// Whether any weight tracks operations.
    pub(crate) fn tracks_gradient(&self) -> bool {
        self.unordered.is_some() || self.parts.iter().any(Linear::tracks_gradient)
    }

    /// Whether one product with packed weights can make queries, keys and values of one input.
    pub(crate) fn can_pack(&self) -> bool {
        let input = |dense: &Linear| dense.weight.dims()[1];
        self.parts.iter().all(|part| part.can_pack() && input(part) == input(&self.parts[0]))
    }

    /// The packed weights of all three; call only if [`can_pack`](Self::can_pack).
    pub(crate) fn packed(&self) -> Result<&PackedWeights> {
        match self.packed.get() {
            Some(packed) => Ok(packed),
            None => {
                let packed = pack(&self.parts.each_ref())?;
                Ok(self.packed.get_or_init(|| packed))
            }
        }
    }

    /// Whether the inputs of packed weights are rounded to bf16; `false` where none are packed.
    pub(crate) fn rounds_to_bf16(&self) -> Result<bool> {
        let bf16 = self.weight().dtype() == DType::BF16 && self.parts.iter().all(Linear::can_pack);
        Ok(bf16 && Isa::detect()?.has_bf16_dot())
    }

    /// Projects `[query, key, value]`, each `(b, s, in)`, and cuts the results into heads: `(b, s, h, d)` in `dtype`.
    /// `sizes` are the numbers a head of q, k and v.
    pub(crate) fn forward(&self, inputs: [&Tensor; 3], sizes: [usize; 3], dtype: DType) -> Result<[Tensor; 3]> {
        if let Some(ordered) = self.in_order()? {
            return ordered.forward(inputs, sizes, dtype);
        }
        let [q, k, v] = inputs;
        let one_input = q.id() == k.id() && q.id() == v.id();
        if one_input && self.can_pack() && !q.track_op() {
            return self.cut(&multiply(q, self.packed()?, dtype)?, sizes);
        }
        if let Some(all) = self.stored.as_ref().filter(|_| one_input) {
            return self.cut(&all.forward(q, dtype)?, sizes);
        }
        let part = |i: usize, xs: &Tensor| heads(&self.parts[i].forward(xs, dtype)?, sizes[i]);
        Ok([part(0, q)?, part(1, k)?, part(2, v)?])
    }

    /// The three projections, each for itself.
    pub(crate) fn weights(&self) -> Result<QkvWeights> {
        match self.in_order()? {
            Some(ordered) => ordered.weights(),
            None => Ok(QkvWeights::Split(Box::new(self.parts.each_ref().map(Linear::weights)))),
        }
    }

    /// The queries alone, as [`forward`](Self::forward) gives them.
    pub(crate) fn query(&self, xs: &Tensor, size: usize, dtype: DType) -> Result<Tensor> {
        match self.in_order()? {
            Some(ordered) => ordered.query(xs, size, dtype),
            None => heads(&self.parts[0].forward(xs, dtype)?, size),
        }
    }

    /// The projection of queries (0), keys (1) or values (2).
    pub(crate) fn part(&self, i: usize) -> Result<Linear> {
        match self.in_order()? {
            Some(ordered) => ordered.part(i),
            // Not packed together with the one that calls use.
            None => Ok(Linear { packed: Arc::default(), ..self.parts[i].clone() }),
        }
    }

    /// The same with rows in order, if they are stored in another.
    fn in_order(&self) -> Result<Option<Self>> {
        let Some(weights) = &self.unordered else { return Ok(None) };
        let inputs = [self.parts[0].weight.dim(1)?; 3];
        let ordered = in_order(weights, self.rows, self.h_kv)?;
        ordered.map(|ordered| Self::new(ordered, self.rows, inputs, self.h_kv)).transpose()
    }

    /// ys `(b, s, rows of q, k and v)` → each by head.
    fn cut(&self, ys: &Tensor, sizes: [usize; 3]) -> Result<[Tensor; 3]> {
        let start = |i: usize| self.rows[..i].iter().sum::<usize>();
        if sizes[1] != sizes[2] {
            let part = |i: usize| heads(&ys.narrow(D::Minus1, start(i), self.rows[i])?, sizes[i]);
            return Ok([part(0)?, part(1)?, part(2)?]);
        }
        // Cut into heads first: then q, k and v are views of one tensor, and nothing is copied.
        let ys = heads(ys, sizes[0])?;
        let part = |i: usize| ys.narrow(2, start(i) / sizes[i], self.rows[i] / sizes[i]);
        Ok([part(0)?, part(1)?, part(2)?])
    }
}

/// Projections of inputs of one width as one, if they are no variables and all have a bias or none.
fn joined(parts: &[Linear; 3]) -> Result<Option<LinearWeights>> {
    let first = &parts[0];
    let alike =
        |part: &Linear| part.weight.dims()[1] == first.weight.dims()[1] && part.bias.is_some() == first.bias.is_some();
    if !parts.iter().all(|part| alike(part) && !part.tracks_gradient()) {
        return Ok(None);
    }
    let weight = Tensor::cat(&parts.each_ref().map(|part| &part.weight), 0)?;
    let biases: Vec<&Tensor> = parts.iter().filter_map(|part| part.bias.as_ref()).collect();
    let bias = if biases.is_empty() { None } else { Some(Tensor::cat(&biases, 0)?) };
    Ok(Some(LinearWeights { weight, bias }))
}

/// `(b, s, h · d)` → `(b, s, h, d)`.
fn heads(ys: &Tensor, size: usize) -> Result<Tensor> {
    let (b, s, width) = ys.dims3()?;
    Ok(ys.reshape((b, s, width / size, size))?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// What layers on a GPU are made of, tried on the CPU, in f64 so that nothing else packs.
    #[test]
    fn three_projections_in_one_say_the_same() {
        let device = Device::Cpu;
        let random = |dims: &[usize]| Tensor::randn(0f64, 1.0, dims, &device).unwrap();
        let (rows, input, sizes) = ([12, 6, 10], 7, [3, 3, 5]);
        let dense = |i: usize| LinearWeights { weight: random(&[rows[i], input]), bias: Some(random(&[rows[i]])) };
        let split = Qkv::new(QkvWeights::Split(Box::new([0, 1, 2].map(dense))), rows, [input; 3], 2).unwrap();
        let one = joined(&split.parts).unwrap().unwrap();
        let one = Qkv::new(QkvWeights::Packed(one), rows, [input; 3], 2).unwrap();
        let (xs, ys) = (random(&[2, 4, input]), random(&[2, 5, input]));
        for inputs in [[&xs; 3], [&xs, &ys, &ys]] {
            let want = split.forward(inputs, sizes, DType::F64).unwrap();
            let got = one.forward(inputs, sizes, DType::F64).unwrap();
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.dims(), want.dims());
                let worst = (got - want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
                assert!(worst.to_scalar::<f64>().unwrap() < 1e-12);
            }
        }
        let odd = Qkv {
            parts: Box::new([0, 1, 2].map(|i| {
                let LinearWeights { weight, bias } = dense(i);
                Linear { weight, bias: bias.filter(|_| i != 1), packed: Arc::default() }
            })),
            ..split
        };
        assert!(joined(&odd.parts).unwrap().is_none(), "a bias that is not there is not made up");
    }
}
