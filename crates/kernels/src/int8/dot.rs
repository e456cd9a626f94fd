//! Products of 8-bit integers: what an instruction set implements.

use crate::isa::simd::{MAX_LANES, Simd};
use crate::microkernel::Prefetch;

/// Rows of inputs that were rounded to int8.
#[derive(Clone, Copy)]
pub(crate) struct InputRows {
    /// Row `r` starts at `values + r · stride`.
    pub values: *const i8,
    pub stride: usize,
    /// What the sum of row `r` starts with is at `starts + r · starts_stride`.
    pub starts: *const i32,
    pub starts_stride: usize,
}

/// Instructions that multiply 8-bit integers and add the products in 32 bits. A value is a capability token: see
/// [`InstructionSet`](crate::isa::kernel::InstructionSet).
///
/// Most implement [`Int8Vectors`] instead.
///
/// # Safety
/// `sums` reads the memory that its own safety section names, and nothing else.
pub(crate) unsafe trait Int8Dot: Copy + Send + Sync {
    /// The vectors of f32 that go with them.
    type S: Simd;
    /// Inputs per step of a panel. A product has whole steps.
    const STEP: usize;
    /// What is added to weights of 8 bits in memory: 0, or 128 for instructions that take unsigned weights. Sums then
    /// start with as much less.
    const OFFSET: u8;
    /// What is added to weights of 4 bits in memory: 0 or 8.
    const NIBBLE_OFFSET: u8;

    fn simd(self) -> Self::S;

    /// The sums of `ROWS` rows by `VECTORS` vectors of outputs over `steps` steps, an even number if the weights are
    /// `NIBBLES`, as f32: rounded to nearest if they have more than 24 bits. Meanwhile memory is fetched: a step
    /// of that is a load of `VECTORS` vectors.
    ///
    /// # Safety
    /// - `a` can be read for `ROWS` rows of `steps` steps, and as many starts.
    /// - `panel` can be read for `steps` steps of `VECTORS` vectors of outputs; half as many bytes if `NIBBLES`.
    /// - The caller is a kernel under [`InstructionSet::run_int8`](crate::isa::kernel::InstructionSet::run_int8).
    unsafe fn sums<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        self,
        steps: usize,
        a: InputRows,
        panel: *const u8,
        prefetch: &mut Prefetch,
    ) -> [[<Self::S as Simd>::V; VECTORS]; ROWS];

    /// Stores the lowest byte of the bits of each lane.
    ///
    /// # Safety
    /// `S::LANES` bytes can be written.
    #[inline(always)]
    unsafe fn store_low_bytes(self, to: *mut i8, lanes: <Self::S as Simd>::V) {
        // SAFETY: the caller's promise.
        unsafe { store_low_bytes(self.simd(), to, lanes) }
    }
}

/// [`Int8Dot::store_low_bytes`] one by one.
///
/// # Safety
/// `S::LANES` bytes can be written.
#[inline(always)]
unsafe fn store_low_bytes<S: Simd>(s: S, to: *mut i8, lanes: S::V) {
    let mut values = [0.0; MAX_LANES];
    s.store_slice(&mut values, lanes);
    for (i, value) in values.into_iter().take(S::LANES).enumerate() {
        // SAFETY: `i < S::LANES`.
        unsafe { *to.add(i) = value.to_bits() as i8 };
    }
}

/// Instructions that multiply four neighboring inputs with as many weights of each output of a vector.
///
/// # Safety
/// `load` and `load_nibbles` read as many bytes as they document, and nothing else.
pub(crate) unsafe trait Int8Vectors: Copy + Send + Sync {
    type S: Simd;
    const OFFSET: u8;
    const NIBBLE_OFFSET: u8;
    /// `S::LANES` sums of 32 bits.
    type Sums: Copy;
    /// Four weights for each of `S::LANES` outputs.
    type Weights: Copy;

