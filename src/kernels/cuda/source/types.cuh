// What a call is, as the host says it (params.rs has the same fields in the same order), and its numbers.
// Strides count elements. ELEMENT: 0 is f32, 1 is f16, 2 is bf16. FEATURES: what is done with scores besides scaling them
// and looking at ranges of keys, a sum of the numbers below; what is not in it costs nothing.

#define SOFTCAP 1
#define SLOPES 2
#define BIAS 4
#define KEEP 8
#define SEGMENTS 16

typedef long long i64;

struct Params {
    const void* q;  // (b, s_q, h, d), or (tokens, h, d) with `rows`
    const void* k;
    const void* v;
    void* out;  // as q, with d_v, packed
    const float* sinks;   // (h) or null
    const float* slopes;  // (h) or null: -slope times the distance is added to the scores
    const float* bias;    // broadcasts to (b, h, s_q, s_kv) by its strides, or null
    const unsigned char* keep;  // likewise; 0 = hidden
    const i64* query_segments;  // (b, s_q), packed, or null
    const i64* key_segments;    // (b, s_kv), packed
    const int* lengths;     // (b) or null: keys that there are
    const int* padding;     // (b) or null: tokens that there are, as queries and as keys
    const int* query_ends;  // (b, s_q) or null: keys that a query sees
    const int* starts;      // (b) or null: the key at which query 0 stands; null: the last query at the last key
    const int* rows;        // (b + 1) or null: where the rows of a ragged batch start
    i64 q_strides[3];  // of b, s, h
    i64 k_strides[3];
    i64 v_strides[3];
    i64 bias_strides[4];
    i64 keep_strides[4];
    int b, h, h_kv, s_q, s_kv;
    int appended;     // keys after s_kv that every query sees
    int d, d_v;
    int left, right;  // keys seen before and after a query's own position; -1: no limit
    int symmetric;    // whether keys after a query are as far as those before it
    int aligned;      // whether q, k and v can be read 16 bytes at a time
    float scale;
    float softcap;    // 0: none
};

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
