// CUDA C++ on a CPU, to compile candle's kernels with an ordinary compiler. The threads of a block are fibers that switch at
// barriers; kernels without barriers are loops. Included before everything else.
#pragma once
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define __CUDA_ARCH__ 900
#define __device__
#define __global__
#define __host__
#define __constant__ static
#define __restrict__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include "cuda_fp16.h"
using std::isnan;
using std::signbit;
using std::max;
using std::min;

struct Dim { unsigned x = 1, y = 1, z = 1; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
static inline float normcdff(float x) { return 0.5f * (1 + erff(x * float(M_SQRT1_2))); }
static inline double normcdf(double x) { return 0.5 * (1 + erf(x * M_SQRT1_2)); }
static inline size_t min(size_t a, unsigned b) { return a < b ? a : b; }
static inline unsigned min(unsigned a, int b) { return a < unsigned(b) ? a : unsigned(b); }

namespace gpu {
struct Thread { Dim index; unsigned linear; };
extern thread_local Dim block, blocks, size;
extern thread_local Thread* here;
void wait_block();
void wait_warp();
extern thread_local unsigned char published[1024][16];

template <typename T>
T from_lane(T x, unsigned lane) {
    static_assert(sizeof(T) <= 16);
    std::memcpy(published[here->linear], &x, sizeof(T));
    wait_warp();
    T y;
    std::memcpy(&y, published[here->linear / 32 * 32 + lane], sizeof(T));
    wait_warp();
    return y;
}

// Calls a kernel with an array of pointers to its arguments, as the driver passes them.
template <auto F> struct Kernel;
template <typename... A, void (*F)(A...)>
struct Kernel<F> {
    static void call(void** arguments) { call(arguments, std::index_sequence_for<A...>()); }
    template <size_t... I>
    static void call(void** arguments, std::index_sequence<I...>) {
        F(*static_cast<std::remove_reference_t<A>*>(arguments[I])...);
    }
};
struct Entry { const char* name; void (*call)(void**); bool barriers; };
}  // namespace gpu

#define threadIdx (gpu::here->index)
#define blockIdx gpu::block
#define blockDim gpu::size
#define gridDim gpu::blocks
static inline void __syncthreads() { gpu::wait_block(); }
template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask, int = 32) { return gpu::from_lane(x, (gpu::here->linear % 32) ^ mask); }

// One thread runs at a time, so atomics are plain operations.
template <typename T, typename U> T atomicAdd(T* at, U x) { T old = *at; *at = T(old + T(x)); return old; }
template <typename T, typename U> T atomicMax(T* at, U x) { T old = *at; if (T(x) > old) *at = T(x); return old; }
template <typename T, typename U> T atomicMin(T* at, U x) { T old = *at; if (T(x) < old) *at = T(x); return old; }
template <typename T, typename U, typename V> T atomicCAS(T* at, U compare, V x) { T old = *at; if (old == T(compare)) *at = T(x); return old; }
static inline int __float_as_int(float x) { return int(bits_of(x)); }
static inline float __int_as_float(int x) { return float_of(uint32_t(x)); }
static inline unsigned __float_as_uint(float x) { return bits_of(x); }
static inline float __uint_as_float(unsigned x) { return float_of(x); }
static inline long long __double_as_longlong(double x) { long long y; std::memcpy(&y, &x, 8); return y; }
static inline double __longlong_as_double(long long x) { double y; std::memcpy(&y, &x, 8); return y; }
