// The Metal Shading Language as C++20: what the kernels of candle use of it. Names are those of the language.
#pragma once
#include <cfloat>
#include <limits>
#include <type_traits>
#include <utility>

#include "runtime.hpp"

#define METAL_FUNC inline
#define device
#define constant const
#define thread
#define threadgroup
// Arrays in threadgroup memory. The emulator runs one threadgroup at a time.
#define THREADGROUP_ARRAY static __attribute__((section("shared")))

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

// libgcc 12 has no conversion to bfloat.
extern "C" inline __attribute__((used, visibility("hidden"))) __bf16 __truncsfbf2(float x) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    return __builtin_bit_cast(__bf16, static_cast<uint16_t>(x != x ? 0x7fc0 : rounded >> 16));
}

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
constexpr float M_PI_F = 3.14159265358979323846f, M_SQRT1_2_F = 0.70710678118654752440f;
constexpr float M_2_SQRTPI_F = 1.12837916709551257390f;
#undef MAXFLOAT
constexpr float MAXFLOAT = 3.402823466e+38f;
constexpr half HALF_MAX_ = half(65504.0f);
#define MAXHALF HALF_MAX_

namespace metal {

using std::conditional, std::conditional_t, std::declval, std::enable_if, std::enable_if_t, std::false_type;
using std::integral_constant, std::is_arithmetic_v, std::is_convertible_v, std::is_floating_point_v, std::is_integral_v;
using std::is_same, std::is_same_v, std::is_signed_v, std::make_unsigned_t, std::remove_cv, std::remove_cv_t;
using std::remove_reference_t, std::true_type;

template <typename T>
constexpr bool is_scalar_v = std::is_arithmetic_v<T> || std::is_same_v<T, half> || std::is_same_v<T, bfloat>;

// Vectors

template <typename T, int N>
struct Components;
template <typename T>
struct Components<T, 1> {
    union {
        T v[1];
        T x;
    };
};
template <typename T>
struct Components<T, 2> {
    union {
        T v[2];
        struct { T x, y; };
    };
};
template <typename T>
struct Components<T, 3> {
    union {
        T v[3];
        struct { T x, y, z; };
    };
};
template <typename T>
struct Components<T, 4> {
    union {
        T v[4];
        struct { T x, y, z, w; };
        struct { T r, g, b, a; };
    };
};

template <typename T, int N>
struct vec : Components<T, N> {
    static constexpr int size = N;
    vec() = default;
    template <typename S>
        requires is_scalar_v<S>
    constexpr vec(S s) : Components<T, N>{} {
        for (int i = 0; i < N; ++i) this->v[i] = T(s);
    }
    template <typename... S>
        requires(sizeof...(S) == N && N > 1 && (is_scalar_v<S> && ...))
    constexpr vec(S... s) : Components<T, N>{{{T(s)...}}} {}
    template <typename U>
    constexpr explicit vec(const vec<U, N>& from) : Components<T, N>{} {
        for (int i = 0; i < N; ++i) this->v[i] = T(from.v[i]);
    }
    constexpr T& operator[](size_t i) { return this->v[i]; }
    constexpr const T& operator[](size_t i) const { return this->v[i]; }
};

template <typename F, typename T, int N>
constexpr auto each(F f, const vec<T, N>& a) {
    vec<decltype(f(a.v[0])), N> to{};
    for (int i = 0; i < N; ++i) to.v[i] = f(a.v[i]);
    return to;
}

#define VECTOR_OPERATOR(op)                                                                        \
    template <typename T, int N>                                                                   \
    constexpr auto operator op(const vec<T, N>& a, const vec<T, N>& b) {                           \
        vec<std::remove_cvref_t<decltype(T(a.v[0] op b.v[0]))>, N> to{};                           \
        for (int i = 0; i < N; ++i) to.v[i] = a.v[i] op b.v[i];                                    \
        return to;                                                                                 \
    }                                                                                              \
    template <typename T, int N, typename S>                                                       \
        requires is_scalar_v<S>                                                                    \
    constexpr auto operator op(const vec<T, N>& a, S b) { return a op vec<T, N>(b); }              \
    template <typename T, int N, typename S>                                                       \
        requires is_scalar_v<S>                                                                    \
    constexpr auto operator op(S a, const vec<T, N>& b) { return vec<T, N>(a) op b; }              \
    template <typename T, int N, typename S>                                                       \
    constexpr vec<T, N>& operator op##=(vec<T, N>& a, const S& b) { return a = a op b; }
VECTOR_OPERATOR(+)
VECTOR_OPERATOR(-)
VECTOR_OPERATOR(*)
VECTOR_OPERATOR(/)
VECTOR_OPERATOR(%)
VECTOR_OPERATOR(&)
VECTOR_OPERATOR(|)
VECTOR_OPERATOR(^)
VECTOR_OPERATOR(<<)
VECTOR_OPERATOR(>>)
#undef VECTOR_OPERATOR
template <typename T, int N>
constexpr vec<T, N> operator-(const vec<T, N>& a) { return each([](T x) { return T(-x); }, a); }

template <typename T, int N>
inline T dot(const vec<T, N>& a, const vec<T, N>& b) {
    T sum = a.v[0] * b.v[0];
    for (int i = 1; i < N; ++i) sum += a.v[i] * b.v[i];
    return sum;
}

#define VECTORS(T)                                                                                 \
    typedef vec<T, 2> T##2;                                                                        \
    typedef vec<T, 3> T##3;                                                                        \
    typedef vec<T, 4> T##4;
VECTORS(bool)
VECTORS(char)
VECTORS(uchar)
VECTORS(short)
VECTORS(ushort)
VECTORS(int)
VECTORS(uint)
VECTORS(long)
VECTORS(ulong)
VECTORS(half)
VECTORS(bfloat)
VECTORS(float)
#undef VECTORS
typedef vec<int, 3> packed_int3;

template <typename T>
struct vec_elements : integral_constant<int, 1> {};
template <typename T, int N>
struct vec_elements<vec<T, N>> : integral_constant<int, N> {};

// Columns of a matrix.
template <typename T, int C, int R>
struct matrix {
    vec<T, R> columns[C];
    matrix() = default;
    template <typename S>
        requires is_scalar_v<S>
    constexpr explicit matrix(S s) : columns{} {
        for (int i = 0; i < C && i < R; ++i) columns[i][i] = T(s);
    }
    template <typename U>
    constexpr explicit matrix(const matrix<U, C, R>& from) {
        for (int i = 0; i < C; ++i) columns[i] = vec<T, R>(from.columns[i]);
    }
    constexpr vec<T, R>& operator[](size_t i) { return columns[i]; }
    constexpr const vec<T, R>& operator[](size_t i) const { return columns[i]; }
};
typedef matrix<half, 4, 4> half4x4;
typedef matrix<float, 4, 4> float4x4;
typedef matrix<float, 2, 4> float2x4;

template <typename T, size_t N>
struct array {
    T v[N];
    constexpr T& operator[](size_t i) { return v[i]; }
    constexpr const T& operator[](size_t i) const { return v[i]; }
};

// Numbers

template <typename T>
struct _numeric_limits_impl : std::numeric_limits<T> {};
template <typename T, uint16_t INFINITE, uint16_t LARGEST, uint16_t SMALLEST>
struct HalfLimits {
    static constexpr T infinity() { return __builtin_bit_cast(T, INFINITE); }
    static constexpr T max() { return __builtin_bit_cast(T, LARGEST); }
    static constexpr T min() { return __builtin_bit_cast(T, SMALLEST); }
    static constexpr T lowest() { return -max(); }
};
template <>
struct _numeric_limits_impl<half> : HalfLimits<half, 0x7c00, 0x7bff, 0x0400> {};
template <>
struct _numeric_limits_impl<bfloat> : HalfLimits<bfloat, 0x7f80, 0x7f7f, 0x0080> {};
template <typename T>
struct numeric_limits : _numeric_limits_impl<T> {};

// A cast, which C++ does not have between the 16-bit types.
template <typename T, typename U>
constexpr T convert(U x) {
    if constexpr (is_scalar_v<T> && is_scalar_v<U> && sizeof(U) == 2) return static_cast<T>(static_cast<std::conditional_t<std::is_integral_v<U>, U, float>>(x));
    else return static_cast<T>(x);
}

template <typename T, typename U>
constexpr T as_type(U x) { return __builtin_bit_cast(T, x); }

// A function of numbers and of vectors, computed in f32.
#define FUNCTION(name, value)                                                                      \
    inline float name(float x) { return value; }                                                   \
    inline half name(half x) { return half(name(float(x))); }                                      \
    inline bfloat name(bfloat x) { return bfloat(name(float(x))); }                                \
    template <typename T>                                                                          \
        requires std::is_integral_v<T>                                                             \
    inline float name(T x) { return name(float(x)); }                                              \
    template <typename T, int N>                                                                   \
    inline vec<T, N> name(const vec<T, N>& a) { return each([](T x) { return name(x); }, a); }
FUNCTION(exp, __builtin_expf(x))
FUNCTION(exp2, __builtin_exp2f(x))
FUNCTION(log, __builtin_logf(x))
FUNCTION(sin, __builtin_sinf(x))
FUNCTION(cos, __builtin_cosf(x))
FUNCTION(tanh, __builtin_tanhf(x))
FUNCTION(sqrt, __builtin_sqrtf(x))
FUNCTION(rsqrt, 1 / __builtin_sqrtf(x))
FUNCTION(ceil, __builtin_ceilf(x))
FUNCTION(floor, __builtin_floorf(x))
FUNCTION(round, __builtin_roundf(x))
FUNCTION(fabs, __builtin_fabsf(x))
FUNCTION(sign, float((x > 0) - (x < 0)))
inline float pow(float x, float y) { return __builtin_powf(x, y); }
template <typename T>
    requires is_scalar_v<T>
inline T fma(T x, T y, T z) { return T(__builtin_fmaf(float(x), float(y), float(z))); }
template <typename A, typename B, typename C>
    requires is_scalar_v<A>
inline float fma(A x, B y, C z) { return __builtin_fmaf(float(x), float(y), float(z)); }
inline float sincos(float x, float& cosine) {
    cosine = __builtin_cosf(x);
    return __builtin_sinf(x);
}
template <typename T>
constexpr T abs(T x) { return x < T(0) ? T(-x) : x; }
template <typename T>
constexpr T max(T a, T b) { return a < b ? b : a; }
template <typename T>
constexpr T min(T a, T b) { return b < a ? b : a; }
template <typename A, typename B>
    requires(is_scalar_v<A> && is_scalar_v<B>)
constexpr auto max(A a, B b) { return a < b ? b : a; }
template <typename A, typename B>
    requires(is_scalar_v<A> && is_scalar_v<B>)
constexpr auto min(A a, B b) { return b < a ? b : a; }
template <typename T, int N>
inline vec<T, N> max(const vec<T, N>& a, const vec<T, N>& b) {
    vec<T, N> to;
    for (int i = 0; i < N; ++i) to[i] = max(a[i], b[i]);
    return to;
}
template <typename T>
inline T fmax(T a, T b) { return b != b || a > b ? a : b; }
template <typename T>
constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <typename T>
inline T divide(T a, T b) { return a / b; }
template <typename T>
inline T select(T no, T yes, bool c) { return c ? yes : no; }
inline uint clz(uint x) { return x ? __builtin_clz(x) : 32; }

namespace fast {
using metal::exp, metal::exp2, metal::max, metal::min, metal::divide, metal::log;
}
namespace precise {
using metal::tanh, metal::exp, metal::sqrt;
}

// Atomics. One thread runs at a time.
enum memory_order { memory_order_relaxed };
template <typename T>
struct atomic {
    T value;
};
typedef atomic<uint> atomic_uint;
typedef atomic<int> atomic_int;
template <typename T>
inline T atomic_load_explicit(const atomic<T>* at, memory_order) { return at->value; }
template <typename T>
inline void atomic_store_explicit(atomic<T>* at, T x, memory_order) { at->value = x; }

// Barriers and simdgroups

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_device_and_threadgroup = 3 };
inline void threadgroup_barrier(mem_flags) { gpu::threadgroup_barrier(); }

