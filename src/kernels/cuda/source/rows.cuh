// What lies between products: norms, activations and rotations, each in one pass, computed in f32 and rounded once.
// rows.rs has the same structs. Strides count elements; what is packed lies row after row.

#define WARPS (THREADS / 32)

// PER numbers: 16 bytes at once, or one.
template <int PER>
static __device__ __forceinline__ void load(const element* from, float (&x)[PER]) {
    if constexpr (PER == 1) x[0] = to_float(*from);
    else unpack(read_16(from), x);
}

template <int PER>
static __device__ __forceinline__ void store(element* to, const float (&x)[PER]) {
    if constexpr (PER == 1) {
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
        write_16(to, {words[0], words[1], words[2], words[3]});
    }
}

template <int PER>
static __device__ __forceinline__ void add_to(float (&x)[PER], const element* from) {
    float y[PER];
    load<PER>(from, y);
#pragma unroll
    for (int i = 0; i < PER; ++i) x[i] += y[i];
}

// Where the rows of a tensor (b, s, h, size) are, in the order of the packed one: the strides of b, s and h.
struct Places {
    i64 strides[3];
    int s, h;
};

static __device__ __forceinline__ i64 place(const Places& p, i64 row) {
    const i64 token = row / p.h;
    return token / p.s * p.strides[0] + token % p.s * p.strides[1] + row % p.h * p.strides[2];
}

struct NormParams {
    const element* x;       // (b, s, h, size)
    const element* add;     // packed, or null: what is normalised is the sum
    const element* add_bias;  // (size), or null: of each row of `add`
    const element* weight;  // (size), or (h, size) by its stride
    const element* bias;    // likewise, or null
    element* sum;           // packed, or null
    element* out;           // packed
    Places places;
    i64 rows;      // b s h
    int size, weight_stride;
    int rms;       // whether the mean stays
    float offset;  // added to the weight
    float eps;
    int aligned;   // whether all can be read 16 bytes at a time
};

template <int PER>
static __device__ __forceinline__ void norm_one(const NormParams& p, i64 r, int lane) {
    const i64 packed = r * p.size, of_head = r % p.places.h * p.weight_stride;
    const element* from = p.x + place(p.places, r);
    auto numbers = [&](int c, float (&x)[PER]) {
        load<PER>(from + c, x);
        if (p.add) add_to<PER>(x, p.add + packed + c);
        if (p.add_bias) add_to<PER>(x, p.add_bias + c);
    };
    float mean = 0, square = 0;
    if (!p.rms) {
        for (int c = lane * PER; c < p.size; c += 32 * PER) {
            float x[PER];
            numbers(c, x);
#pragma unroll
            for (int i = 0; i < PER; ++i) mean += x[i];
        }
        mean = sum_of<32>(mean) / p.size;
    }
    // Not as a difference of two large sums.
    for (int c = lane * PER; c < p.size; c += 32 * PER) {
        float x[PER];
        numbers(c, x);
#pragma unroll
        for (int i = 0; i < PER; ++i) square += (x[i] - mean) * (x[i] - mean);
    }
    const float factor = 1 / sqrtf(sum_of<32>(square) / p.size + p.eps);
    for (int c = lane * PER; c < p.size; c += 32 * PER) {
        float x[PER], y[PER], weight[PER];
        numbers(c, x);
        load<PER>(p.weight + of_head + c, weight);
        if (p.sum) store<PER>(p.sum + packed + c, x);
#pragma unroll
        for (int i = 0; i < PER; ++i) y[i] = (x[i] - mean) * factor * (weight[i] + p.offset);
        if (p.bias) add_to<PER>(y, p.bias + of_head + c);
        store<PER>(p.out + packed + c, y);
    }
}

// A warp takes a row.
extern "C" __global__ void __launch_bounds__(THREADS) norm_rows(const NormParams p) {
    const i64 r = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (r >= p.rows) return;
    if (p.aligned) norm_one<PER_READ>(p, r, threadIdx.x % 32);
    else norm_one<1>(p, r, threadIdx.x % 32);
}

struct ActivateParams {
    const element* x;     // `rows` rows of `size` numbers, `x_stride` apart
    const element* bias;  // (size), or null
    const element* gate;  // as x, or null: what the activated is multiplied with
    const element* gate_bias;
    element* out;         // packed
    i64 x_stride, gate_stride;
    int rows, size;       // their product is less than 2^32
    int activation;       // 0: none, 1: GELU by the error function, 2: by the hyperbolic tangent, 3: SiLU, 4: ReLU
    int aligned;
};

static __device__ __forceinline__ float activated(float x, int activation) {
    switch (activation) {
        case 1: return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
        case 2: return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
        case 3: return x / (1 + exp2_fast(-x * LOG2_E));
        case 4: return x < 0 ? 0 : x;
        default: return x;
    }
}

template <int PER>
static __device__ __forceinline__ void activate_some(const ActivateParams& p, u32 n) {
    const u32 per_row = p.size / PER, r = n / per_row;
    if (r >= p.rows) return;
    const int c = n % per_row * PER;
    float x[PER];
    load<PER>(p.x + r * p.x_stride + c, x);
    if (p.bias) add_to<PER>(x, p.bias + c);
#pragma unroll
    for (int i = 0; i < PER; ++i) x[i] = activated(x[i], p.activation);
    if (p.gate) {
        float gate[PER];
        load<PER>(p.gate + r * p.gate_stride + c, gate);
        if (p.gate_bias) add_to<PER>(gate, p.gate_bias + c);
#pragma unroll
        for (int i = 0; i < PER; ++i) x[i] *= gate[i];
    }
    store<PER>(p.out + static_cast<i64>(r) * p.size + c, x);
}

extern "C" __global__ void __launch_bounds__(THREADS) activate_rows(const ActivateParams p) {
    const u32 n = blockIdx.x * THREADS + threadIdx.x;
    if (p.aligned) activate_some<PER_READ>(p, n);
    else activate_some<1>(p, n);
}

struct RotateParams {
    const element* x;    // (b, s, h, d)
    const element* cos;  // (b, s, pairs) packed, or (s, pairs) for all b
    const element* sin;
    element* out;        // packed
    Places places;
    i64 rows;            // b s h
    i64 of_b;            // tokens between the angles of two b: s or 0
    int d, pairs;
    int interleaved;      // whether number 2 i is turned with 2 i + 1, or i with i + pairs
};

// A warp takes a head of a token.
extern "C" __global__ void __launch_bounds__(THREADS) rotate_rows(const RotateParams p) {
    const i64 r = static_cast<i64>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (r >= p.rows) return;
    const element* from = p.x + place(p.places, r);
    const i64 token = r / p.places.h, angles = (token / p.places.s * p.of_b + token % p.places.s) * p.pairs;
    element* to = p.out + r * p.d;
    for (int i = threadIdx.x % 32; i < p.pairs; i += 32) {
        const int first = p.interleaved ? 2 * i : i, second = p.interleaved ? 2 * i + 1 : i + p.pairs;
        const float x = to_float(from[first]), y = to_float(from[second]);
        const float cos = to_float(p.cos[angles + i]), sin = to_float(p.sin[angles + i]);
        to[first] = from_float(x * cos - y * sin);
        to[second] = from_float(y * cos + x * sin);
    }
    for (int i = 2 * p.pairs + threadIdx.x % 32; i < p.d; i += 32) to[i] = from[i];
}
