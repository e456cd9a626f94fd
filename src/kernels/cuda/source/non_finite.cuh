// Values that are not finite, in key tiles that some rows see only in part.
//
// What a hidden key holds has no influence on a query, NaN and infinities included. Scores of hidden keys are replaced,
// whatever they are. But values are multiplied by probabilities of 0, and 0 * NaN is NaN. So such values become zeros
// in shared memory, and what they are is added to the outputs of the rows that see them. A branch per key in the product
// would cost more than this pass over the tile, and tensor cores cannot branch.

// Exponent bits of a half type: all of them are set in NaN and infinities.
#define HALF_EXPONENT (ELEMENT == 1 ? 0x7c00u : 0x7f80u)

// T is float, or u16 for the half type of ELEMENT.
template <typename T>
static __device__ __forceinline__ bool not_finite(T x) {
    if constexpr (sizeof(T) == 4) return (float_to_bits(x) & 0x7f800000u) == 0x7f800000u;
    else return (x & HALF_EXPONENT) == HALF_EXPONENT;
}

template <typename T>
static __device__ __forceinline__ bool any_not_finite(const uint4& vector) {
    const u32 words[4] = {vector.x, vector.y, vector.z, vector.w};
    bool any = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (sizeof(T) == 4) any |= not_finite(bits_to_float(words[i]));
        else any |= not_finite(static_cast<u16>(words[i])) || not_finite(static_cast<u16>(words[i] >> 16));
    }
    return any;
}

// Whether an element of a ROWS x COLUMNS tile in shared memory is not finite. A barrier of the block, with one answer
// for all threads. COLUMNS is a multiple of 16 bytes.
template <int ROWS, int COLUMNS, int LD, typename T>
static __device__ __forceinline__ bool tile_has_non_finite(const T* tile) {
    const int VECTOR = 16 / static_cast<int>(sizeof(T)), PER_ROW = COLUMNS / VECTOR;
    bool found = false;
#pragma unroll 4
    for (int n = threadIdx.x; n < ROWS * PER_ROW; n += THREADS)
        found |= any_not_finite<T>(load_16_bytes(tile + n / PER_ROW * LD + n % PER_ROW * VECTOR));
    return __syncthreads_or(found);
}

// Replaces the elements of a tile that are not finite by zeros, between two barriers of the block.
template <int ROWS, int COLUMNS, int LD, typename T>
static __device__ __forceinline__ void zero_non_finite(T* tile) {
    __syncthreads();
#pragma unroll 1
    for (int n = threadIdx.x; n < ROWS * COLUMNS; n += THREADS) {
        T& x = tile[n / COLUMNS * LD + n % COLUMNS];
        if (not_finite(x)) x = T(0);
    }
    __syncthreads();
}
