//! Gates: rows of values, each value or group of values multiplied by a function of one of another row.

use super::activation::{sigmoid, softplus};
use super::error::{Error, Result};
use super::isa::kernel::Kernel;
use super::isa::simd::{MAX_LANES, Simd};
use super::registry::Isa;
use super::team::Team;

/// Rows that one thread takes at a time.
const ROWS_PER_TASK: usize = 16;

/// The function that makes a gate of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateFunction {
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `ln(1 + e^x)`.
    Softplus,
}

impl GateFunction {
    /// The gate of each lane.
    #[inline(always)]
    pub(crate) fn apply<S: Simd>(self, s: S, x: S::V) -> S::V {
        match self {
            Self::Sigmoid => sigmoid(s, x),
            Self::Softplus => softplus(s, x),
        }
    }
}

/// Gates in columns of a matrix, one row for each row that they are for.
#[derive(Debug, Clone, Copy)]
pub struct RowGate<'a> {
    /// Row-major, from the first gate of the first row on.
    pub gates: &'a [f32],
    /// From one row of `gates` to the next.
    pub stride: usize,
    /// Gates per row.
    pub count: usize,
    /// The function that makes a gate of a number.
    pub function: GateFunction,
}

impl RowGate<'_> {
    /// Multiplies rows of `width` values by their gates in place. Each gate is for `width / count` neighboring values.
    ///
    /// # Errors
    /// If the sizes do not fit.
    pub fn apply(self, isa: Isa, team: Team, xs: &mut [f32], width: usize) -> Result<()> {
        if self.count == 0 || !width.is_multiple_of(self.count) || self.stride < self.count {
            let expected = format!("a divisor of {width}, and at most the stride {}", self.stride);
            return Err(Error::shape("the gates of a row", &[self.count], expected));
        }
        if xs.is_empty() {
            return Ok(());
        }
        let rows = if xs.len().is_multiple_of(width) { xs.len() / width } else { 0 };
        // The last row may end with its last gate.
        if rows == 0 || (rows - 1).checked_mul(self.stride).is_none_or(|last| self.gates.len() < last + self.count) {
            let expected = format!("rows of {width} values, with as many rows of gates");
            return Err(Error::shape("gated rows, gates", &[xs.len(), self.gates.len()], expected));
        }
        team.try_for_chunks(xs, ROWS_PER_TASK * width, |task, xs| {
            let gates = &self.gates[task * ROWS_PER_TASK * self.stride..];
            isa.run(GateTask { gate: RowGate { gates, ..self }, xs, width });
            Ok(())
        })
    }
}

struct GateTask<'a> {
    gate: RowGate<'a>,
    xs: &'a mut [f32],
    width: usize,
}

impl Kernel for GateTask<'_> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { gate: RowGate { gates, stride, count, function }, xs, width } = self;
        let group = width / count;
        for (row, xs) in xs.chunks_exact_mut(width).enumerate() {
            let gates = &gates[row * stride..][..count];
            for (gates, xs) in gates.chunks(S::LANES).zip(xs.chunks_mut(S::LANES * group)) {
                // Any whole vector of numbers will do for lanes without a gate.
                let mut lanes = [0.0; MAX_LANES];
                lanes[..gates.len()].copy_from_slice(gates);
                let factors = function.apply(s, s.load_slice(&lanes));
                s.store_slice(&mut lanes, factors);
                if group == 1 {
                    xs.iter_mut().zip(lanes).for_each(|(x, factor)| *x *= factor);
                } else {
                    for (xs, factor) in xs.chunks_exact_mut(group).zip(lanes) {
                        xs.iter_mut().for_each(|x| *x *= factor);
                    }
                }
            }
        }
    }
}