template <typename T>
struct Lanes {
    gpu::Exchanged from;
    bool active(uint lane) const { return lane < gpu::LANES && from.active >> lane & 1; }
    // NaN or all bits of what a lane that is not there has.
    T operator[](uint lane) const {
        T x;
        if (active(lane)) __builtin_memcpy(&x, from.slots + lane * gpu::SLOT, sizeof(T));
        else __builtin_memset(&x, 0xff, sizeof(T));
        return x;
    }
};
template <typename T>
inline Lanes<T> exchange(const T& mine) {
    static_assert(sizeof(T) <= gpu::SLOT, "the slot is too small");
    return {gpu::exchange(&mine, sizeof(T))};
}
inline uint own_lane() { return gpu::current.index % gpu::LANES; }

inline void simdgroup_barrier(mem_flags) { exchange(char()); }

template <typename T, typename F>
inline T simd_fold(T mine, F f) {
    const Lanes<T> lanes = exchange(mine);
    uint lane = 0;
    while (!lanes.active(lane)) ++lane;
    T all = lanes[lane];
    while (++lane < gpu::LANES) {
        if (lanes.active(lane)) all = f(all, lanes[lane]);
    }
    return all;
}
template <typename T>
inline T simd_sum(T x) { return simd_fold(x, [](T a, T b) { return T(a + b); }); }
template <typename T>
inline T simd_product(T x) { return simd_fold(x, [](T a, T b) { return T(a * b); }); }
template <typename T>
inline T simd_max(T x) { return simd_fold(x, [](T a, T b) { return max(a, b); }); }
template <typename T>
inline T simd_min(T x) { return simd_fold(x, [](T a, T b) { return min(a, b); }); }
template <typename T>
struct __is_valid_simdgroup_type : integral_constant<bool, is_scalar_v<T> && !is_same_v<T, bool> && sizeof(T) <= 4 && !is_same_v<T, bfloat>> {};
template <typename T, int N>
struct __is_valid_simdgroup_type<vec<T, N>> : __is_valid_simdgroup_type<T> {};
template <typename T>
    requires(__is_valid_simdgroup_type<T>::value)
