//! The input and output projections: `y = x Wᵀ + b`, dense or with query, key and value packed in one matrix.

use std::sync::{Arc, OnceLock};

use candle_core::{D, DType, Device, Tensor, WithDType};
use half::{bf16, f16};

use crate::checkpoint::{DenseWeights, FusedOrder, QkvWeights};
use crate::error::{Error, Result};
use crate::kernels::{Element, Epilogue, Isa, Packed};
use crate::sdpa::same_dtype_and_device;
use crate::slice::{with_floats, with_numbers};
use crate::spread::spread;
use crate::steps::{self, Activated};

/// `y = x Wᵀ + b` with W `(out, in)`.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    weight: Tensor,
    bias: Option<Tensor>,
    /// The weights as the CPU kernel reads them, made when first needed.
    packed: Arc<OnceLock<Packed>>,
}

impl Dense {
    /// Checks that the weight is `(out, in)` and the bias `(out)`, of one dtype and on one device.
    pub(crate) fn new(name: &str, weights: DenseWeights, out: usize, input: usize) -> Result<Self> {
        let DenseWeights { weight, bias } = weights;
        let check = |what: &str, tensor: &Tensor, want: &[usize]| match tensor.dims() == want {
            true => Ok(()),
            false => Err(Error::shape(format!("{name} {what}"), tensor.dims(), format!("{want:?}"))),
        };
        check("weight", &weight, &[out, input])?;
        if let Some(bias) = &bias {
            check("bias", bias, &[out])?;
            same_dtype_and_device(&format!("{name} bias"), bias, &weight)?;
        }
        Ok(Self { weight, bias, packed: Arc::default() })
    }

    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    pub(crate) fn weights(&self) -> DenseWeights {
        DenseWeights { weight: self.weight.clone(), bias: self.bias.clone() }
    }

    pub(crate) fn tracks_gradient(&self) -> bool {
        self.weight.track_op() || self.bias.as_ref().is_some_and(Tensor::track_op)
    }

    /// Whether the CPU kernel can multiply with these weights: they are never packed while they may change, and not where
    /// candle was built to use the system's or the vendor's matrix library.
    pub(crate) fn can_pack(&self) -> bool {
        let own = cfg!(not(any(feature = "accelerate", feature = "mkl")));
        own && self.weight.device().is_cpu() && self.weight.dtype() != DType::F64 && !self.tracks_gradient()
    }

    /// The packed weights; call only if [`can_pack`](Self::can_pack).
    pub(crate) fn packed(&self) -> Result<&Packed> {
        match self.packed.get() {
            Some(packed) => Ok(packed),
            None => {
                let packed = pack(&[self])?;
                Ok(self.packed.get_or_init(|| packed))
            }
        }
    }

    /// xs `(b, s, in)` → `(b, s, out)` in `dtype`.
    pub(crate) fn forward(&self, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        if self.can_pack() && !xs.track_op() {
            return multiply(xs, self.packed()?, dtype);
        }
        let (b, s, _) = xs.dims3()?;
        // Rounding to a half type once, after the bias, as a fused addmm does.
        let ys = self.product(xs)?;
        let ys = match &self.bias {
            Some(bias) => biased(ys, bias)?,
            None => ys,
        };
        Ok(ys.to_dtype(dtype)?.reshape((b, s, self.weight.dim(0)?))?)
    }

    /// As [`forward`](Self::forward) in the dtype of `xs`, the bias left to the next step where a GPU adds it there.
    pub(crate) fn forward_unbiased(&self, xs: &Tensor) -> Result<Unbiased> {
        let Some(bias) = self.bias.as_ref().filter(|bias| steps::takes(xs, &[Some(&self.weight), Some(*bias)])) else {
            return Ok(self.forward(xs, xs.dtype())?.into());
        };
        let (b, s, _) = xs.dims3()?;
        Ok(Unbiased { ys: self.product(xs)?.reshape((b, s, ()))?, bias: Some(bias.clone()) })
    }

    /// xs `(b, s, in)` → `(b · s, out)` without the bias, in the dtype in which products are summed.
    fn product(&self, xs: &Tensor) -> Result<Tensor> {
        let (b, s, input) = xs.dims3()?;
        let wide = accumulate_in(&self.weight);
        let xs = xs.to_dtype(wide)?.contiguous()?.reshape((b * s, input))?;
        Ok(xs.matmul(&self.weight.to_dtype(wide)?.t()?)?)
    }

