//! Frozen copies of layers and models whose weights are variables.
//!
//! Variables change in place, so nothing may be computed from them ahead, such as packed weights. A frozen copy has
//! tensors of its own. It is kept, and compared with the variables when the next one is asked for: reading all weights
//! costs less than packing them again. A counter of changes would cost nothing, but candle keeps none, and a missed
//! change would give wrong numbers.
//!
//! On the CPU a frozen copy keeps its projections packed and nothing beside that. What is loaded from a source that
//! gives every caller tensors of its own, such as a file, is frozen from the start, without a copy.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use candle_attention_kernels::{check_allocation, element_count};
use candle_core::{DType, Tensor, TensorId, WithDType};
use half::{bf16, f16};

use crate::error::Result;
use crate::tensor::cpu_slice::with_slices;

/// A tree of tensors: the weights of a layer, a layer, a model. [`map_fields!`](crate::map_fields) implements it for a
/// struct.
pub trait MapTensors: Sized {
    /// A copy with `f` of every tensor, in an order that depends on their number only. `f` keeps the shape. Tensors
    /// that are packed together with others, or in few bits, stay as they are.
    ///
    /// # Errors
    /// Those of `f`; tensors that do not fit together any more.
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self>;
}

impl<T: MapTensors> MapTensors for Option<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.as_ref().map(|whole| whole.map_tensors(f)).transpose()
    }
}

impl MapTensors for Tensor {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        f(self)
    }
}

impl<T: MapTensors> MapTensors for Box<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        (**self).map_tensors(f).map(Self::new)
    }
}

impl<A: MapTensors, B: MapTensors> MapTensors for (A, B) {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok((self.0.map_tensors(f)?, self.1.map_tensors(f)?))
    }
}

impl<T: MapTensors> MapTensors for [T; 2] {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok([self[0].map_tensors(f)?, self[1].map_tensors(f)?])
    }
}

impl<T: MapTensors> MapTensors for [T; 3] {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok([self[0].map_tensors(f)?, self[1].map_tensors(f)?, self[2].map_tensors(f)?])
    }
}

impl<T: MapTensors> MapTensors for Vec<T> {
    fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        self.iter().map(|part| part.map_tensors(f)).collect()
    }
}

/// The last frozen copy of a layer or model, which its clones share: a field of what implements [`Freeze`]. The default
/// is that of a layer or model that may change and has not been copied yet.
#[derive(Clone)]
pub struct Frozen<T>(State<T>);

#[derive(Clone)]
enum State<T> {
    /// The layer or model may change; its last copy, if there is one.
    Last(Arc<Mutex<Option<T>>>),
    /// The layer or model is a frozen copy itself.
    Itself,
}

impl<T> Default for Frozen<T> {
    fn default() -> Self {
        Self(State::Last(Arc::default()))
    }
}

impl<T> Frozen<T> {
    /// The state of a frozen copy.
    pub(crate) fn itself() -> Self {
        Self(State::Itself)
    }

    /// Whether the layer or model is a frozen copy itself.
    pub fn is_itself(&self) -> bool {
        matches!(self.0, State::Itself)
    }
}

impl<T: Clone> Frozen<T> {
    /// The last copy, if there is one.
    pub(crate) fn last(&self) -> Option<T> {
        match &self.0 {
            State::Last(last) => last.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            State::Itself => None,
        }
    }
}

