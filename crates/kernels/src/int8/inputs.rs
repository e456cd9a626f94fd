//! Inputs of a product, rounded to int8.

use super::dot::{InputInteger, Int8Dot};
use super::encode::{BLOCK, MAGIC, MAX_INT8, WeightFormat};
use super::kernel::{Int8Kernel, TILE_ROWS};
use super::panels::PanelLayout;
use crate::elements::Elements;
use crate::error::Result;
use crate::isa::simd::{MAX_LANES, Simd};
use crate::memory::{Scratch, ScratchPool, element_count};
use crate::registry::Isa;
use crate::team::{SharedOut, Team};

/// The inputs of a product, rounded once for all of its tasks.
pub(crate) struct RoundedInputs<'a> {
    /// Integers `(rows, inputs)`, in bytes; then scales and starts, `(rows, groups)`.
    memory: Scratch<'a>,
    layout: PanelLayout,
    /// Values that hold the integers.
    integers: usize,
    rows: usize,
}

impl<'a> RoundedInputs<'a> {
    /// Rounds `a` `(rows, in_features)`, of which each thread of the team takes some rows.
    pub fn new(
        isa: Isa,
        team: Team,
        pool: &'a ScratchPool,
        layout: PanelLayout,
        a: Elements,
        rows: usize,
    ) -> Result<Self> {
        let (PanelLayout { groups, .. }, row_bytes) = (layout, layout.input_row_bytes());
        let k = a.len() / rows.max(1);
        // A tile may read more rows than there are. Their contents do not matter: no row affects another.
        let rows_read = rows.next_multiple_of(TILE_ROWS);
        let integers =
            element_count("the scratch memory of a product", &[rows_read, row_bytes])?.div_ceil(size_of::<f32>());
        let mut memory = pool.take(integers + 2 * rows * groups)?;
        let (values, rest) = memory.split_at_mut(integers);
        let (scales, starts) = rest.split_at_mut(rows * groups);
        let values = SharedOut(bytemuck::cast_slice_mut::<_, i8>(values).as_mut_ptr());
        let (scales, starts) = (SharedOut(scales.as_mut_ptr()), SharedOut(starts.as_mut_ptr().cast::<i32>()));
        let share = rows.div_ceil(team.threads()).max(1);
        team.try_for_each(rows.div_ceil(share), |index| {
            let rows = index * share..rows.min((index + 1) * share);
            let mut upcast = pool.take(if a.is_f32() { 0 } else { k })?;
            // All rows at once if they are f32.
            let step = if a.is_f32() { rows.len() } else { 1 };
            for row in rows.step_by(step) {
                // SAFETY: these are rows of the memory above, which is borrowed here, and no other thread has them.
                let (values, scales, starts) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(values.start().add(row * row_bytes), step * row_bytes),
                        std::slice::from_raw_parts_mut(scales.start().add(row * groups), step * groups),
                        std::slice::from_raw_parts_mut(starts.start().add(row * groups), step * groups),
                    )
                };
                let from = a.part(row * k..(row + step) * k).as_f32(&mut upcast);
                isa.run_int8(RoundInputs { layout, from, rows: step, values, scales, starts });
            }
            Ok(())
        })?;
        Ok(Self { memory, layout, integers, rows })
    }

    /// The integers, scales and starts of the rows from `row` on.
    pub fn rows_from(&self, row: usize) -> (&[i8], &[f32], &[i32]) {
        let (PanelLayout { groups, .. }, row_bytes) = (self.layout, self.layout.input_row_bytes());
        let (integers, rest) = self.memory.split_at(self.integers);
        let (scales, starts) = rest.split_at(self.rows * groups);
        let (integers, starts) = (bytemuck::cast_slice(integers), bytemuck::cast_slice(starts));
        (&integers[row * row_bytes..], &scales[row * groups..], &starts[row * groups..])
    }
}

/// Rounds rows of inputs to integers.
struct RoundInputs<'a> {
    layout: PanelLayout,
    /// `(rows, in_features)`
    from: &'a [f32],
    rows: usize,
    /// `(rows, inputs)`, in bytes.
    values: &'a mut [i8],
    /// `(rows, groups)`
    scales: &'a mut [f32],
    /// Starts of sums, `(rows, groups)`: the sum of the inputs times what was added to each weight, negated.
    starts: &'a mut [i32],
}

