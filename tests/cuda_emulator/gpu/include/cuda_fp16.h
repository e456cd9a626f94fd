// The 16-bit and 8-bit types of CUDA on a CPU, as far as candle's kernels use them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

static inline uint32_t bits_of(float x) { uint32_t y; std::memcpy(&y, &x, 4); return y; }
static inline float float_of(uint32_t x) { float y; std::memcpy(&y, &x, 4); return y; }

static inline float half_to_float(uint16_t x) {
    int exponent = x >> 10 & 31, fraction = x & 1023;
    float y = exponent == 31 ? (fraction ? NAN : INFINITY)
              : exponent == 0 ? std::ldexp(float(fraction), -24) : std::ldexp(float(fraction + 1024), exponent - 25);
    return x >> 15 ? -y : y;
}

static inline uint16_t float_to_half(float x) {
    uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    float size = std::fabs(x);
    if (std::isnan(x)) return sign | 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    if (size == 0) return sign;
    int exponent = 0;
    std::frexp(size, &exponent);
    if (exponent < -13) exponent = -13;
    return sign | uint16_t(((exponent + 13) << 10) + int(std::nearbyint(std::ldexp(size, 11 - exponent))));
}

static inline uint16_t float_to_bf16(float x) {
    uint32_t bits = bits_of(x);
    return std::isnan(x) ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

struct __half {
    uint16_t x;
    __half() = default;
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
    __half(T y) : x(float_to_half(float(y))) {}
    operator float() const { return half_to_float(x); }
    __half& operator+=(float y) { return *this = __half(float(*this) + y); }
    __half& operator-=(float y) { return *this = __half(float(*this) - y); }
    __half& operator*=(float y) { return *this = __half(float(*this) * y); }
    __half& operator/=(float y) { return *this = __half(float(*this) / y); }
};

struct __nv_bfloat16 {
    uint16_t x;
    __nv_bfloat16() = default;
    template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
    __nv_bfloat16(T y) : x(float_to_bf16(float(y))) {}
    operator float() const { return float_of(uint32_t(x) << 16); }
    __nv_bfloat16& operator+=(float y) { return *this = __nv_bfloat16(float(*this) + y); }
    __nv_bfloat16& operator-=(float y) { return *this = __nv_bfloat16(float(*this) - y); }
    __nv_bfloat16& operator*=(float y) { return *this = __nv_bfloat16(float(*this) * y); }
    __nv_bfloat16& operator/=(float y) { return *this = __nv_bfloat16(float(*this) / y); }
};

// As on a GPU, an operator of two values of a type returns that type.
#define OPERATORS(T) \
    static inline T operator+(T a, T b) { return T(float(a) + float(b)); } \
    static inline T operator-(T a, T b) { return T(float(a) - float(b)); } \
    static inline T operator*(T a, T b) { return T(float(a) * float(b)); } \
    static inline T operator/(T a, T b) { return T(float(a) / float(b)); } \
    static inline T operator-(T a) { return T(-float(a)); } \
    static inline bool operator<(T a, T b) { return float(a) < float(b); } \
    static inline bool operator>(T a, T b) { return float(a) > float(b); } \
    static inline bool operator<=(T a, T b) { return float(a) <= float(b); } \
    static inline bool operator>=(T a, T b) { return float(a) >= float(b); } \
    static inline bool operator==(T a, T b) { return float(a) == float(b); } \
    static inline bool operator!=(T a, T b) { return float(a) != float(b); } \
    static inline bool __hisnan(T a) { return std::isnan(float(a)); } \
    static inline T hsqrt(T a) { return T(std::sqrt(float(a))); } \
    static inline T hcos(T a) { return T(std::cos(float(a))); } \
    static inline T hsin(T a) { return T(std::sin(float(a))); } \
    static inline T hlog(T a) { return T(std::log(float(a))); } \
    static inline T hexp(T a) { return T(std::exp(float(a))); } \
    static inline T __habs(T a) { return T(std::fabs(float(a))); } \
    static inline T __hmax_nan(T a, T b) { return __hisnan(a) ? a : __hisnan(b) ? b : a > b ? a : b; } \
    static inline T __hmin_nan(T a, T b) { return __hisnan(a) ? a : __hisnan(b) ? b : a < b ? a : b; }
OPERATORS(__half)
OPERATORS(__nv_bfloat16)

struct __nv_bfloat162 { __nv_bfloat16 x, y; };
static inline __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x + b.x, a.y + b.y}; }
static inline __nv_bfloat162 __hsub2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x - b.x, a.y - b.y}; }
static inline __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x * b.x, a.y * b.y}; }
static inline __nv_bfloat162 __h2div(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x / b.x, a.y / b.y}; }

static inline __half __float2half(float x) { return x; }
static inline float __half2float(__half x) { return x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline unsigned short __half_as_ushort(__half x) { return x.x; }
static inline __half __ushort_as_half(unsigned short x) { __half y; y.x = x; return y; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.x; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { __nv_bfloat16 y; y.x = x; return y; }

// No kernel of this crate uses 8-bit floats; the type exists so that candle's kernels compile.
struct __nv_fp8_e4m3 {
    uint8_t __x;
    __nv_fp8_e4m3() = default;
    template <typename T> explicit __nv_fp8_e4m3(T) : __x(0) {}
};
#define __NV_E4M3 0
static inline __half __nv_cvt_fp8_to_halfraw(uint8_t, int) { return __half(0); }
