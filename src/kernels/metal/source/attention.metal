// Attention with one pass over the keys (online softmax), in plain Metal: no matrix operations of a simdgroup, no bfloat
// vectors, no function constants. The host defines T, the element type; D and D_V, elements of a head of keys and of values;
// KEYS, keys in threadgroup memory at a time.
//
// A threadgroup computes QUERIES queries of one head of one sequence. Four lanes share a query: lane l has the elements
// l, l + 4, l + 8, ... of it and of its output in registers. Keys and values come to threadgroup memory as floats, from
// where the eight queries of a simdgroup read the same four numbers at a time.

#include <metal_stdlib>
using namespace metal;

enum {
    QUERIES = 32,
    THREADS = 4 * QUERIES,
    D_LANE = (D + 3) / 4,
    D_V_LANE = (D_V + 3) / 4,
    // Scores that are computed before the maximum is updated. It divides KEYS.
    CHUNK = 4
};

// The struct Params of params.rs. Strides and offsets count elements.
struct Params {
    long q_strides[2];  // between tokens, between heads
    long k_strides[2];
    long v_strides[2];
    int h;
    int h_kv;
    int left;   // visible keys before and after the position of a query; -1: all
    int right;
    float scale;
    float softcap;  // 0: none
    int has_sinks;
    int reserved;  // no padding is left
};

// The struct Sequence of params.rs.
struct Sequence {
    long q;  // where the first token is
    long k;
    long v;
    long out;
    int queries;
    int position;         // of query 0 among the keys
    int visible_keys;     // the first ones
    int visible_queries;  // the others see nothing
};

// The first key that a query sees, and the one after the last.
static int first_key(constant Params& params, Sequence sequence, int query) {
    int position = query + sequence.position;
    return params.left < 0 ? 0 : max(position - params.left, 0);
}

static int last_key(constant Params& params, Sequence sequence, int query) {
    int position = query + sequence.position;
    int last = query < sequence.visible_queries ? sequence.visible_keys : 0;
    // Not position + right + 1, which may overflow.
    return params.right < last - position - 1 && params.right >= 0 ? max(position + params.right + 1, 0) : last;
}

// The sum over the four lanes of a query.
static float sum_of_lanes(float x) {
    x += simd_shuffle_xor(x, 1);
    return x + simd_shuffle_xor(x, 2);
}

kernel void attention(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device T* out [[buffer(3)]],
    device const Sequence* sequences [[buffer(4)]],
    device const float* sinks [[buffer(5)]],
    constant Params& params [[buffer(6)]],
    threadgroup float* tile [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint index [[thread_index_in_threadgroup]]) {
    int head = int(group.y) % params.h;
    Sequence sequence = sequences[int(group.y) / params.h];
    int first = int(group.x) * QUERIES;
    if (first >= sequence.queries) return;  // the whole threadgroup
    int query = first + int(index) / 4, lane = int(index) % 4;
    bool in_sequence = query < sequence.queries;
    int head_kv = head / (params.h / params.h_kv);

    float q_lane[D_LANE], out_lane[D_V_LANE];
    long q_start = sequence.q + query * params.q_strides[0] + head * params.q_strides[1];
    for (int i = 0; i < D_LANE; ++i) {
        int e = 4 * i + lane;
        q_lane[i] = in_sequence && e < D ? float(q[q_start + e]) * params.scale : 0.0f;
    }
    for (int i = 0; i < D_V_LANE; ++i) out_lane[i] = 0.0f;
    float largest = -INFINITY, sum = 0.0f;

    // The keys that some query of the threadgroup sees.
    int last = min(min(first + QUERIES, sequence.queries), sequence.visible_queries) - 1;
    int start = first_key(params, sequence, first), end = last < first ? 0 : last_key(params, sequence, last);
    int own_start = first_key(params, sequence, query), own_end = last_key(params, sequence, query);
    threadgroup float* k_tile = tile;                        // [KEYS][4 * D_LANE]
    threadgroup float* v_tile = tile + KEYS * 4 * D_LANE;    // [KEYS][4 * D_V_LANE]
    for (; start < end; start += KEYS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int n = int(index); n < KEYS * 4 * D_LANE; n += THREADS) {
            int key = start + n / (4 * D_LANE), e = n % (4 * D_LANE);
            long at = sequence.k + key * params.k_strides[0] + head_kv * params.k_strides[1] + e;
            k_tile[n] = key < end && e < D ? float(k[at]) : 0.0f;
        }
        for (int n = int(index); n < KEYS * 4 * D_V_LANE; n += THREADS) {
            int key = start + n / (4 * D_V_LANE), e = n % (4 * D_V_LANE);
            long at = sequence.v + key * params.v_strides[0] + head_kv * params.v_strides[1] + e;
            v_tile[n] = key < end && e < D_V ? float(v[at]) : 0.0f;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        for (int chunk = 0; chunk < KEYS; chunk += CHUNK) {
            float scores[CHUNK];
            float chunk_largest = largest;
            bool all_infinite = largest == -INFINITY;  // of what was seen, all scores are -infinity
            for (int j = 0; j < CHUNK; ++j) {
                float score = 0.0f;
                for (int i = 0; i < D_LANE; ++i) {
                    score += q_lane[i] * k_tile[(chunk + j) * 4 * D_LANE + 4 * i + lane];
                }
                score = sum_of_lanes(score);
                if (params.softcap != 0.0f) score = params.softcap * precise::tanh(score / params.softcap);
                scores[j] = score;
                int key = start + chunk + j;
                if (key >= own_start && key < own_end) {
                    chunk_largest = max(chunk_largest, score);
                    all_infinite = all_infinite && score == -INFINITY;
                }
            }
            // Scores of -infinity have the weight 0, and exp(-inf - -inf) would be NaN. A NaN is no such score.
            if (!all_infinite && start + chunk + CHUNK > own_start && start + chunk < own_end) {
                float factor = sum == 0.0f ? 0.0f : precise::exp(largest - chunk_largest);
                sum *= factor;
                for (int i = 0; i < D_V_LANE; ++i) out_lane[i] *= factor;
                for (int j = 0; j < CHUNK; ++j) {
                    int key = start + chunk + j;
                    // Not a product with 0: the values of a hidden key may be anything.
                    if (key >= own_start && key < own_end) {
                        float weight = precise::exp(scores[j] - chunk_largest);
                        sum += weight;
                        for (int i = 0; i < D_V_LANE; ++i) {
                            out_lane[i] += weight * v_tile[(chunk + j) * 4 * D_V_LANE + 4 * i + lane];
                        }
                    }
                }
                largest = chunk_largest;
            }
        }
    }
    if (!in_sequence) return;
    float with_sink = params.has_sinks != 0 ? max(largest, sinks[head]) : -INFINITY;
    if (with_sink != -INFINITY) {
        float factor = precise::exp(largest - with_sink);
        sum = sum * factor + precise::exp(sinks[head] - with_sink);
        for (int i = 0; i < D_V_LANE; ++i) out_lane[i] *= factor;
    }
    long out_start = sequence.out + (long(query) * params.h + head) * D_V;
    for (int i = 0; i < D_V_LANE; ++i) {
        int e = 4 * i + lane;
        if (e < D_V) out[out_start + e] = T(sum == 0.0f ? 0.0f : out_lane[i] / sum);
    }
}