impl Int8Kernel for RoundInputs<'_> {
    #[inline(always)]
    fn run<D: Int8Dot, const MR: usize, const NR: usize, const BLOCK_MR: usize>(self, dot: D) {
        let PanelLayout { format, inputs, groups, offset, .. } = self.layout;
        let k = self.from.len() / self.rows;
        for row in 0..self.rows {
            let values: &mut [D::Input] = bytemuck::cast_slice_mut(self.values);
            let (from, values) = (&self.from[row * k..][..k], &mut values[row * inputs..][..inputs]);
            let (scales, starts) = (&mut self.scales[row * groups..][..groups], &mut self.starts[row * groups..]);
            // Sums wrap around, so what they start with may, too.
            let start = |sum: i32| sum.wrapping_mul(-i32::from(offset));
            if format == WeightFormat::Int8 {
                let (scale, sum) = quantize(dot, from, values);
                (scales[0], starts[0]) = (scale, start(sum));
                continue;
            }
            let blocks = from.as_chunks::<BLOCK>().0.iter().zip(values.as_chunks_mut::<BLOCK>().0);
            for ((from, values), (to_scale, to_start)) in blocks.zip(scales.iter_mut().zip(starts)) {
                let (scale, sum) = quantize(dot, from, values);
                (*to_scale, *to_start) = (scale, start(sum));
            }
        }
    }
}

/// Rounds inputs that share a scale to integers from -127 to 127, and fills the rest of `to` with zeros. Returns the
/// scale and the sum of the integers.
///
/// The scale is NaN if an input is not finite, so that everything that depends on it becomes NaN. It is at least the
/// smallest normal number, so inputs far below that are 0; and 0 if all inputs are.
#[inline(always)]
pub(crate) fn quantize<D: Int8Dot>(dot: D, from: &[f32], to: &mut [D::Input]) -> (f32, i32) {
    let s = dot.simd();
    let (to, padding) = to.split_at_mut(from.len());
    padding.fill(D::Input::from_bits(0));
    let largest = largest_magnitude(s, from);
    if largest == 0.0 {
        to.fill(D::Input::from_bits(0));
        return (if from.iter().all(|x| *x == 0.0) { 0.0 } else { f32::NAN }, 0);
    }
    let scale = (largest / MAX_INT8).max(f32::MIN_POSITIVE);
    let (inverse, magic) = (s.splat(1.0 / scale), s.splat(MAGIC));
    // Not fused, so that all instruction sets give the same bits.
    let round = |x: &[f32]| s.add(s.mul(s.load_slice(x), inverse), magic);
    // A sum of integers below 2^24, which is exact in f32; NaN if an input is not finite: the inverse of infinity is 0.
    let mut sums = s.splat(0.0);
    let (vectors, rest) = from.split_at(from.len() / D::S::LANES * D::S::LANES);
    let (to, to_rest) = to.split_at_mut(vectors.len());
    for (x, to) in vectors.chunks_exact(D::S::LANES).zip(to.chunks_exact_mut(D::S::LANES)) {
        let rounded = round(x);
        sums = s.add(sums, s.sub(rounded, magic));
        // SAFETY: the chunk has `LANES` integers.
        unsafe { dot.store_integers(to.as_mut_ptr(), rounded) };
    }
    if !rest.is_empty() {
        let (mut x, mut integers) = ([0.0; MAX_LANES], [D::Input::from_bits(0); MAX_LANES]);
        x.iter_mut().zip(rest).for_each(|(x, rest)| *x = *rest);
        let rounded = round(&x);
        sums = s.add(sums, s.sub(rounded, magic));
        // SAFETY: there are `MAX_LANES` integers.
        unsafe { dot.store_integers(integers.as_mut_ptr(), rounded) };
        to_rest.iter_mut().zip(integers).for_each(|(to, integer)| *to = integer);
    }
    let sum = s.reduce_add(sums);
    (if sum.is_nan() { f32::NAN } else { scale }, sum as i32)
}

/// Vectors that are compared side by side: one alone would wait for each operation before the next.
const SUMS: usize = 4;

/// The largest magnitude of the values that are not NaN. (NEON: NaN if one is.)
#[inline(always)]
fn largest_magnitude<S: Simd>(s: S, values: &[f32]) -> f32 {
    let zero = s.splat(0.0);
    let (mut largest, mut least) = ([zero; SUMS], [zero; SUMS]);
    let (blocks, rest) = values.split_at(values.len() / (SUMS * S::LANES) * (SUMS * S::LANES));
    for block in blocks.chunks_exact(SUMS * S::LANES) {
        for (i, x) in block.chunks_exact(S::LANES).enumerate() {
            let x = s.load_slice(x);
            (largest[i], least[i]) = (s.max(x, largest[i]), s.min(x, least[i]));
        }
    }
    for rest in rest.chunks(S::LANES) {
        let mut x = [0.0; MAX_LANES];
        x.iter_mut().zip(rest).for_each(|(x, rest)| *x = *rest);
        let x = s.load_slice(&x);
        (largest[0], least[0]) = (s.max(x, largest[0]), s.min(x, least[0]));
    }
    for i in 1..SUMS {
        (largest[0], least[0]) = (s.max(largest[i], largest[0]), s.min(least[i], least[0]));
    }
    s.reduce_max(s.max(largest[0], s.sub(zero, least[0])))
}
