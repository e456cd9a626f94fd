// The numbers that tensors are made of. ELEMENT: 0 is f32, 1 is f16, 2 is bf16.

typedef long long i64;

#if ELEMENT == 0
typedef float element;
static __device__ __forceinline__ float to_float(element x) { return x; }
static __device__ __forceinline__ element from_float(float x) { return x; }
#else
typedef u16 element;
#if ELEMENT == 1
static __device__ __forceinline__ float to_float(element x) { return f16_to_float(x); }
static __device__ __forceinline__ element from_float(float x) { return float_to_f16(x); }
#else
static __device__ __forceinline__ float to_float(element x) { return bits_to_float(static_cast<u32>(x) << 16); }
// To nearest, ties to even. By hand: only newer GPUs have an instruction.
static __device__ __forceinline__ element from_float(float x) {
    u32 bits = float_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<u16>((bits >> 16) | 0x40);
    return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}
#endif
#endif

#define LOG2_E 1.44269504088896340736f
#define HIDDEN bits_to_float(0xff800000u)  // -inf
#define LOWEST bits_to_float(0xff7fffffu)  // the lowest finite f32

static __device__ __forceinline__ int smaller(int a, int b) { return a < b ? a : b; }

// As many numbers as are read or written 16 bytes at a time.
#define PER_READ (16 / static_cast<int>(sizeof(element)))

static __device__ __forceinline__ void unpack(const uint4& read, float (&x)[PER_READ]) {
    const u32 words[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
        x[i] = bits_to_float(words[i]);
#else
        x[2 * i] = to_float(static_cast<element>(words[i]));
        x[2 * i + 1] = to_float(static_cast<element>(words[i] >> 16));
#endif
    }
}

// The largest number, or the sum, of those that LANES neighbours in a warp have.
template <int LANES>
static __device__ __forceinline__ float largest_of(float x) {
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2) x = fmaxf(x, from_lane_xor(x, mask));
    return x;
}

template <int LANES>
static __device__ __forceinline__ float sum_of(float x) {
#pragma unroll
    for (int mask = 1; mask < LANES; mask *= 2) x += from_lane_xor(x, mask);
    return x;
}
