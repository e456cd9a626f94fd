// Metal for tests: defines on a CPU what Metal's headers and language provide on an Apple GPU, on top of the fibers of
// tests/cuda_emulator/emulator.hpp, which comes before it. A simdgroup is its warp.

struct half {
    u16 bits;
    half(float x) : bits(float_to_f16(x)) {}
    operator float() const { return f16_to_float(bits); }
};

// Rounds to nearest, ties to even.
struct bfloat {
    u16 bits;
    bfloat(float x) {
        u32 all = float_to_bits(x);
        bits = std::isnan(x) ? 0x7fc0 : static_cast<u16>((all + 0x7fff + (all >> 16 & 1)) >> 16);
    }
    operator float() const { return bits_to_float(static_cast<u32>(bits) << 16); }
};

namespace metal {
typedef unsigned int uint;
struct uint2 { uint x, y; };
enum class mem_flags { mem_threadgroup };

// The number, if the other one is NaN.
static inline float max(float a, float b) { return std::fmax(a, b); }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline float simd_shuffle_xor(float x, int mask) { return shuffle_xor(x, mask); }
static inline void threadgroup_barrier(mem_flags) { emulator::wait(emulator::block); }

namespace precise {
using std::exp;
using std::tanh;
}  // namespace precise
}  // namespace metal

#define kernel
#define device
#define constant const
#define threadgroup
