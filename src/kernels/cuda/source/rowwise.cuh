// Row-wise kernels: normalization, activation and rotary embedding. Each makes one pass, computes in f32 and rounds
// once. The structs in rowwise.rs have the same fields in the same order. Strides count elements.

#define WARPS (THREADS / 32)

// N elements: a vector of 16 bytes, or one.
template <int N>
static __device__ __forceinline__ void load(const Element* from, float (&x)[N]) {
    if constexpr (N == 1) x[0] = to_float(*from);
    else unpack(load_16_bytes(from), x);
}

template <int N>
static __device__ __forceinline__ void store(Element* to, const float (&x)[N]) {
    if constexpr (N == 1) {
        *to = from_float(x[0]);
    } else {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
            words[i] = float_to_bits(x[i]);
#else
            words[i] = from_float(x[2 * i]) | static_cast<u32>(from_float(x[2 * i + 1])) << 16;
#endif
        }
        store_16_bytes(to, {words[0], words[1], words[2], words[3]});
    }
}

template <int N>
static __device__ __forceinline__ void add_to(float (&x)[N], const Element* from) {
    float y[N];
    load<N>(from, y);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] += y[i];
}

// Strides of the rows of a tensor (b, s, h, size).
struct RowStrides {
    i64 strides[3];  // of b, s and h
    int s, h;
};

// Offset of row `row`, counted as if the tensor were contiguous.
static __device__ __forceinline__ i64 row_offset(const RowStrides& r, i64 row) {
    const i64 token = row / r.h;
    return token / r.s * r.strides[0] + token % r.s * r.strides[1] + row % r.h * r.strides[2];
}

struct NormParams {
    const Element* x;              // (b, s, h, size)
    const Element* residual;       // contiguous, or null: added to x before normalization
    const Element* residual_bias;  // (size), or null: added to each row of x + residual
    const Element* weight;         // (size), or (h, size) with weight_stride
    const Element* bias;           // shape of weight, or null
    Element* sum;                  // contiguous, or null: receives the sum that is normalized
    Element* out;                  // contiguous
    RowStrides row_strides;        // of x
    i64 rows;                      // b s h
    int size, weight_stride;       // weight_stride: elements between the weights of two heads, or 0
    int rms;                       // whether the mean is not subtracted
    float weight_offset;           // added to the weight
    float eps;
    int vectorized;                // whether all rows can be read 16 bytes at a time
};

template <int N>
static __device__ __forceinline__ void normalize_row(const NormParams& p, i64 r, int lane) {
    const i64 row_start = r * p.size, weight_start = r % p.row_strides.h * p.weight_stride;
    const Element* from = p.x + row_offset(p.row_strides, r);
    auto load_sum = [&](int c, float (&x)[N]) {
        load<N>(from + c, x);
        if (p.residual) add_to<N>(x, p.residual + row_start + c);
        if (p.residual_bias) add_to<N>(x, p.residual_bias + c);
    };
    float mean = 0, squares = 0;
    if (!p.rms) {
        for (int c = lane * N; c < p.size; c += 32 * N) {
            float x[N];
            load_sum(c, x);
#pragma unroll
            for (int i = 0; i < N; ++i) mean += x[i];
        }
        mean = lanes_sum<32>(mean) / p.size;
    }
    // A second pass over the row: the difference of two large sums would lose precision.
    for (int c = lane * N; c < p.size; c += 32 * N) {
        float x[N];
        load_sum(c, x);
#pragma unroll
        for (int i = 0; i < N; ++i) squares += (x[i] - mean) * (x[i] - mean);
    }
    const float factor = 1 / sqrtf(lanes_sum<32>(squares) / p.size + p.eps);
    for (int c = lane * N; c < p.size; c += 32 * N) {
        float x[N], y[N], weight[N];
        load_sum(c, x);
        load<N>(p.weight + weight_start + c, weight);
        if (p.sum) store<N>(p.sum + row_start + c, x);
#pragma unroll
        for (int i = 0; i < N; ++i) y[i] = (x[i] - mean) * factor * (weight[i] + p.weight_offset);
        if (p.bias) add_to<N>(y, p.bias + weight_start + c);
        store<N>(p.out + row_start + c, y);
    }
}