inline T simd_shuffle_xor(T x, ushort mask) {
    const uint lane = own_lane();
    return exchange(x)[lane ^ mask];
}
template <typename T>
    requires(__is_valid_simdgroup_type<T>::value)
inline T simd_shuffle_down(T x, ushort by) {
    const uint lane = own_lane();
    return exchange(x)[lane + by];
}

// 8 × 8 matrices, two elements per lane, in the layout that MLX found on Apple's GPUs.
template <typename T, int R, int C>
struct simdgroup_matrix {
    vec<T, 2> elements;
    vec<T, 2>& thread_elements() { return elements; }
    const vec<T, 2>& thread_elements() const { return elements; }
};
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
inline void own_elements(uint& row, uint& column) {
    const uint lane = own_lane(), quad = lane / 4;
    row = (quad & 4) + lane / 2 % 4;
    column = (quad & 2) * 2 + lane % 2 * 2;
}
inline uint lane_of(uint row, uint column) { return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column >> 1 & 1); }

template <typename T, int R, int C = R>
inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T x) { return {vec<T, 2>(x)}; }

template <typename D, typename A, typename B, typename C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
    struct Operands {
        vec<A, 2> a;
        vec<B, 2> b;
    };
    uint row, column;
    own_elements(row, column);
    const Lanes<Operands> lanes = exchange(Operands{a.elements, b.elements});
    if (lanes.from.active != ~0u) gpu::fail("a product of matrices without all lanes of the simdgroup");
    float sums[2] = {float(c.elements[0]), float(c.elements[1])};
    for (uint k = 0; k < 8; ++k) {
        const float left = float(lanes[lane_of(row, k)].a[k % 2]);
        const vec<B, 2> right = lanes[lane_of(k, column)].b;
        for (uint j = 0; j < 2; ++j) sums[j] += left * float(right[j]);
    }
    d.elements = vec<D, 2>(sums[0], sums[1]);
}
template <typename D, typename A, typename B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b) {
    simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)));
}

