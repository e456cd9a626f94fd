//! The fused projection of queries, keys and values, and of the gate of the output.

mod parts;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_attention_kernels::{Isa, PackedWeights};
use candle_core::{D, DType, Tensor, TensorId};

use crate::ensure;
use crate::error::{Error, Result};
use crate::ops::latent::{Latent, LatentSizes};
use crate::ops::linear::Linear;
use crate::ops::pack::{blas, format_of, multiply, multiply_outputs, pack};
use crate::ops::packed::to_packable;
use crate::ops::quantization::Quantization;
use crate::tensor::ShareWeights;
use crate::tensor::same_dtype_and_device;
use crate::weights::{LinearWeights, QkvWeights};

/// The projections of queries, keys and values: one product for all three where they share their input. The projection
/// of the gate, which reads the input of the queries, is a fourth part.
///
/// On the CPU their weights are packed in one, too, and that is the only packed copy: what needs the queries alone, or
/// keys and values alone, multiplies with a part of it.
#[derive(Debug, Clone)]
pub(crate) struct Qkv {
    weights: Weights,
    /// All parts packed in one, on first use.
    packed: Arc<OnceLock<Arc<PackedWeights>>>,
    /// That of the weight of the queries that the layer was made of.
    id: TensorId,
    /// The numbers of outputs of q, k, v and the gate.
    rows: [usize; 4],
    h_kv: usize,
}

/// How the weights are held. `parts` are q, k, v and, if there is one, the gate, with their rows in order.
#[derive(Debug, Clone)]
enum Weights {
    /// A layer for each part.
    Separate(Vec<Linear>),
    /// One layer of q, k and v, of which their parts are views.
    Fused { parts: Vec<Linear>, all: Box<Linear> },
    /// Variables whose rows are in another order: each call brings `stored` in order anew. `parts`, and `all` where
    /// they are one layer, are those at the time of loading.
    Reordered { parts: Vec<Linear>, all: Option<Box<Linear>>, stored: Box<QkvWeights> },
    /// Outputs of what is packed in one, and nothing beside it.
    Packed(Vec<Linear>),
    /// Those of latent attention, which has no separate projections of keys and values.
    Latent(Box<Latent>),
}

impl Weights {
    /// The weights of these parts, of which `all` is the one layer of q, k and v, if they are one.
    fn new(parts: Vec<Linear>, all: Option<Linear>) -> Self {
        match all {
            Some(all) => Self::Fused { parts, all: Box::new(all) },
            None => Self::Separate(parts),
        }
    }

    /// The parts; none of latent attention.
    fn parts(&self) -> &[Linear] {
        match self {
            Self::Separate(parts) | Self::Packed(parts) => parts,
            Self::Fused { parts, .. } | Self::Reordered { parts, .. } => parts,
            Self::Latent(_) => &[],
        }
    }

    fn parts_mut(&mut self) -> &mut [Linear] {
        match self {
            Self::Separate(parts) | Self::Packed(parts) => parts,
            Self::Fused { parts, .. } | Self::Reordered { parts, .. } => parts,
            Self::Latent(_) => &mut [],
        }
    }

    /// The one layer of q, k and v, if they are one.
    fn all(&self) -> Option<&Linear> {
        match self {
            Self::Fused { all, .. } => Some(all),
            Self::Reordered { all, .. } => all.as_deref(),
            Self::Separate(_) | Self::Packed(_) | Self::Latent(_) => None,
        }
    }

    fn linears_mut(&mut self) -> Vec<&mut Linear> {
        match self {
            Self::Separate(parts) | Self::Packed(parts) => parts.iter_mut().collect(),
            Self::Fused { parts, all } => parts.iter_mut().chain([&mut **all]).collect(),
            Self::Reordered { parts, all, .. } => parts.iter_mut().chain(all.as_deref_mut()).collect(),
            Self::Latent(latent) => latent.linears_mut().collect(),
        }
    }

    /// Whether they are outputs of what is packed in one.
    fn are_packed(&self) -> bool {
        matches!(self, Self::Packed(_))
    }

    /// Whether each call brings them in order.
    fn are_reordered(&self) -> bool {
        matches!(self, Self::Reordered { .. })
    }
}

const NAMES: [&str; 4] = ["q_proj", "k_proj", "v_proj", "gate_proj"];
/// The index of the gate.
pub(crate) const GATE: usize = 3;

