// Parameters of an attention launch. The struct in params.rs has the same fields in the same order. Strides count
// elements.
//
// FEATURES is the sum of the flags below: what the kernel does to scores besides scaling them and limiting keys to a
// range. Code for a feature that is off is not compiled. SPLIT: whether several blocks share the keys of one tile of
// queries.

#define SOFTCAP 1
#define SLOPES 2
#define BIAS 4
#define KEEP 8
#define SEGMENTS 16

struct AttentionParams {
    const void* q;  // (b, s_q, h, d); with `offsets` (tokens, h, d)
    const void* k;
    const void* v;
    void* out;                    // shape of q with d_v, contiguous
    const float* sinks;           // (h) or null
    const float* slopes;          // (h) or null: -slope times the distance is added to the score
    const float* bias;            // broadcast to (b, h, s_q, s_kv) by its strides, or null
    const unsigned char* keep;    // broadcast in the same way, or null; 0 masks the key
    const i64* query_segments;    // (b, s_q), contiguous, or null
    const i64* key_segments;      // (b, s_kv), contiguous
    const int* key_lengths;       // (b) or null: number of real keys
    const int* padding_lengths;   // (b) or null: number of real tokens, as queries and as keys
    const int* query_lengths;     // (b, s_q) or null: number of keys that a query may see
    const int* query_starts;      // (b) or null: key position of query 0; null aligns the last query with the last key
    const int* offsets;           // (b + 1) or null: where each sequence of a ragged batch starts
    float* partials;              // (queries of all sequences, h, splits, d_v + 2) if SPLIT, else null: see output.cuh
    i64 q_strides[3];             // of b, s, h
    i64 k_strides[3];
    i64 v_strides[3];
    i64 bias_strides[4];
    i64 keep_strides[4];
    int b, h, h_kv, s_q, s_kv;
    int appended_keys;            // keys after s_kv that every query sees
    int d, d_v;
    int window_size_left;         // visible keys before a query's position; -1: no limit
    int window_size_right;        // visible keys after it; -1: no limit
    int symmetric;                // whether slopes use the absolute distance
    int vectorized;               // whether q, k and v can be read 16 bytes at a time
    int splits;                   // blocks that share the keys of a tile of queries
    float scale;
    float softcap;                // 0: none
};
