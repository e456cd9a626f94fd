//! The dtypes of callers, and the functions that are generic over them.
//!
//! A generic function is compiled in the crate that calls it, for each type that it is called with; a kernel even for
//! each instruction set. So a caller's dtype only selects among functions that this crate has compiled: those of
//! [`Compiled`].

use std::mem::MaybeUninit;
use std::ops::Range;

use half::{bf16, f16};

use super::activation::Activation;
use super::attention;
use super::convert::Convert;
use super::error::Result;
use super::isa::Isa;
use super::packing::{PackedWeights, Packer};
use super::problem::AttentionProblem;
use super::team::{Output, Team};

/// A dtype that kernels read and write: f32, f16 or bf16. They compute in f32.
pub trait Element: bytemuck::Pod + Send + Sync + Compiled {
    /// The values in f32, which is exact: `from` itself, or converted into `buffer`, which is at least as long.
    fn as_f32<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];

    /// Rounds to nearest, ties to even, into a slice of the same length.
    fn round(from: &[f32], to: &mut [MaybeUninit<Self>]);
}

/// The input of a product.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

/// The functions of one dtype. The trait is public for [`Element`] alone, which no other crate can implement.
pub trait Compiled: Sized {
    fn attend(isa: Isa, team: Team, problem: &AttentionProblem<Self>, to: Output<Self>) -> Result<()>;
    fn multiply(
        weights: &PackedWeights,
        team: Team,
        input: Input,
        rows: usize,
        activation: Activation,
        out: Output<Self>,
    ) -> Result<()>;
    fn input(values: &[Self]) -> Input<'_>;
    fn push(packer: &mut Packer, outputs: usize, weight: &[Self], bias: Option<&[f32]>) -> Result<()>;
    fn unpack(weights: &PackedWeights, outputs: Range<usize>) -> Result<Vec<Self>>;
}

macro_rules! elements {
    ($($element:ident: $input:ident,)+) => {$(
        impl Element for $element {
            fn as_f32<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32] {
                <Self as Convert>::as_f32(from, buffer)
            }
            fn round(from: &[f32], to: &mut [MaybeUninit<Self>]) {
                assert_eq!(from.len(), to.len());
                Self::downcast(from, to);
            }
        }

        impl Compiled for $element {
            fn attend(isa: Isa, team: Team, problem: &AttentionProblem<Self>, to: Output<Self>) -> Result<()> {
                attention::attend(isa, team, problem, to)
            }
            fn multiply(
                weights: &PackedWeights,
                team: Team,
                input: Input,
                rows: usize,
                activation: Activation,
                out: Output<Self>,
            ) -> Result<()> {
                match input {
                    Input::F32(input) => weights.multiply_elements(team, input, rows, activation, out),
                    Input::F16(input) => weights.multiply_elements(team, input, rows, activation, out),
                    Input::Bf16(input) => weights.multiply_elements(team, input, rows, activation, out),
                }
            }
            fn input(values: &[Self]) -> Input<'_> {
                Input::$input(values)
            }
            fn push(packer: &mut Packer, outputs: usize, weight: &[Self], bias: Option<&[f32]>) -> Result<()> {
                packer.push_elements(outputs, weight, bias)
            }
            fn unpack(weights: &PackedWeights, outputs: Range<usize>) -> Result<Vec<Self>> {
                weights.unpack_elements(outputs)
            }
        }
    )+};
}

elements! {
    f32: F32,
    f16: F16,
    bf16: Bf16,
}

/// Computes attention. `to` becomes `(queries, h, d_v)`, the queries of one sequence after those of the other.
///
/// # Errors
/// If the sizes, views and masks of the problem contradict each other, and if there is not enough memory.
pub fn attend<T: Element>(isa: Isa, team: Team, problem: &AttentionProblem<T>, to: &mut Vec<T>) -> Result<()> {
    to.clear();
    T::attend(isa, team, problem, Output::Vec(to))
}

/// [`attend`] into an existing slice, `to` `(queries, h, d_v)`.
///
/// # Errors
/// The errors of [`attend`], and if `to` has another size.
pub fn attend_into<T: Element>(isa: Isa, team: Team, problem: &AttentionProblem<T>, to: &mut [T]) -> Result<()> {
    T::attend(isa, team, problem, Output::Slice(to))
}

impl PackedWeights {
    /// Computes `a Wᵀ + b` and its activation for `a` `(rows, in_features)`. `out` becomes `(rows, out_features)`.
    ///
    /// # Errors
    /// If `a` has another size, and if there is not enough memory.
    pub fn multiply<A: Element, O: Element>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: &mut Vec<O>,
    ) -> Result<()> {
        out.clear();
        O::multiply(self, team, A::input(a), rows, activation, Output::Vec(out))
    }

    /// [`multiply`](Self::multiply) into an existing slice, `out` `(rows, out_features)`.
    ///
    /// # Errors
    /// If `a` or `out` has another size, and if there is not enough memory.
    pub fn multiply_into<A: Element, O: Element>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: &mut [O],
    ) -> Result<()> {
        O::multiply(self, team, A::input(a), rows, activation, Output::Slice(out))
    }

    /// The weights of a range of outputs, `(outputs, in_features)`, in the dtype that was packed, or a wider one.
    ///
    /// # Errors
    /// If there is not enough memory.
    ///
    /// # Panics
    /// If there are fewer outputs.
    pub fn unpack<T: Element>(&self, outputs: Range<usize>) -> Result<Vec<T>> {
        T::unpack(self, outputs)
    }
}

impl Packer {
    /// Packs the next `outputs` output features: `weight` `(outputs, in_features)` and `bias` `(outputs)`, zeros if
    /// there is none.
    ///
    /// # Errors
    /// If `weight` or `bias` has another size, or there are more outputs than there is room for.
    pub fn push<T: Element>(&mut self, outputs: usize, weight: &[T], bias: Option<&[f32]>) -> Result<()> {
        T::push(self, outputs, weight, bias)
    }
}