    /// xs `(b, s, in)` → `(b, s, out)`: what [`forward`](Self::forward) gives, activated and multiplied with what `gate`
    /// gives. `both` has the rows of `self` and of `gate` in one, and which of its halves `self` is. `None` if that takes
    /// more than a step after the products.
    #[cfg(feature = "encoder")]
    pub(crate) fn forward_activated(
        &self,
        xs: &Tensor,
        activation: steps::Activation,
        gate: Option<&Self>,
        both: Option<(&Self, usize)>,
    ) -> Result<Option<Tensor>> {
        let parts = [Some(self), gate].into_iter().flatten();
        let tensors: Vec<_> = parts.flat_map(|part| [Some(&part.weight), part.bias.as_ref()]).collect();
        if !steps::takes(xs, &tensors) {
            return Ok(None);
        }
        let (b, s, _) = xs.dims3()?;
        let out = self.weight.dim(0)?;
        let (ys, factors) = match both {
            Some((both, half)) => {
                let all = both.product(xs)?;
                (all.narrow(1, half * out, out)?, Some(all.narrow(1, (1 - half) * out, out)?))
            }
            None => (self.product(xs)?, gate.map(|gate| gate.product(xs)).transpose()?),
        };
        let step = Activated {
            activation,
            xs: &ys,
            bias: self.bias.as_ref(),
            gate: factors.as_ref(),
            gate_bias: gate.and_then(|gate| gate.bias.as_ref()),
        };
        let Some(ys) = step.run()? else { return Ok(None) };
        Ok(Some(ys.reshape((b, s, out))?))
    }

    /// Rows `start .. start + len` of the projection: a view, which follows the weights if they change.
    fn rows(&self, start: usize, len: usize) -> Result<Self> {
        let bias = self.bias.as_ref().map(|bias| bias.narrow(0, start, len)).transpose()?;
        Ok(Self { weight: self.weight.narrow(0, start, len)?, bias, packed: Arc::default() })
    }
}

/// What a projection makes, `(…, out)`, and the bias `(out)` that is still to be added to it, if any.
#[derive(Debug, Clone)]
pub(crate) struct Unbiased {
    pub ys: Tensor,
    pub bias: Option<Tensor>,
}

impl From<Tensor> for Unbiased {
    fn from(ys: Tensor) -> Self {
        Self { ys, bias: None }
    }
}

impl Unbiased {
    /// With its bias.
    pub(crate) fn whole(self) -> Result<Tensor> {
        match &self.bias {
            None => Ok(self.ys),
            Some(bias) => {
                let xs = self.ys.flatten_to(D::Minus2)?;
                Ok(biased(xs, bias)?.reshape(self.ys.shape())?)
            }
        }
    }

    /// The same numbers in another shape.
    pub(crate) fn map(self, reshape: impl FnOnce(Tensor) -> candle_core::Result<Tensor>) -> Result<Self> {
        Ok(Self { ys: reshape(self.ys)?, bias: self.bias })
    }
}

/// ys `(rows, out)` plus the bias `(out)`.
fn biased(ys: Tensor, bias: &Tensor) -> Result<Tensor> {
    let activation = steps::Activation::None;
    let step = Activated { activation, xs: &ys, bias: Some(bias), gate: None, gate_bias: None };
    match step.run()? {
        Some(ys) => Ok(ys),
        None => Ok(ys.broadcast_add(&spread(&bias.to_dtype(ys.dtype())?, &ys)?)?),
    }
}

/// Packs the rows of one or more projections of the same input, one after the other.
fn pack(parts: &[&Dense]) -> Result<Packed> {
    let k = parts[0].weight.dim(1)?;
    let (mut weights, mut biases) = (Vec::new(), Vec::new());
    for part in parts {
        with_floats(&part.weight, |numbers| weights.extend_from_slice(numbers))?;
        match &part.bias {
            Some(bias) => with_floats(bias, |numbers| biases.extend_from_slice(numbers))?,
            None => biases.resize(biases.len() + part.weight.dim(0)?, 0.0),
        }
    }
    let pack = if parts[0].weight.dtype() == DType::BF16 { Packed::new_bf16 } else { Packed::new };
    Ok(pack(Isa::detect()?, &weights, Some(&biases), biases.len(), k))
}