impl Qkv {
    /// `rows` and `inputs` are the numbers of outputs and inputs of q, k and v, `h_kv` is the number of key-value
    /// heads; `gate` is the projection of the gate, if `weights` do not hold it, and its number of outputs.
    pub(crate) fn new(
        weights: QkvWeights,
        rows: [usize; 3],
        inputs: [usize; 3],
        h_kv: usize,
        gate: (Option<LinearWeights>, usize),
    ) -> Result<Self> {
        let (own_gate, gate_rows) = gate;
        let gate = match own_gate {
            Some(gate) => Some(gate),
            None => weights.gate(rows[0])?,
        };
        let (parts, all) = match weights.packed(rows, h_kv)? {
            Some(all) => views(all, rows, inputs[0])?,
            None => {
                let [q, k, v] = weights.split(rows, h_kv)?;
                let part = |i: usize, weights| Linear::new(NAMES[i], weights, rows[i], inputs[i]);
                let parts = [part(0, q)?, part(1, k)?, part(2, v)?];
                for (part, name) in parts.iter().zip(NAMES) {
                    same_dtype_and_device(&format!("{name} weight"), part.like(), parts[0].like())?;
                }
                // One large product costs a GPU less than three. On the CPU they are packed into one on first use.
                let all = if parts[0].like().device().is_cpu() { None } else { concat(&parts)? };
                match all {
                    Some(all) => views(all, rows, inputs[0])?,
                    None => (parts, None),
                }
            }
        };
        let mut parts = Vec::from(parts);
        if let Some(gate) = gate {
            let gate = Linear::new(NAMES[GATE], gate, gate_rows, inputs[0])?;
            same_dtype_and_device("gate_proj weight", gate.like(), parts[0].like())?;
            parts.push(gate);
        }
        let id = parts[0].id();
        let rows = [rows[0], rows[1], rows[2], if parts.len() > GATE { gate_rows } else { 0 }];
        let weights = if weights.needs_reordering() && weights.tracks_gradient() {
            Weights::Reordered { parts, all: all.map(Box::new), stored: Box::new(weights) }
        } else {
            Weights::new(parts, all)
        };
        Ok(Self { weights, packed: Arc::default(), id, rows, h_kv })
    }

    /// The projections of latent attention.
    pub(crate) fn from_latents(
        weights: QkvWeights,
        sizes: LatentSizes,
        gate: (Option<LinearWeights>, usize),
    ) -> Result<Self> {
        let QkvWeights::Latent(weights) = weights else {
            return Err(Error::config("latent", "set", "none: the weights are those of queries, keys and values"));
        };
        let (gate, gate_rows) = gate;
        let gate = gate.map(|gate| Linear::new(NAMES[GATE], gate, gate_rows, sizes.inputs[0])).transpose()?;
        let latent = Latent::new(*weights, sizes, gate)?;
        let (id, weights) = (latent.id(), Weights::Latent(Box::new(latent)));
        Ok(Self { weights, packed: Arc::default(), id, rows: [0; 4], h_kv: sizes.heads })
    }

    /// The projections of latent attention, if the layer has them: then nothing else of a call's projections applies.
    pub(crate) fn latent(&self) -> Option<&Latent> {
        match &self.weights {
            Weights::Latent(latent) => Some(latent),
            _ => None,
        }
    }

