//! The dtypes of callers, and the functions that are generic over them.
//!
//! A generic function is compiled in the crate that calls it, for each type that it is called with; a kernel even for
//! each instruction set. So a caller's dtype ends here: kernels take [`Elements`].

use std::mem::MaybeUninit;
use std::ops::Range;

use half::{bf16, f16};

use super::activation::Activation;
use super::attention;
use super::convert::Convert;
use super::elements::{Elements, ElementsOut};
use super::error::Result;
use super::isa::Isa;
use super::packing::{PackedWeights, Packer};
use super::problem::{AttentionProblem, KeyValueView, Problem};
use super::team::{Output, SharedOut, Team};

/// A dtype that kernels read and write: f32, f16 or bf16. They compute in f32.
pub trait Element: bytemuck::Pod + Send + Sync + Compiled {
    /// The values in f32, which is exact: `from` itself, or converted into `buffer`, which is at least as long.
    fn as_f32<'a>(from: &'a [Self], buffer: &'a mut [f32]) -> &'a [f32];

    /// Rounds to nearest, ties to even, into a slice of the same length.
    fn round(from: &[f32], to: &mut [MaybeUninit<Self>]);
}

/// The functions of one dtype. The trait is public for [`Element`] alone, which no other crate can implement.
pub trait Compiled: Sized {
    fn elements(values: &[Self]) -> Elements<'_>;
    fn output(to: SharedOut<Self>) -> ElementsOut;
    fn push(packer: &mut Packer, outputs: usize, weight: &[Self], bias: Option<&[f32]>) -> Result<()>;
    fn unpack(weights: &PackedWeights, outputs: Range<usize>) -> Result<Vec<Self>>;
}

macro_rules! elements {
    ($($element:ident: $elements:ident,)+) => {$(
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
            fn elements(values: &[Self]) -> Elements<'_> {
                Elements::$elements(values)
            }
            fn output(to: SharedOut<Self>) -> ElementsOut {
                ElementsOut::$elements(to)
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
pub fn attend<T: Element, K: KeyValueView>(
    isa: Isa,
    team: Team,
    problem: &AttentionProblem<T, K>,
    to: &mut Vec<T>,
) -> Result<()> {
    to.clear();
    attend_to(isa, team, problem.erase(), Output::Vec(to))
}

/// [`attend`] into an existing slice, `to` `(queries, h, d_v)`.
///
/// # Errors
/// The errors of [`attend`], and if `to` has another size.
pub fn attend_into<T: Element>(isa: Isa, team: Team, problem: &AttentionProblem<T>, to: &mut [T]) -> Result<()> {
    attend_to(isa, team, problem.erase(), Output::Slice(to))
}

fn attend_to<T: Element>(isa: Isa, team: Team, problem: Problem, to: Output<T>) -> Result<()> {
    let size = problem.checked_output_size()?;
    let run = |out| if size == 0 { Ok(()) } else { attention::attend(isa, team, &problem, T::output(out)) };
    // SAFETY: `attend` writes all of the output.
    unsafe { to.write("the output of attention", size, run) }
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
        self.multiply_to(team, A::elements(a), rows, activation, Output::Vec(out))
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
        self.multiply_to(team, A::elements(a), rows, activation, Output::Slice(out))
    }

    fn multiply_to<O: Element>(
        &self,
        team: Team,
        a: Elements,
        rows: usize,
        activation: Activation,
        out: Output<O>,
    ) -> Result<()> {
        let size = self.output_size(a, rows)?;
        let run = |out| self.run_tasks(team, a, rows, activation, O::output(out));
        // SAFETY: `run_tasks` writes all of the output.
        unsafe { out.write("the output of a product", size, run) }
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