/// xs `(b, s, in)` times packed weights → `(b, s, out)` in `dtype`.
fn multiply(xs: &Tensor, weights: &Packed, dtype: DType) -> Result<Tensor> {
    match xs.dtype() {
        DType::F16 => multiply_from::<f16>(xs, weights, dtype),
        DType::BF16 => multiply_from::<bf16>(xs, weights, dtype),
        _ => multiply_from::<f32>(&xs.to_dtype(DType::F32)?, weights, dtype),
    }
}

fn multiply_from<A: Element + WithDType>(xs: &Tensor, weights: &Packed, dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::F16 => multiply_to::<A, f16>(xs, weights),
        DType::BF16 => multiply_to::<A, bf16>(xs, weights),
        _ => Ok(multiply_to::<A, f32>(xs, weights)?.to_dtype(dtype)?),
    }
}

fn multiply_to<A: Element + WithDType, O: Element + WithDType>(xs: &Tensor, weights: &Packed) -> Result<Tensor> {
    let (b, s, _) = xs.dims3()?;
    let mut ys = Vec::<O>::new();
    with_numbers(xs, |xs| weights.multiply::<A, O>(xs, b * s, Epilogue::None, &mut ys))?;
    Ok(Tensor::from_vec(ys, (b, s, weights.columns()), &Device::Cpu)?)
}

/// The dtype in which products are summed, and in which queries, keys and values are kept: on the CPU f32 for half
/// types, which its matmul would round at every step; GPUs accumulate in f32 by themselves.
pub(crate) fn accumulate_in(weight: &Tensor) -> DType {
    match weight.dtype() {
        DType::F16 | DType::BF16 if weight.device().is_cpu() => DType::F32,
        dtype => dtype,
    }
}