    /// All projections of the layer's inputs and of its latents.
    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.weights.parts().iter().chain(self.latent().into_iter().flat_map(Latent::linears))
    }

    /// The projection of the gate, if there is one.
    fn gate_part(&self) -> Option<&Linear> {
        match &self.weights {
            Weights::Latent(latent) => latent.gate(),
            layers => layers.parts().get(GATE),
        }
    }

    /// Whether there is a projection of the gate.
    pub(crate) fn has_gate(&self) -> bool {
        self.gate_part().is_some()
    }

    /// A tensor with the dtype and the device of the weights.
    pub(crate) fn like(&self) -> &Tensor {
        match &self.weights {
            Weights::Latent(latent) => latent.like(),
            layers => layers.parts()[0].like(),
        }
    }

    /// The identity of these weights among those of all layers; clones share it.
    pub(crate) fn id(&self) -> TensorId {
        self.id
    }

    /// Whether any weight tracks operations.
    pub(crate) fn tracks_gradient(&self) -> bool {
        let others = match &self.weights {
            Weights::Latent(latent) => latent.norms_track_gradient(),
            layers => layers.are_reordered(),
        };
        others || self.linears().any(Linear::tracks_gradient)
    }

    /// Whether queries, keys and values of one input can come from one product with packed weights.
    pub(crate) fn can_pack(&self) -> bool {
        let (parts, are_packed) = (self.weights.parts(), self.weights.are_packed());
        let can_pack = |part: &Linear| if are_packed { !part.is_exact() } else { part.can_pack() };
        !parts.is_empty() && parts.iter().all(|part| can_pack(part) && part.in_features() == parts[0].in_features())
    }

    /// Packs the weights now and gives their tensors back, as [`Linear::pack`] does.
    pub(crate) fn pack(&mut self) -> Result<()> {
        if !self.can_pack() {
            return match &mut self.weights {
                Weights::Latent(latent) => latent.linears_mut().try_for_each(Linear::pack),
                layers => layers.parts_mut().iter_mut().try_for_each(Linear::pack),
            };
        }
        let packed = self.packed()?.clone();
        self.pack_in_one(packed, self.like().dtype())
    }

    /// Leaves of the parts what is packed in one and stands for tensors of `dtype`.
    fn pack_in_one(&mut self, packed: Arc<PackedWeights>, dtype: DType) -> Result<()> {
        let part =
            |i: usize, part: &Linear| Linear::from_packed(packed.clone(), self.outputs(i), part.has_bias(), dtype);
        let parts = self.weights.parts().iter().enumerate().map(|(i, linear)| part(i, linear));
        self.weights = Weights::Packed(parts.collect::<Result<_>>()?);
        self.packed = Arc::new(OnceLock::from(packed));
        Ok(())
    }

    /// Rounds the weights of all parts to a format of few bits, as [`Linear::quantize`] does: in one if their inputs
    /// have one size, else one by one.
    pub(crate) fn quantize(&mut self, format: Quantization) -> Result<()> {
        if self.quantization() == Some(format) {
            return Ok(());
        }
        format.check_device(self.like())?;
        if let Some(ordered) = self.reordered()? {
            *self = Self { id: self.id, ..ordered };
        }
        let ranges = [0, 1, 2].map(|i| self.outputs(i));
        if let Weights::Latent(latent) = &mut self.weights {
            return latent.quantize(format);
        }
        let input = self.weights.parts()[0].in_features();
        let is_plain = |part: &Linear| part.is_plain() && part.in_features() == input;
        if !self.weights.are_packed() && !self.weights.parts().iter().all(is_plain) {
            // The parts are views of a layer that is computed otherwise.
            if let Weights::Fused { parts, all } = &mut self.weights {
                all.quantize(format)?;
                for (part, range) in parts.iter_mut().zip(ranges) {
                    *part = all.outputs(range)?;
                }
            }
            return self.weights.parts_mut().iter_mut().try_for_each(|part| part.quantize(format));
        }
        if !format.fits(input) {
            return self.pack();
        }
        let weights = |part: &Linear| to_packable(part.weights()?);
        let parts = self.weights.parts().iter().map(weights).collect::<Result<Vec<_>>>()?;
        let packed = pack(&parts.iter().collect::<Vec<_>>(), format.weight_format()).map_err(|error| {
            // A part alone tells which one it is.
            let alone = |part: &LinearWeights| pack(&[part], format.weight_format()).err();
            let mut named = parts.iter().zip(NAMES).filter_map(|(part, name)| Some(alone(part)?.with_weight(name)));
            named.next().unwrap_or(error)
        })?;
        self.pack_in_one(Arc::new(packed), DType::F32)
    }

    /// Makes products of weights in few bits exact, as [`Linear::set_exact`] does.
    pub(crate) fn set_exact(&mut self) {
        self.weights.linears_mut().into_iter().for_each(Linear::set_exact);
    }

    /// Whether products of weights in few bits are exact.
    pub(crate) fn is_exact(&self) -> bool {
        self.linears().any(Linear::is_exact)
    }

    /// The format of the weights, if it has few bits: of any part, if they are packed one by one.
    pub(crate) fn quantization(&self) -> Option<Quantization> {
        self.linears().find_map(Linear::quantization)
    }

    /// Whether the weights have been packed, all in one or one by one.
    pub(crate) fn is_packed(&self) -> bool {
        self.packed.get().is_some() || self.linears().any(Linear::is_packed)
    }

    /// The packed weights of all parts, the gate last; call only if [`can_pack`](Self::can_pack).
    pub(crate) fn packed(&self) -> Result<&Arc<PackedWeights>> {
        if let Some(packed) = self.packed.get() {
            return Ok(packed);
        }
        ensure!(!self.weights.parts().is_empty(), no_projections());
        let parts = self.weights.parts().iter().map(Linear::weights).collect::<Result<Vec<_>>>()?;
        let packed = Arc::new(pack(&parts.iter().collect::<Vec<_>>(), format_of(self.like().dtype()))?);
        Ok(self.packed.get_or_init(|| packed))
    }

    /// Whether the inputs of packed weights are rounded to bf16; `false` where none are packed.
    pub(crate) fn rounds_to_bf16(&self) -> Result<bool> {
        let parts = self.weights.parts();
        let can_pack = !parts.is_empty() && (self.weights.are_packed() || parts.iter().all(Linear::can_pack));
        Ok(can_pack && self.like().dtype() == DType::BF16 && blas().is_none() && Isa::detect()?.has_bf16_dot())
    }

    /// Projects `[query, key, value]`, each `(b, s, in)`, and splits the results into heads: `(b, s, h, d)` in `dtype`.
    /// `sizes` are the dimensions per head of q, k and v.
    pub(crate) fn forward(&self, inputs: [&Tensor; 3], sizes: [usize; 3], dtype: DType) -> Result<[Tensor; 3]> {
        if let Some(ordered) = self.reordered()? {
            return ordered.forward(inputs, sizes, dtype);
        }
        let [q, k, v] = inputs;
        let one_input = q.id() == k.id() && q.id() == v.id();
        if one_input && self.can_pack() && !q.track_op() {
            let packed = self.packed()?;
            let ys = if self.has_gate() {
                multiply_outputs(q, packed, 0..self.outputs(GATE).start, dtype)?
            } else {
                multiply(q, packed, dtype)?
            };
            return self.split_outputs(&ys, sizes);
        }
        if let Some(all) = self.weights.all().filter(|_| one_input) {
            return self.split_outputs(&all.forward_in_dtype(q, dtype)?, sizes);
        }
        let part = |i: usize, xs: &Tensor| split_heads(&self.forward_part(i, xs, dtype)?, sizes[i]);
        Ok([part(0, q)?, part(1, k)?, part(2, v)?])
    }

    /// The weights as three layers.
    pub(crate) fn weights(&self) -> Result<QkvWeights> {
        if let Some(latent) = self.latent() {
            return Ok(QkvWeights::Latent(Box::new(latent.weights()?)));
        }
        let ordered = self.in_order()?;
        Ok(QkvWeights::Split(Box::new([ordered.part_weights(0)?, ordered.part_weights(1)?, ordered.part_weights(2)?])))
    }

    /// The weights that the contents of a cache are made with: those of keys and values, or of latents.
    pub(crate) fn cached_weights(&self) -> Result<Vec<Tensor>> {
        if let Some(latent) = self.latent() {
            return latent.latent_weights();
        }
        let parts = [self.own_part(1)?, self.own_part(2)?];
        if self.weights.are_packed() {
            return Ok([parts[0].weights()?.to_tensors(), parts[1].weights()?.to_tensors()].concat());
        }
        Ok([parts[0].changing()?, parts[1].changing()?].concat())
    }

    /// The queries alone, as [`forward`](Self::forward) gives them.
    pub(crate) fn query(&self, xs: &Tensor, size: usize, dtype: DType) -> Result<Tensor> {
        split_heads(&self.project(0, xs, dtype)?, size)
    }

    /// Keys and values alone, as [`forward`](Self::forward) gives them.
    pub(crate) fn key_value(&self, [k, v]: [&Tensor; 2], sizes: [usize; 2], dtype: DType) -> Result<[Tensor; 2]> {
        let ordered = self.in_order()?;
        let part = |i: usize, xs, size| split_heads(&ordered.forward_part(i, xs, dtype)?, size);
        Ok([part(1, k, sizes[0])?, part(2, v, sizes[1])?])
    }

    /// The projection of the gate of `xs` `(b, s, in)`, if there is one: `(b, s, out)` in `dtype`.
    pub(crate) fn gate(&self, xs: &Tensor, dtype: DType) -> Result<Option<Tensor>> {
        self.has_gate().then(|| self.project(GATE, xs, dtype)).transpose()
    }

    /// The weights of the gate, if there is one.
    pub(crate) fn gate_weights(&self) -> Result<Option<LinearWeights>> {
        self.has_gate().then(|| self.in_order()?.part_weights(GATE)).transpose()
    }

    /// Whether the projection of the gate has a bias.
    pub(crate) fn gate_has_bias(&self) -> bool {
        self.gate_part().is_some_and(Linear::has_bias)
    }

    /// The queries (0), keys (1) or values (2) of `xs` `(b, s, in)`, not split into heads: `(b, s, out)` in `dtype`.
    pub(crate) fn project(&self, i: usize, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        self.in_order()?.forward_part(i, xs, dtype)
    }

    /// [`project`](Self::project) with weights whose rows are in order.
    fn forward_part(&self, i: usize, xs: &Tensor, dtype: DType) -> Result<Tensor> {
        if self.can_pack() && !xs.track_op() {
            return multiply_outputs(xs, self.packed()?, self.outputs(i), dtype);
        }
        self.own_part(i)?.forward_in_dtype(xs, dtype)
    }

    /// The projection of queries (0), keys (1), values (2) or the gate (3), of weights whose rows are in order.
    fn own_part(&self, i: usize) -> Result<&Linear> {
        let part = if i == GATE { self.gate_part() } else { self.weights.parts().get(i) };
        part.ok_or_else(no_projections)
    }

    /// The weights of queries (0), keys (1), values (2) or the gate (3), in order.
    fn part_weights(&self, i: usize) -> Result<LinearWeights> {
        self.own_part(i)?.weights()
    }

    /// The outputs of all that are those of queries (0), keys (1), values (2) or the gate (3).
    fn outputs(&self, i: usize) -> Range<usize> {
        let start = self.rows[..i].iter().sum();
        start..start + self.rows[i]
    }

    /// These projections with their rows in order, if they are reordered per call.
    fn reordered(&self) -> Result<Option<Self>> {
        let Weights::Reordered { parts, stored: weights, .. } = &self.weights else { return Ok(None) };
        let inputs = [0, 1, 2].map(|i| parts[i].in_features());
        let [q, k, v, gate_rows] = self.rows;
        let ordered = match weights.packed([q, k, v], self.h_kv)? {
            Some(all) => QkvWeights::Packed(all),
            None => QkvWeights::Split(Box::new(weights.split([q, k, v], self.h_kv)?)),
        };
        let gate = match (weights.gate(q)?, parts.get(GATE)) {
            (None, Some(own)) => Some(own.weights()?),
            (stored, _) => stored,
        };
        Self::new(ordered, [q, k, v], inputs, self.h_kv, (gate, gate_rows)).map(Some)
    }

    /// These projections, or the [`reordered`](Self::reordered) ones.
    fn in_order(&self) -> Result<Cow<'_, Self>> {
        Ok(self.reordered()?.map_or(Cow::Borrowed(self), Cow::Owned))
    }

    /// `ys` `(b, s, rows of q, k and v)` → queries, keys and values by head.
    fn split_outputs(&self, ys: &Tensor, sizes: [usize; 3]) -> Result<[Tensor; 3]> {
        let start = |i: usize| self.outputs(i).start;
        if sizes[1] != sizes[2] {
            let part = |i: usize| split_heads(&ys.narrow(D::Minus1, start(i), self.rows[i])?, sizes[i]);
            return Ok([part(0)?, part(1)?, part(2)?]);
        }
        // Split into heads first: then q, k and v are views of one tensor, and nothing is copied.
        let ys = split_heads(ys, sizes[0])?;
        let part = |i: usize| ys.narrow(2, start(i) / sizes[i], self.rows[i] / sizes[i]);
        Ok([part(0)?, part(1)?, part(2)?])
    }
}

