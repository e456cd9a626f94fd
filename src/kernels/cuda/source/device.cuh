// NVIDIA GPU primitives that the kernels use beyond plain CUDA C++. tests/cuda_emulator/emulator.hpp defines the same
// names for a CPU. No CUDA header is included: the kernels are compiled on the user's machine, which may have only
// the compiler.

#define SHARED_BYTES(name) extern __shared__ __align__(16) unsigned char name[]
#define FULL_WARP 0xffffffffu

typedef unsigned short u16;
typedef unsigned int u32;

static __device__ __forceinline__ float bits_to_float(u32 bits) { return __uint_as_float(bits); }
static __device__ __forceinline__ u32 float_to_bits(float x) { return __float_as_uint(x); }

// Load 16 bytes. The address is a multiple of 16.
static __device__ __forceinline__ uint4 load_16_bytes(const void* p) { return *reinterpret_cast<const uint4*>(p); }

#if ELEMENT == 1
static __device__ __forceinline__ float f16_to_float(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

static __device__ __forceinline__ u16 float_to_f16(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
#endif

static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ float shuffle_xor(float x, int lane_mask) {
    return __shfl_xor_sync(FULL_WARP, x, lane_mask);
}

#if TENSOR_CORES
// Rounds two floats to the element type and packs them into one register, `low` in the low half.
static __device__ __forceinline__ u32 pack_pair(float low, float high) {
    u32 y;
#if ELEMENT == 1
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#endif
    return y;
}

static __device__ __forceinline__ u32 shared_address(const void* p) {
    return static_cast<u32>(__cvta_generic_to_shared(p));
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory (ldmatrix.x4). Lane l passes the address of row l %
// 8 of matrix l / 8 and receives two elements of each matrix: row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1.
static __device__ __forceinline__ void load_matrices(u32 (&x)[4], const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same, with each matrix transposed.
static __device__ __forceinline__ void load_matrices_transposed(u32 (&x)[4], const u16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// c += a b, with a 16 x 16 and b 16 x 8, distributed over the registers of a warp as PTX defines for mma.m16n8k16.
static __device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if ELEMENT == 1
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
#endif
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Starts an asynchronous copy of 16 bytes to shared memory; writes zeros if not `in_bounds`. Both addresses are
// multiples of 16.
static __device__ __forceinline__ void copy_async(void* to, const void* from, bool in_bounds) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(from), "r"(in_bounds ? 16 : 0)
                 : "memory");
}

// Waits for all copies that this thread has started.
static __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#endif