    fn simd(self) -> Self::S;
    fn splat(self, start: i32) -> Self::Sums;
    fn to_f32(self, sums: Self::Sums) -> <Self::S as Simd>::V;
    /// Adds the products of four inputs, which are the bytes of `x`, with the weights. Sums wrap around.
    fn dot(self, sums: Self::Sums, weights: Self::Weights, x: i32) -> Self::Sums;
    /// [`dot`](Self::dot) for weights of [`load_nibbles`](Self::load_nibbles).
    #[inline(always)]
    fn dot_nibbles(self, sums: Self::Sums, weights: Self::Weights, x: i32) -> Self::Sums {
        self.dot(sums, weights, x)
    }
    /// # Safety
    /// `4 · S::LANES` bytes can be read.
    unsafe fn load(self, from: *const u8) -> Self::Weights;
    /// The low nibbles and the high nibbles.
    ///
    /// # Safety
    /// `4 · S::LANES` bytes can be read.
    unsafe fn load_nibbles(self, from: *const u8) -> [Self::Weights; 2];
    /// [`Int8Dot::store_low_bytes`].
    ///
    /// # Safety
    /// `S::LANES` bytes can be written.
    #[inline(always)]
    unsafe fn store_low_bytes(self, to: *mut i8, lanes: <Self::S as Simd>::V) {
        // SAFETY: the caller's promise.
        unsafe { store_low_bytes(self.simd(), to, lanes) }
    }
}

// SAFETY: `sums` loads `VECTORS` vectors of weights for each step, or for each two steps of nibbles, and four inputs of
// each row and step.
unsafe impl<D: Int8Vectors> Int8Dot for D {
    type S = D::S;
    const STEP: usize = 4;
    const OFFSET: u8 = D::OFFSET;
    const NIBBLE_OFFSET: u8 = D::NIBBLE_OFFSET;

    #[inline(always)]
    fn simd(self) -> D::S {
        Int8Vectors::simd(self)
    }

    #[inline(always)]
    unsafe fn store_low_bytes(self, to: *mut i8, lanes: <D::S as Simd>::V) {
        // SAFETY: the caller's promise.
        unsafe { Int8Vectors::store_low_bytes(self, to, lanes) }
    }

    #[inline(always)]
    unsafe fn sums<const ROWS: usize, const VECTORS: usize, const NIBBLES: bool>(
        self,
        steps: usize,
        a: InputRows,
        panel: *const u8,
        prefetch: &mut Prefetch,
    ) -> [[<D::S as Simd>::V; VECTORS]; ROWS] {
        let bytes = 4 * D::S::LANES;
        // SAFETY: the caller promises the memory of `ROWS` rows and `steps` steps.
        unsafe {
            let mut sums = [[self.splat(0); VECTORS]; ROWS];
            for (r, sums) in sums.iter_mut().enumerate() {
                *sums = [self.splat(*a.starts.add(r * a.starts_stride)); VECTORS];
            }
            let x = |r: usize, step: usize| a.values.add(r * a.stride + 4 * step).cast::<i32>().read_unaligned();
            let from = |row: usize, v: usize| panel.add((row * VECTORS + v) * bytes);
            let rows = if NIBBLES { steps / 2 } else { steps };
            for block in (0..rows).step_by(Prefetch::BLOCK) {
                prefetch.fetch(Int8Vectors::simd(self));
                for row in block..rows.min(block + Prefetch::BLOCK) {
                    if NIBBLES {
                        let weights: [_; VECTORS] = std::array::from_fn(|v| self.load_nibbles(from(row, v)));
                        for half in 0..2 {
                            for (r, sums) in sums.iter_mut().enumerate() {
                                let x = x(r, 2 * row + half);
                                for (sum, weights) in sums.iter_mut().zip(weights) {
                                    *sum = self.dot_nibbles(*sum, weights[half], x);
                                }
                            }
                        }
                    } else {
                        let weights: [_; VECTORS] = std::array::from_fn(|v| self.load(from(row, v)));
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let x = x(r, row);
                            for (sum, weights) in sums.iter_mut().zip(weights) {
                                *sum = self.dot(*sum, weights, x);
                            }
                        }
                    }
                }
            }
            // Loops, because `array::map` is not always inlined.
            let mut results = [[Int8Vectors::simd(self).splat(0.0); VECTORS]; ROWS];
            for (results, sums) in results.iter_mut().zip(sums) {
                results.iter_mut().zip(sums).for_each(|(result, sum)| *result = self.to_f32(sum));
            }
            results
        }
    }
}