/// The projections of queries, keys and values.
#[derive(Debug, Clone)]
pub(crate) struct Qkv {
    parts: Box<[Dense; 3]>,
    /// All three in one, if they are stored so; `parts` are then views of it.
    stored: Option<Dense>,
    /// The rows as they are stored, if that is another order and they may change: they are put in order for each call.
    unordered: Option<QkvWeights>,
    /// All three packed in one, made when first needed.
    packed: Arc<OnceLock<Packed>>,
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
        let packed = |all: DenseWeights| {
            let all = Dense::new("packed q, k, v", all, rows.iter().sum(), inputs[0])?;
            let [q, k, v] = rows;
            Ok::<_, Error>(([all.rows(0, q)?, all.rows(q, k)?, all.rows(q + k, v)?], Some(all)))
        };
        let (parts, stored) = match weights {
            QkvWeights::Split(dense) => {
                let [q, k, v] = *dense;
                let dense = |i: usize, weights| Dense::new(NAMES[i], weights, rows[i], inputs[i]);
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
        self.unordered.is_some() || self.parts.iter().any(Dense::tracks_gradient)
    }

    /// Whether one product with packed weights can make queries, keys and values of one input.
    pub(crate) fn can_pack(&self) -> bool {
        let input = |dense: &Dense| dense.weight.dims()[1];
        self.parts.iter().all(|part| part.can_pack() && input(part) == input(&self.parts[0]))
    }

    /// The packed weights of all three; call only if [`can_pack`](Self::can_pack).
    pub(crate) fn packed(&self) -> Result<&Packed> {
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
        let bf16 = self.weight().dtype() == DType::BF16 && self.parts.iter().all(Dense::can_pack);
        Ok(bf16 && Isa::detect()?.has_pairs())
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
            None => Ok(QkvWeights::Split(Box::new(self.parts.each_ref().map(Dense::weights)))),
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
    pub(crate) fn part(&self, i: usize) -> Result<Dense> {
        match self.in_order()? {
            Some(ordered) => ordered.part(i),
            // Not packed together with the one that calls use.
            None => Ok(Dense { packed: Arc::default(), ..self.parts[i].clone() }),
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
fn joined(parts: &[Dense; 3]) -> Result<Option<DenseWeights>> {
    let first = &parts[0];
    let alike =
        |part: &Dense| part.weight.dims()[1] == first.weight.dims()[1] && part.bias.is_some() == first.bias.is_some();
    if !parts.iter().all(|part| alike(part) && !part.tracks_gradient()) {
        return Ok(None);
    }
    let weight = Tensor::cat(&parts.each_ref().map(|part| &part.weight), 0)?;
    let biases: Vec<&Tensor> = parts.iter().filter_map(|part| part.bias.as_ref()).collect();
    let bias = if biases.is_empty() { None } else { Some(Tensor::cat(&biases, 0)?) };
    Ok(Some(DenseWeights { weight, bias }))
}

/// The projections with their rows in order, if they are stored in another. Differentiable. `rows`: how many of each.
pub(crate) fn in_order(weights: &QkvWeights, rows: [usize; 3], h_kv: usize) -> Result<Option<QkvWeights>> {
    Ok(match weights {
        QkvWeights::Split(_) | QkvWeights::Packed(_) => None,
        QkvWeights::Ordered(all, order) => Some(QkvWeights::Packed(in_blocks(all, *order, rows, h_kv)?)),
        QkvWeights::OrderedSplitBias { weight, biases, order } => {
            let all = in_blocks(&DenseWeights { weight: weight.clone(), bias: None }, *order, rows, h_kv)?;
            let part = |i: usize| {
                let weight = all.weight.narrow(0, rows[..i].iter().sum(), rows[i])?;
                Ok::<_, Error>(DenseWeights { weight, bias: biases[i].clone() })
            };
            Some(QkvWeights::Split(Box::new([part(0)?, part(1)?, part(2)?])))
        }
    })
}

/// The rows of query, key and value one after the other.
fn in_blocks(dense: &DenseWeights, order: FusedOrder, rows: [usize; 3], h_kv: usize) -> Result<DenseWeights> {
    let [q, k, v] = rows;
    if dense.weight.dims().first() != Some(&(q + k + v)) {
        let expected = format!("({}, in)", q + k + v);
        return Err(Error::shape("fused q, k, v weight", dense.weight.dims(), expected));
    }
    let ordered = |t: &Tensor| {
        let mut rest = t.dims().to_vec();
        rest.remove(0);
        let shaped = |dims: &[usize]| t.reshape([dims, &rest].concat());
        let flat = |t: Tensor, rows: usize| t.contiguous()?.reshape([&[rows], &rest[..]].concat());
        let (parts, axis, starts) = match order {
            FusedOrder::Blocks => return Ok(t.clone()),
            FusedOrder::Grouped => {
                let (q, k, v) = (q / h_kv, k / h_kv, v / h_kv);
                (shaped(&[h_kv, q + k + v])?, 1, [(0, q), (q, k), (q + k, v)])
            }
            // Queries, values, keys.
            FusedOrder::FourBlocks => {
                let part = q / 4;
                (shaped(&[4, 3 * part])?, 1, [(0, part), (2 * part, part), (part, part)])
            }
        };
        let part = |i: usize| flat(parts.narrow(axis, starts[i].0, starts[i].1)?, rows[i]);
        Ok::<_, Error>(Tensor::cat(&[part(0)?, part(1)?, part(2)?], 0)?)
    };
    if order == FusedOrder::FourBlocks && (q != k || q != v || !q.is_multiple_of(4)) {
        return Err(Error::shape("fused q, k, v", dense.weight.dims(), "as many keys and values as queries, in fours"));
    }
    Ok(DenseWeights { weight: ordered(&dense.weight)?, bias: dense.bias.as_ref().map(ordered).transpose()? })
}

/// `(b, s, h · d)` → `(b, s, h, d)`.
fn heads(ys: &Tensor, size: usize) -> Result<Tensor> {
    let (b, s, width) = ys.dims3()?;
    Ok(ys.reshape((b, s, width / size, size))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What layers on a GPU are made of, tried on the CPU, in f64 so that nothing else packs.
    #[test]
    fn three_projections_in_one_say_the_same() {
        let device = Device::Cpu;
        let random = |dims: &[usize]| Tensor::randn(0f64, 1.0, dims, &device).unwrap();
        let (rows, input, sizes) = ([12, 6, 10], 7, [3, 3, 5]);
        let dense = |i: usize| DenseWeights { weight: random(&[rows[i], input]), bias: Some(random(&[rows[i]])) };
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
                let DenseWeights { weight, bias } = dense(i);
                Dense { weight, bias: bias.filter(|_| i != 1), packed: Arc::default() }
            })),
            ..split
        };
        assert!(joined(&odd.parts).unwrap().is_none(), "a bias that is not there is not made up");
    }
}
