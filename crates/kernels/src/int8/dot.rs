//! Products of 8-bit integers: what an instruction set implements.

use bytemuck::Zeroable;

use crate::isa::microkernel::{Prefetch, hide_addresses};
use crate::isa::simd::{Simd, VectorKernel};
use crate::unroll::unroll;

/// An integer that holds a rounded input.
pub(crate) trait InputInteger: bytemuck::Pod + Into<f32> {
    /// From the lowest bits.
    fn from_bits(bits: u32) -> Self;
}

impl InputInteger for i8 {
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        bits as i8
    }
}

impl InputInteger for i16 {
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        bits as i16
    }
}

/// Rows of inputs that were rounded to int8.
#[derive(Clone, Copy)]
pub(crate) struct InputRows {
    /// Row `r` starts at `values + r · stride`, in bytes.
    pub values: *const i8,
    pub stride: usize,
    /// The start of the sum of row `r` is at `starts + r · starts_stride`.
    pub starts: *const i32,
    pub starts_stride: usize,
}

/// Instructions that multiply 8-bit integers and add the products in 32 bits. A value is a capability token: see
/// [`InstructionSet`](crate::isa::kernel::InstructionSet).
pub(crate) trait Int8Instructions: Copy + Send + Sync {
    /// The vectors of f32 that go with them.
    type S: Simd;
    /// The integer that holds an input.
    type Input: InputInteger;
    /// Added to weights of 8 bits in memory: 0, or 128 for instructions that take unsigned weights. Sums then
    /// start with as much less.
    const OFFSET: u8 = 0;
    /// Added to weights of 4 bits in memory: 0 or 8.
    const NIBBLE_OFFSET: u8 = 0;

    fn simd(self) -> Self::S;

    /// [`Simd::call`] with these instructions.
    #[inline(always)]
    fn call<K: VectorKernel>(self, kernel: K) {
        self.simd().call(kernel);
    }

    /// Stores the lowest bits of each lane.
    ///
    /// # Safety
    /// `S::LANES` integers can be written.
    #[inline(always)]
    unsafe fn store_integers(self, to: *mut Self::Input, lanes: <Self::S as Simd>::V) {
        for (i, value) in self.simd().lanes(lanes).into_iter().take(Self::S::LANES).enumerate() {
            // SAFETY: `i < S::LANES`.
            unsafe { *to.add(i) = Self::Input::from_bits(value.to_bits()) };
        }
    }
}

/// Sums of products by such instructions. Most implement [`Int8Vectors`] instead.
///
/// # Safety
/// `sums` reads the memory that its own safety section names, and nothing else.
pub(crate) unsafe trait Int8Dot: Int8Instructions {
    /// Inputs per step of a panel. A product has whole steps.
    const STEP: usize;

    /// The sums of `ROWS` rows by `VECTORS` vectors of outputs over `steps` steps, an even number if the weights are
    /// `NIBBLES`, as f32: rounded to nearest if they have more than 24 bits. Meanwhile memory is fetched: a step
    /// of that is a load of `VECTORS` vectors.
    ///
    /// # Safety
    /// - `a` can be read for `ROWS` rows of `steps` steps, and as many starts.
    /// - `panel` can be read for `steps` steps of `VECTORS` vectors of outputs; half as many bytes if `NIBBLES`.
    /// - The caller is a kernel under [`Int8InstructionSet::run_int8`](super::kernel::Int8InstructionSet::run_int8).
    unsafe fn sums<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        self,
        steps: usize,
        a: InputRows,
        panel: *const u8,
        prefetch: &mut Prefetch,
    ) -> [[<Self::S as Simd>::V; VECTORS]; ROWS];
}

/// A vector of sums of 32 bits.
pub(crate) trait IntegerSums: Copy + Zeroable {
    /// The vectors of f32 that go with them.
    type S: Simd;
    /// Sums that start with a number.
    fn splat(s: Self::S, start: i32) -> Self;
    fn to_f32(self, s: Self::S) -> <Self::S as Simd>::V;
}

/// The starts of `ROWS` rows by `VECTORS` vectors of sums.
///
/// # Safety
/// There are as many starts.
#[inline(always)]
pub(super) unsafe fn start_sums<I: IntegerSums, const ROWS: usize, const VECTORS: usize>(
    s: I::S,
    a: InputRows,
) -> [[I; VECTORS]; ROWS] {
    let mut sums: [[I; VECTORS]; ROWS] = Zeroable::zeroed();
    unroll!(r in 0..ROWS => {
        // SAFETY: the caller promises it.
        let start = I::splat(s, unsafe { *a.starts.add(r * a.starts_stride) });
        unroll!(v in 0..VECTORS => sums[r][v] = start);
    });
    sums
}

/// Sums as f32.
#[inline(always)]
pub(super) fn sums_to_f32<I: IntegerSums, const ROWS: usize, const VECTORS: usize>(
    s: I::S,
    sums: &[[I; VECTORS]; ROWS],
) -> [[<I::S as Simd>::V; VECTORS]; ROWS] {
    let mut results: [[<I::S as Simd>::V; VECTORS]; ROWS] = Zeroable::zeroed();
    unroll!(r in 0..ROWS => unroll!(v in 0..VECTORS => results[r][v] = sums[r][v].to_f32(s)));
    results
}