/// A layer or model that can be frozen. [`MultiHeadAttention`](crate::MultiHeadAttention) is one, and a model of layers
/// becomes one:
///
/// ```
/// use candle_attention::candle_core::Tensor;
/// use candle_attention::tensor::{Freeze, Frozen, MapTensors};
/// use candle_attention::{MultiHeadAttention, Result};
///
/// #[derive(Clone)]
/// struct Model {
///     layers: Vec<MultiHeadAttention>,
///     frozen: Frozen<Self>,
/// }
///
/// impl MapTensors for Model {
///     fn map_tensors(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
///         Ok(Self { layers: self.layers.map_tensors(f)?, frozen: Frozen::default() })
///     }
/// }
///
/// impl Freeze for Model {
///     fn frozen_state(&mut self) -> &mut Frozen<Self> {
///         &mut self.frozen
///     }
///
///     fn pack(&mut self) -> Result<()> {
///         self.layers.iter_mut().try_for_each(Freeze::freeze_in_place)
///     }
/// }
///
/// impl Model {
///     /// For evaluation between the steps of training.
///     fn frozen(&self) -> Result<Self> {
///         self.freeze(&self.frozen)
///     }
/// }
/// ```
pub trait Freeze: MapTensors + Clone {
    /// Where the last frozen copy is.
    fn frozen_state(&mut self) -> &mut Frozen<Self>;

    /// Packs the weights of projections where the CPU can, and gives their tensors back.
    ///
    /// # Errors
    /// Not enough memory.
    fn pack(&mut self) -> Result<()>;

    /// Makes a layer or model of tensors that nobody else holds a frozen one.
    ///
    /// # Errors
    /// The errors of [`pack`](Self::pack).
    fn freeze_in_place(&mut self) -> Result<()> {
        self.pack()?;
        *self.frozen_state() = Frozen::itself();
        Ok(())
    }

    /// A copy whose tensors nobody else can change, the last one if the weights are still the same. `last` is the
    /// [`frozen_state`](Self::frozen_state) of `self`.
    ///
    /// # Errors
    /// The device is out of memory.
    fn freeze(&self, last: &Frozen<Self>) -> Result<Self> {
        let State::Last(last) = &last.0 else { return Ok(self.clone()) };
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(frozen) = &*last
            && has_weights(frozen, tensors(self)?)?
        {
            return Ok(frozen.clone());
        }
        let mut copies = HashMap::<TensorId, Tensor>::new();
        let mut copy = self.map_tensors(&mut |tensor| match copies.entry(tensor.id()) {
            // Tables that layers share stay shared.
            Entry::Occupied(copy) => Ok(copy.get().clone()),
            // Not `copy`, which copies all of the memory that a view looks into.
            Entry::Vacant(none) => {
                check_allocation::<f64>("a copy of the weights", element_count("a weight", tensor.dims())?)?;
                Ok(none.insert(tensor.detach().force_contiguous()?).clone())
            }
        })?;
        drop(copies);
        copy.freeze_in_place()?;
        *last = Some(copy.clone());
        Ok(copy)
    }
}

fn tensors(whole: &impl MapTensors) -> Result<Vec<Tensor>> {
    let mut all = Vec::new();
    whole.map_tensors(&mut |tensor| {
        all.push(tensor.clone());
        Ok(tensor.clone())
    })?;
    Ok(all)
}

/// Whether the weights of `last` are `now`, bit for bit.
fn has_weights(last: &impl MapTensors, now: Vec<Tensor>) -> Result<bool> {
    let (mut now, mut same) = (now.into_iter(), true);
    last.map_tensors(&mut |tensor| {
        let Some(now) = now.next() else {
            same = false;
            return Ok(tensor.clone());
        };
        same = same && same_elements(&now, tensor)?;
        // Packed weights are unpacked for this comparison: returned here, all of them would be in memory together.
        Ok(now)
    })?;
    Ok(same && now.next().is_none())
}

/// Whether two tensors have the same bits, dtype and device.
pub fn same_elements(a: &Tensor, b: &Tensor) -> Result<bool> {
    if a.dims() != b.dims() || a.dtype() != b.dtype() || !a.device().same_device(b.device()) {
        return Ok(false);
    }
    Ok(match a.dtype() {
        // A NaN differs from itself here; then there is one more copy than necessary.
        _ if !a.device().is_cpu() => a.ne(b)?.to_dtype(DType::F32)?.sum_all()?.to_scalar::<f32>()? == 0.0,
        DType::F32 => same_on_cpu(a, b, f32::to_bits)?,
        DType::F64 => same_on_cpu(a, b, f64::to_bits)?,
        DType::F16 => same_on_cpu(a, b, f16::to_bits)?,
        DType::BF16 => same_on_cpu(a, b, bf16::to_bits)?,
        _ => false,
    })
}