impl ShareWeights for Qkv {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        if let (Weights::Latent(own), Weights::Latent(other)) = (&mut self.weights, &other.weights) {
            return own.share_weights(other);
        }
        if (self.rows, self.h_kv) != (other.rows, other.h_kv) || self.like().dtype() != other.like().dtype() {
            return Ok(());
        }
        let (own, others) = (self.weights.parts(), other.weights.parts());
        if own.is_empty() || others.is_empty() {
            return Ok(());
        }
        let same = if self.weights.are_packed() && other.weights.are_packed() {
            own.iter().map(Linear::has_bias).eq(others.iter().map(Linear::has_bias))
                && self.packed()?.has_same_bits(other.packed()?)
        } else if !self.is_plain() {
            self.weights.linears_mut().into_iter().zip(others).try_for_each(|(own, other)| own.share_weights(other))?;
            false
        } else {
            let mut same = !self.weights.are_reordered() && !other.weights.are_reordered();
            for (own, other) in own.iter().zip(others) {
                same = same && own.has_same_weights(other)?;
            }
            same
        };
        if same {
            *self = other.clone();
        }
        Ok(())
    }
}

/// The layers of q, k and v as views of one layer, and that layer.
fn views(all: LinearWeights, rows: [usize; 3], input: usize) -> Result<([Linear; 3], Option<Linear>)> {
    let all = Linear::new("packed q, k, v", all, rows.iter().sum(), input)?;
    let [q, k, v] = all.weights()?.split(rows)?;
    let view = |i: usize, weights| Linear::new(NAMES[i], weights, rows[i], input);
    Ok(([view(0, q)?, view(1, k)?, view(2, v)?], Some(all)))
}

