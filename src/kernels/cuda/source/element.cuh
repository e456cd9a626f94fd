// Element types of tensors, and helpers for single elements and warps. ELEMENT: 0 is f32, 1 is f16, 2 is bf16.

typedef long long i64;

#if ELEMENT == 0
typedef float Element;
static __device__ __forceinline__ float to_float(Element x) { return x; }
static __device__ __forceinline__ Element from_float(float x) { return x; }
#else
typedef u16 Element;
#if ELEMENT == 1
static __device__ __forceinline__ float to_float(Element x) { return f16_to_float(x); }
static __device__ __forceinline__ Element from_float(float x) { return float_to_f16(x); }
#else
static __device__ __forceinline__ float to_float(Element x) { return bits_to_float(static_cast<u32>(x) << 16); }
// Rounds to nearest, ties to even. Done with integers because only newer GPUs have an instruction for it.
static __device__ __forceinline__ Element from_float(float x) {
    u32 bits = float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<u16>((bits >> 16) | 0x40);
    return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
#endif
#endif

#define LOG2_E 1.44269504088896340736f
#define NEG_INFINITY bits_to_float(0xff800000u)
#define LOWEST_FINITE bits_to_float(0xff7fffffu)

static __device__ __forceinline__ int min_int(int a, int b) { return a < b ? a : b; }

// Elements in a vectorized load or store of 16 bytes.
#define VECTOR_SIZE (16 / static_cast<int>(sizeof(Element)))

static __device__ __forceinline__ void unpack(const uint4& vector, float (&x)[VECTOR_SIZE]) {
    const u32 words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
        x[i] = bits_to_float(words[i]);
#else
        x[2 * i] = to_float(static_cast<Element>(words[i]));
        x[2 * i + 1] = to_float(static_cast<Element>(words[i] >> 16));
#endif
    }
}

// Maximum over groups of LANES neighboring lanes of a warp.
template <int LANES>
static __device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}

// Sum over groups of LANES neighboring lanes of a warp.
template <int LANES>
static __device__ __forceinline__ float lanes_sum(float x) {
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2) x += shuffle_xor(x, mask);
    return x;
}