/// Whether all elements have the same bits.
fn same_on_cpu<T: WithDType, B: PartialEq>(a: &Tensor, b: &Tensor, bits: impl Fn(T) -> B) -> Result<bool> {
    /// Elements that are compared without a branch, so that the comparison is vectorized.
    const BLOCK: usize = 512;
    let same = |a: &[T], b: &[T]| !a.iter().zip(b).fold(false, |differ, (a, b)| differ | (bits(*a) != bits(*b)));
    with_slices([a, b], |[a, b]: [&[T]; 2]| a.chunks(BLOCK).zip(b.chunks(BLOCK)).all(|(a, b)| same(a, b)))
}

/// A layer or model that takes over the weights of another one of its kind where the bits are the same: both then hold
/// one copy. For models with different adapters of one base. [`share_fields!`](crate::share_fields) implements it for a
/// struct.
pub trait ShareWeights: Sized {
    /// Puts the weights of `other` in the place of equal ones.
    ///
    /// # Errors
    /// A GPU cannot be read.
    fn share_weights(&mut self, other: &Self) -> Result<()>;
}

impl ShareWeights for Tensor {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        if !self.track_op() && !other.track_op() && same_elements(self, other)? {
            *self = other.clone();
        }
        Ok(())
    }
}

impl<T: ShareWeights> ShareWeights for Option<T> {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        match (self, other) {
            (Some(own), Some(other)) => own.share_weights(other),
            _ => Ok(()),
        }
    }
}

impl<T: ShareWeights> ShareWeights for Vec<T> {
    fn share_weights(&mut self, other: &Self) -> Result<()> {
        self.iter_mut().zip(other).try_for_each(|(own, other)| own.share_weights(other))
    }
}

/// Implements [`MapTensors`](crate::tensor::MapTensors) for a struct, field by field. After the braces, `..` stands for
/// all other fields, which are copied.
///
/// ```
/// use candle_attention::candle_core::{DType, Device, Tensor};
/// use candle_attention::tensor::MapTensors;
/// use candle_attention::{MultiHeadAttention, map_fields};
///
/// struct Block {
///     attention: MultiHeadAttention,
///     scale: Tensor,
///     index: usize,
/// }
/// map_fields!(Block { attention, scale }..);
///
/// fn in_f16(block: &Block) -> candle_attention::Result<Block> {
///     block.map_tensors(&mut |tensor| Ok(tensor.to_dtype(DType::F16)?))
/// }
/// ```
#[macro_export]
macro_rules! map_fields {
    ($type:ident { $($field:ident),* } $($rest:tt)?) => {
        impl $crate::tensor::MapTensors for $type {
            fn map_tensors(
                &self,
                f: &mut dyn FnMut(&::candle_core::Tensor) -> $crate::Result<::candle_core::Tensor>,
            ) -> $crate::Result<Self> {
                Ok(Self { $($field: $crate::tensor::MapTensors::map_tensors(&self.$field, f)?,)* $($rest *self)? })
            }
        }
    };
}

/// Implements [`ShareWeights`](crate::tensor::ShareWeights) for a struct, field by field. Small tensors, such as those
/// of norms, are left out.
///
/// ```
/// use candle_attention::ops::Linear;
/// use candle_attention::{MultiHeadAttention, share_fields};
///
/// struct Block {
///     attention: MultiHeadAttention,
///     up: Linear,
/// }
/// share_fields!(Block { attention, up });
/// ```
#[macro_export]
macro_rules! share_fields {
    ($type:ident { $($field:ident),* }) => {
        impl $crate::tensor::ShareWeights for $type {
            fn share_weights(&mut self, other: &Self) -> $crate::Result<()> {
                $($crate::tensor::ShareWeights::share_weights(&mut self.$field, &other.$field)?;)*
                Ok(())
            }
        }
    };
}