/// Three layers as one, if their inputs have one size, they track no gradient, and all or none have a bias.
fn concat(parts: &[Linear; 3]) -> Result<Option<LinearWeights>> {
    let fits = |part: &Linear| {
        part.in_features() == parts[0].in_features()
            && part.has_bias() == parts[0].has_bias()
            && !part.tracks_gradient()
    };
    if !parts.iter().all(fits) {
        return Ok(None);
    }
    let weights = [parts[0].weights()?, parts[1].weights()?, parts[2].weights()?];
    LinearWeights::concat(&weights.each_ref()).map(Some)
}

/// The error of a caller that needs projections which latent attention does not have.
fn no_projections() -> Error {
    let expected = "separate ones: latent attention makes keys and values of latents";
    Error::value("the projections of queries, keys and values", "those of latents", expected)
}

/// `(b, s, h · d)` → `(b, s, h, d)`.
fn split_heads(ys: &Tensor, size: usize) -> Result<Tensor> {
    let (b, s, width) = ys.dims3()?;
    Ok(ys.reshape((b, s, width / size, size))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::random::Random;

    fn parts(qkv: &Qkv) -> &[Linear; 3] {
        qkv.weights.parts().try_into().unwrap()
    }

    /// Runs on the CPU what layers on a GPU do, in f64 because f64 weights are never packed.
    #[test]
    fn concatenated_projections_equal_separate_ones() {
        let mut random = Random(1);
        let mut random = |dims: &[usize]| random.tensor(dims).to_dtype(DType::F64).unwrap();
        let (rows, input, sizes) = ([12, 6, 10], 7, [3, 3, 5]);
        let (xs, ys) = (random(&[2, 4, input]), random(&[2, 5, input]));
        let mut dense = |i: usize| LinearWeights::new(random(&[rows[i], input]), Some(random(&[rows[i]])));
        let split =
            Qkv::new(QkvWeights::Split(Box::new([0, 1, 2].map(&mut dense))), rows, [input; 3], 2, (None, 0)).unwrap();
        let one = concat(parts(&split)).unwrap().unwrap();
        let one = Qkv::new(QkvWeights::Packed(one), rows, [input; 3], 2, (None, 0)).unwrap();
        for inputs in [[&xs; 3], [&xs, &ys, &ys]] {
            let want = split.forward(inputs, sizes, DType::F64).unwrap();
            let got = one.forward(inputs, sizes, DType::F64).unwrap();
            for (got, want) in got.iter().zip(&want) {
                assert_eq!(got.dims(), want.dims());
                let worst = (got - want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap();
                assert!(worst.to_scalar::<f64>().unwrap() < 1e-12);
            }
        }
        let mut odd = [0, 1, 2].map(dense);
        odd[1].bias = None;
        let odd = Qkv::new(QkvWeights::Split(Box::new(odd)), rows, [input; 3], 2, (None, 0)).unwrap();
        assert!(concat(parts(&odd)).unwrap().is_none(), "a bias for some of them is not invented for the others");
    }
}