/// Instructions that multiply neighboring inputs, 32 bits of them, with as many weights of each output of a vector.
///
/// # Safety
/// `load` and `load_nibbles` read as many bytes as they document, and nothing else.
pub(crate) unsafe trait Int8Vectors: Int8Instructions {
    /// `S::LANES` sums of 32 bits.
    type Sums: IntegerSums<S = Self::S>;
    /// The weights of a step for each of `S::LANES` outputs.
    type Weights: Copy + Zeroable;

    /// Adds the products of the inputs in `x`, four of i8 or two of i16, with the weights. Sums wrap around.
    fn dot(self, sums: Self::Sums, weights: Self::Weights, x: i32) -> Self::Sums;
    /// # Safety
    /// As many bytes can be read as there are weights.
    unsafe fn load(self, from: *const u8) -> Self::Weights;
    /// The low nibbles and the high nibbles.
    ///
    /// # Safety
    /// As many bytes can be read as there are weights of a step.
    unsafe fn load_nibbles(self, from: *const u8) -> [Self::Weights; 2];
}

// SAFETY: `sums` loads `VECTORS` vectors of weights for each step, or for each two steps of nibbles, and 32 bits of
// inputs of each row and step.
unsafe impl<D: Int8Vectors> Int8Dot for D {
    const STEP: usize = 4 / size_of::<D::Input>();

    #[inline(always)]
    unsafe fn sums<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        self,
        steps: usize,
        a: InputRows,
        panel: *const u8,
        prefetch: &mut Prefetch,
    ) -> [[<D::S as Simd>::V; VECTORS]; ROWS] {
        // SAFETY: the caller promises the memory of `ROWS` rows and `steps` steps.
        unsafe {
            let s = self.simd();
            let mut sums: [[D::Sums; VECTORS]; ROWS] = start_sums(s, a);
            let (mut values, mut panel) = (a.values, panel);
            // Steps of inputs whose weights are in the same bytes.
            let loads = if NIBBLES { steps / 2 } else { steps };
            let blocks = if D::S::PREFETCHES { loads / Prefetch::BLOCK } else { 0 };
            for block in 0..blocks {
                prefetch.fetch(s, block);
                unroll!(_step in 0..Prefetch::BLOCK => {
                    add_step::<D, ROWS, VECTORS, NIBBLES>(self, &mut values, a.stride, &mut panel, &mut sums);
                });
            }
            for _ in blocks * Prefetch::BLOCK..loads {
                add_step::<D, ROWS, VECTORS, NIBBLES>(self, &mut values, a.stride, &mut panel, &mut sums);
            }
            sums_to_f32(s, &sums)
        }
    }
}

/// Adds the products of the first step of inputs and weights, of the first two if weights are `NIBBLES`, and moves both
/// to the next one.
///
/// # Safety
/// 32 bits of each step of inputs can be read for `ROWS` rows, `stride` bytes apart, and `VECTORS` vectors of weights.
#[inline(always)]
unsafe fn add_step<D: Int8Vectors, const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
    dot: D,
    values: &mut *const i8,
    stride: usize,
    panel: &mut *const u8,
    sums: &mut [[D::Sums; VECTORS]; ROWS],
) {
    let bytes = const { <D as Int8Dot>::STEP * D::S::LANES };
    // SAFETY: the caller promises the memory.
    unsafe {
        let x = *values;
        if NIBBLES {
            let mut weights: [[D::Weights; VECTORS]; 2] = Zeroable::zeroed();
            unroll!(v in 0..VECTORS => [weights[0][v], weights[1][v]] = dot.load_nibbles(panel.add(v * bytes)));
            unroll!(half in 0..2 => {
                let (x, weights) = (x.add(4 * half), &weights[half]);
                unroll!(r in 0..ROWS => add_row::<D, VECTORS>(dot, x.add(r * stride), weights, &mut sums[r]));
            });
        } else {
            let mut weights: [D::Weights; VECTORS] = Zeroable::zeroed();
            unroll!(v in 0..VECTORS => weights[v] = dot.load(panel.add(v * bytes)));
            unroll!(r in 0..ROWS => add_row::<D, VECTORS>(dot, x.add(r * stride), &weights, &mut sums[r]));
        }
    }
    *values = values.wrapping_add(if NIBBLES { 8 } else { 4 });
    *panel = panel.wrapping_add(VECTORS * bytes);
    hide_addresses(values, panel);
}

/// Adds the products of the inputs of one row.
///
/// # Safety
/// 32 bits can be read at `x`.
#[inline(always)]
unsafe fn add_row<D: Int8Vectors, const VECTORS: usize>(
    dot: D,
    x: *const i8,
    weights: &[D::Weights; VECTORS],
    sums: &mut [D::Sums; VECTORS],
) {
    // SAFETY: the caller promises it.
    let x = unsafe { x.cast::<i32>().read_unaligned() };
    unroll!(v in 0..VECTORS => sums[v] = dot.dot(sums[v], weights[v], x));
}