// One warp per row.
extern "C" __global__ void __launch_bounds__(THREADS) rowwise_norm(const NormParams p) {
    const i64 r = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (r >= p.rows) return;
    if (p.vectorized) normalize_row<VECTOR_SIZE>(p, r, threadIdx.x % 32);
    else normalize_row<1>(p, r, threadIdx.x % 32);
}

struct ActivationParams {
    const Element* x;          // `rows` rows of `size` elements, `x_stride` apart
    const Element* bias;       // (size), or null
    const Element* gate;       // shape of x, `gate_stride` apart, or null: multiplies the activation
    const Element* gate_bias;  // (size), or null: added to the gate
    Element* out;              // contiguous
    i64 x_stride, gate_stride;
    int rows, size;            // their product is less than 2^31
    int activation;            // 0: none, 1: GELU (erf), 2: GELU (tanh), 3: SiLU, 4: ReLU
    int vectorized;
};

static __device__ __forceinline__ float activate(float x, int activation) {
    switch (activation) {
        case 1: return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
        case 2: return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        case 3: return x / (1 + exp2_fast(-x * LOG2_E));
        case 4: return x < 0 ? 0 : x;
        default: return x;
    }
}

template <int N>
static __device__ __forceinline__ void activate_elements(const ActivationParams& p, u32 n) {
    const u32 per_row = p.size / N, r = n / per_row;
    if (r >= p.rows) return;
    const int c = n % per_row * N;
    float x[N];
    load<N>(p.x + r * p.x_stride + c, x);
    if (p.bias) add_to<N>(x, p.bias + c);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = activate(x[i], p.activation);
    if (p.gate) {
        float gate[N];
        load<N>(p.gate + r * p.gate_stride + c, gate);
        if (p.gate_bias) add_to<N>(gate, p.gate_bias + c);
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] *= gate[i];
    }
    store<N>(p.out + static_cast<i64>(r) * p.size + c, x);
}

extern "C" __global__ void __launch_bounds__(THREADS) rowwise_activation(const ActivationParams p) {
    const u32 n = blockIdx.x * THREADS + threadIdx.x;
    if (p.vectorized) activate_elements<VECTOR_SIZE>(p, n);
    else activate_elements<1>(p, n);
}

struct RotaryParams {
    const Element* x;        // (b, s, h, d)
    const Element* cos;      // (b, s, pairs), or (s, pairs) for every sequence; contiguous
    const Element* sin;
    Element* out;            // contiguous
    RowStrides row_strides;  // of x
    i64 rows;                // b s h
    i64 batch_offset;        // tokens between the angles of two sequences: s or 0
    int d, pairs;
    int interleaved;         // whether element 2 i is rotated with 2 i + 1, or i with i + pairs
};

// One warp per head of a token.
extern "C" __global__ void __launch_bounds__(THREADS) rowwise_rotary(const RotaryParams p) {
    const i64 r = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (r >= p.rows) return;
    const Element* from = p.x + row_offset(p.row_strides, r);
    const int s = p.row_strides.s;
    const i64 token = r / p.row_strides.h, angles = (token / s * p.batch_offset + token % s) * p.pairs;
    Element* to = p.out + r * p.d;
    for (int i = threadIdx.x % 32; i < p.pairs; i += 32) {
        const int first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + p.pairs;
        const float x = to_float(from[first]), y = to_float(from[second]);
        const float cos = to_float(p.cos[angles + i]), sin = to_float(p.sin[angles + i]);
        to[first] = from_float(x * cos - y * sin);
        to[second] = from_float(y * cos + x * sin);
    }
    for (int i = 2 * p.pairs + threadIdx.x % 32; i < p.d; i += 32) to[i] = from[i];
}