// Offset of an element of this lane in memory.
inline ulong element_offset(uint j, ulong stride, ulong2 origin, bool transposed) {
    uint row, column;
    own_elements(row, column);
    column += j;
    return transposed ? (origin.y + column) * stride + origin.x + row : (origin.y + row) * stride + origin.x + column;
}
template <typename T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& to, const T* from, ulong stride = 8, ulong2 origin = ulong2(0),
                           bool transposed = false) {
    simdgroup_barrier(mem_flags::mem_none);  // lanes run in lockstep
    for (uint j = 0; j < 2; ++j) to.elements[j] = from[element_offset(j, stride, origin, transposed)];
    simdgroup_barrier(mem_flags::mem_none);
}
template <typename T>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> from, T* to, ulong stride = 8, ulong2 origin = ulong2(0),
                            bool transposed = false) {
    simdgroup_barrier(mem_flags::mem_none);
    for (uint j = 0; j < 2; ++j) to[element_offset(j, stride, origin, transposed)] = from.elements[j];
    simdgroup_barrier(mem_flags::mem_none);
}

}  // namespace metal

// Arguments of a kernel

namespace gpu {

enum class Source {
    buffer,
    threadgroup_memory,
    thread_position_in_grid,
    threadgroup_position_in_grid,
    thread_position_in_threadgroup,
    threads_per_threadgroup,
    threadgroups_per_grid,
    thread_index_in_threadgroup,
    thread_index_in_simdgroup,
    simdgroup_index_in_threadgroup,
};
struct Argument {
    Source source;
    unsigned index;
};

template <typename T>
inline T position(const uint64_t (&at)[3]) {
    if constexpr (metal::vec_elements<T>::value == 2) return T(at[0], at[1]);
    else if constexpr (metal::vec_elements<T>::value == 3) return T(at[0], at[1], at[2]);
    else return T(at[0]);
}

template <typename T>
inline T argument(const Dispatch& dispatch, const Argument& from) {
    if constexpr (std::is_reference_v<T>) {
        return *static_cast<std::remove_reference_t<T>*>(dispatch.buffers[from.index]);
    } else if constexpr (std::is_pointer_v<T>) {
        const bool shared = from.source == Source::threadgroup_memory;
        return static_cast<T>(shared ? threadgroup_memory[from.index] : dispatch.buffers[from.index]);
    } else {
        uint64_t at[3];
        for (unsigned i = 0; i < 3; ++i) {
            const uint64_t group = current.group[i], own = current.own[i], size = dispatch.group[i];
            switch (from.source) {
                case Source::thread_position_in_grid: at[i] = group * size + own; break;
                case Source::threadgroup_position_in_grid: at[i] = group; break;
                case Source::thread_position_in_threadgroup: at[i] = own; break;
                case Source::threads_per_threadgroup: at[i] = size; break;
                case Source::threadgroups_per_grid: at[i] = (dispatch.threads[i] + size - 1) / size; break;
                case Source::thread_index_in_simdgroup: at[i] = gpu::current.index % LANES; break;
                case Source::simdgroup_index_in_threadgroup: at[i] = gpu::current.index / LANES; break;
                default: at[i] = gpu::current.index;
            }
        }
        return position<T>(at);
    }
}

template <typename F>
struct Call;
template <typename... A>
struct Call<void (*)(A...)> {
    template <size_t... I>
    static void run(void (*kernel)(A...), const Dispatch& dispatch, const Argument* from, std::index_sequence<I...>) {
        kernel(argument<A>(dispatch, from[I])...);
    }
    static constexpr auto indices = std::index_sequence_for<A...>{};
};

template <typename T>
inline T constant_value(const Dispatch& dispatch, uint64_t index) {
    for (uint64_t i = 0; i < dispatch.constant_count; ++i) {
        if (dispatch.constants[i].index == index) {
            T x;
            __builtin_memcpy(&x, &dispatch.constants[i].bits, sizeof(T));
            return x;
        }
    }
    return T();
}

}  // namespace gpu
using namespace metal;
