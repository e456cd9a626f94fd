// What a call of attention is, as the host says it (params.rs has the same fields in the same order). Strides count
// elements. FEATURES: what is done with scores besides scaling them and looking at ranges of keys, a sum of the numbers
// below; what is not in it costs nothing. SPLIT: whether several blocks share the keys of a tile of queries.

#define SOFTCAP 1
#define SLOPES 2
#define BIAS 4
#define KEEP 8
#define SEGMENTS 16

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
    float* partials;  // (queries of all rows, h, splits, d_v + 2) if blocks share keys, else null: see output.cuh
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
    int splits;       // how many blocks share the keys of a tile of queries
    float scale;
    float softcap;    // 0: none
};
