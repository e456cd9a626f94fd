//! The SIMD operations that each instruction set implements: vectors of f32 and what the kernels do with them.

use bytemuck::Zeroable;
use half::{bf16, f16};

use crate::convert::{Convert, Pair, PairFormat, f32_to_bf16};

/// The most lanes that vectors have.
pub(crate) const MAX_LANES: usize = 16;

/// Work on vectors that is compiled as a function of its own: see [`Simd::call`]. `run` must be `#[inline(always)]`,
/// for the reason given at [`Kernel`](super::kernel::Kernel).
pub(crate) trait VectorKernel {
    fn run<S: Simd>(self, s: S);
}

/// Vectors of f32. A value is a capability token: see [`InstructionSet`](super::kernel::InstructionSet).
///
/// The trait has only what the kernels need, so that a new instruction set is quickly written. All operations act on
/// each lane by itself, except the two reductions.
///
/// # Safety
/// `load` and the stores access `LANES` values at the pointer and nothing else, and `gather` those that it describes.
pub(crate) unsafe trait Simd: Copy + Send + Sync {
    /// A vector of `LANES` values.
    type V: Copy + Zeroable;
    const LANES: usize;
    /// Vectors of sums that kernels keep in registers beside what they multiply.
    const SUMS: usize;

    /// Runs a kernel as a function of its own, which is compiled once for each instruction set. Work that is called
    /// from many places, and is long beside the call, is not compiled again for each of them.
    #[inline(never)]
    fn call<K: VectorKernel>(self, kernel: K) {
        kernel.run(self);
    }

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::V;
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once where the processor can.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// The larger value. If one is NaN: `b` (NEON: NaN).
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The smaller value. If one is NaN: `b` (NEON: NaN).
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The nearest integer.
    fn round(self, a: Self::V) -> Self::V;
    /// `a · 2^n` for an integral `n` from -126 to 127 and a normal result.
    fn ldexp(self, a: Self::V, n: Self::V) -> Self::V;
    /// Whether [`fraction`](Self::fraction) is one instruction, and [`ldexp`](Self::ldexp) takes the integer below any
    /// `n`, also -inf.
    const HAS_FRACTION: bool = false;
    /// The fraction of a value above the integer below it; 0 of -inf. Only with [`HAS_FRACTION`](Self::HAS_FRACTION).
    #[inline(always)]
    fn fraction(self, _x: Self::V) -> Self::V {
        unreachable!("has no such instruction")
    }
    /// 0 where `x < limit`; `y` elsewhere, also where `x` is NaN.
    fn zero_below(self, x: Self::V, limit: Self::V, y: Self::V) -> Self::V;
    /// The sum of all lanes, always added in the same order.
    #[inline(always)]
    fn reduce_add(self, a: Self::V) -> f32 {
        let mut lanes = self.lanes(a);
        let mut half = Self::LANES / 2;
        while half > 0 {
            let (sums, others) = lanes.split_at_mut(half);
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += *other);
            half /= 2;
        }
        lanes[0]
    }
    /// The largest lane.
    #[inline(always)]
    fn reduce_max(self, a: Self::V) -> f32 {
        let lanes = self.lanes(a);
        lanes[..Self::LANES].iter().fold(f32::NEG_INFINITY, |m, x| if *x > m { *x } else { m })
    }

    /// # Safety
    /// `LANES` values can be read at `from`.
    unsafe fn load(self, from: *const f32) -> Self::V;
    /// # Safety
    /// `LANES` values can be written at `to`.
    unsafe fn store(self, to: *mut f32, a: Self::V);
    /// Whether values of 16 bits are converted by so few instructions that products can read them. Otherwise panels of
    /// them are converted first.
    const MULTIPLIES_HALVES: bool = true;
    /// Values of f16, which is exact.
    ///
    /// # Safety
    /// `LANES` values can be read at `from`.
    unsafe fn load_f16(self, from: *const f16) -> Self::V;
    /// Values of bf16, which is exact.
    ///
    /// # Safety
    /// `LANES` values can be read at `from`.
    unsafe fn load_bf16(self, from: *const bf16) -> Self::V;
    /// Integers, as values.
    ///
    /// # Safety
    /// `LANES` integers can be read at `from`.
    #[inline(always)]
    unsafe fn load_i8(self, from: *const i8) -> Self::V {
        let mut lanes = [0.0; MAX_LANES];
        for (i, lane) in lanes.iter_mut().take(Self::LANES).enumerate() {
            // SAFETY: the caller promises it.
            *lane = f32::from(unsafe { *from.add(i) });
        }
        self.load_slice(&lanes)
    }
    /// Values of any dtype, in f32.
    ///
    /// # Safety
    /// `LANES` values can be read at `from`.
    #[inline(always)]
    unsafe fn load_as<T: Convert>(self, from: *const T) -> Self::V {
        // SAFETY: the caller promises it; the constants of a dtype say which one it is.
        unsafe {
            match T::HALVES {
                Some(PairFormat::F16) => self.load_f16(from.cast()),
                Some(PairFormat::Bf16) => self.load_bf16(from.cast()),
                None if T::IS_F32 => self.load(from.cast()),
                None => self.load_i8(from.cast()),
            }
        }
    }
    /// Rounds to a dtype that [stores vectors](Convert::STORES_VECTORS).
    ///
    /// # Safety
    /// `LANES` values can be written at `to`.
    #[inline(always)]
    unsafe fn store_as<T: Convert>(self, to: *mut T, a: Self::V) {
        // SAFETY: as above.
        unsafe {
            match T::HALVES {
                Some(PairFormat::Bf16) => self.store_bf16(to.cast(), a),
                _ if T::IS_F32 => self.store(to.cast(), a),
                _ => unreachable!("is rounded in slices"),
            }
        }
    }
    /// Rounds to bf16, to nearest, ties to even.
    ///
    /// # Safety
    /// `LANES` values can be written at `to`.
    #[inline(always)]
    unsafe fn store_bf16(self, to: *mut bf16, a: Self::V) {
        for (i, lane) in self.lanes(a).into_iter().take(Self::LANES).enumerate() {
            // SAFETY: `i < LANES`.
            unsafe { to.add(i).write(f32_to_bf16(lane)) };
        }
    }
    /// In lane `i` the value at `from + i · step + indices[i]`.
    ///
    /// # Safety
    /// `LANES` indices can be read, the values at these places too, and each place is less than 2^31 after `from`.
    unsafe fn gather(self, from: *const f32, step: usize, indices: *const u32) -> Self::V;

    /// Whether [`lookup`](Self::lookup) is one instruction.
    const HAS_LOOKUP: bool = false;
    /// In each lane the value of a table at the low five bits of `index`. Only with [`HAS_LOOKUP`](Self::HAS_LOOKUP).
    #[inline(always)]
    fn lookup(self, _table: &[f32; 32], _index: Self::V) -> Self::V {
        unreachable!("has no such instruction")
    }

    /// Adds the products of one pair with those of `b` to `c`. Only for vectors beside a
    /// [`PairDot`](super::pair_dot::PairDot) that multiplies [by vectors](super::pair_dot::PairDot::BY_VECTORS).
    #[inline(always)]
    fn dot_pairs(self, _a: Pair, _b: Self::V, _c: Self::V) -> Self::V {
        unreachable!("has no such instruction")
    }
    /// The pairs of two rows of `2 · LANES` values of 16 bits, each with the value of `first` in the low half. Only
    /// where [`dot_pairs`](Self::dot_pairs) is.
    #[inline(always)]
    fn pair_up(self, _first: Self::V, _second: Self::V) -> [Self::V; 2] {
        unreachable!("has no such instruction")
    }

    /// Whether [`transposed`](Self::transposed) stays in registers.
    const TRANSPOSES: bool = true;
    /// Columns that are transposed together: a divisor of `LANES`.
    const COLUMNS: usize = Self::LANES;
    /// Transposes the first `COLUMNS` values of `LANES` rows, in f32: value `c` of row `r` is lane `r` of vector `c`.
    ///
    /// # Safety
    /// `COLUMNS` values can be read at each of the first `LANES` pointers.
    #[inline(always)]
    unsafe fn transposed<T: Convert>(self, rows: &[*const T; MAX_LANES]) -> [Self::V; MAX_LANES] {
        let mut columns = [[0.0; MAX_LANES]; MAX_LANES];
        for (r, row) in rows.iter().take(Self::LANES).enumerate() {
            for (c, column) in columns.iter_mut().take(Self::COLUMNS).enumerate() {
                // SAFETY: the caller promises it.
                T::upcast(&[unsafe { row.add(c).read() }], std::slice::from_mut(&mut column[r]));
            }
        }
        let mut vectors = [self.splat(0.0); MAX_LANES];
        for (vector, column) in vectors.iter_mut().zip(&columns).take(Self::COLUMNS) {
            *vector = self.load_slice(column);
        }
        vectors
    }

    /// Whether [`prefetch`](Self::prefetch) does something.
    const PREFETCHES: bool = false;
    /// Asks for the cache line at `at`, which need not be memory of the process. Does nothing where there is no such
    /// instruction.
    #[inline(always)]
    fn prefetch(self, _at: *const f32) {}
    /// [`prefetch`](Self::prefetch) to the L2 cache alone.
    #[inline(always)]
    fn prefetch_l2(self, at: *const f32) {
        self.prefetch(at);
    }

    /// The first `LANES` values of a slice. The length check costs nothing where the compiler knows the length, as in
    /// `chunks_exact(LANES)`.
    #[inline(always)]
    fn load_slice(self, from: &[f32]) -> Self::V {
        assert!(from.len() >= Self::LANES);
        // SAFETY: the length was checked.
        unsafe { self.load(from.as_ptr()) }
    }

    /// Writes the first `LANES` values of a slice.
    #[inline(always)]
    fn store_slice(self, to: &mut [f32], a: Self::V) {
        assert!(to.len() >= Self::LANES);
        // SAFETY: the length was checked.
        unsafe { self.store(to.as_mut_ptr(), a) }
    }

    /// Multiplies all values of a slice with `factor`.
    #[inline(always)]
    fn scale(self, xs: &mut [f32], factor: f32) {
        let (vectors, rest) = xs.split_at_mut(xs.len() / Self::LANES * Self::LANES);
        for vector in vectors.chunks_exact_mut(Self::LANES) {
            self.store_slice(vector, self.mul(self.load_slice(vector), self.splat(factor)));
        }
        rest.iter_mut().for_each(|x| *x *= factor);
    }

    /// All lanes, and zeros.
    #[inline(always)]
    fn lanes(self, a: Self::V) -> [f32; MAX_LANES] {
        const { assert!(Self::LANES <= MAX_LANES) };
        let mut lanes = [0.0; MAX_LANES];
        self.store_slice(&mut lanes, a);
        lanes
    }
}

/// Writes methods that are one expression over registers:
/// `(type of the arguments) -> type of the result: name(arguments) = expression;`
macro_rules! register_ops {
    ($(($argument:ty) -> $result:ty: $($name:ident($($x:ident),+) = $body:expr;)+)+) => {$($(
        #[inline(always)]
        fn $name(self, $($x: $argument),+) -> $result {
            // SAFETY: the intrinsics access no memory, and `self` proves that the processor has them.
            unsafe { $body }
        }
    )+)+};
}
pub(crate) use register_ops;

/// Writes methods that are one expression, and read or write memory.
macro_rules! memory_ops {
    ($($name:ident($($x:ident: $argument:ty),+) $(-> $result:ty)? = $body:expr;)+) => {$(
        #[inline(always)]
        unsafe fn $name(self, $($x: $argument),+) $(-> $result)? {
            // SAFETY: the caller promises the memory, and `self` proves that the processor has the intrinsics.
            unsafe { $body }
        }
    )+};
}
pub(crate) use memory_ops;
