// Work of one thread block, and the online softmax step of both attention kernels.

// Attention of one key-value head in one sequence. Its queries are the rows of one matrix: query after query, and
// within a query the heads of the group.
struct WorkItem {
    int b, h_kv, group;
    int s_q, s_kv;    // s_kv without appended keys
    i64 query_token;  // index of its first query among the queries of all sequences
    const Element* q;
    const Element* k;
    const Element* v;
};

// `index` counts key-value heads within sequences.
static __device__ __forceinline__ WorkItem work_item(const AttentionParams& p, int index) {
    WorkItem item;
    item.b = index / p.h_kv;
    item.h_kv = index % p.h_kv;
    item.group = p.h / p.h_kv;
    item.s_q = p.s_q;
    item.s_kv = p.s_kv;
    i64 q = item.b * p.q_strides[0], k = item.b * p.k_strides[0], v = item.b * p.v_strides[0];
    item.query_token = static_cast<i64>(item.b) * p.s_q;
    if (p.offsets) {
        int start = p.offsets[item.b];
        item.s_q = item.s_kv = p.offsets[item.b + 1] - start;
        q = start * p.q_strides[1], k = start * p.k_strides[1], v = start * p.v_strides[1];
        item.query_token = start;
    }
    item.q = static_cast<const Element*>(p.q) + q + static_cast<i64>(item.h_kv) * item.group * p.q_strides[2];
    item.k = static_cast<const Element*>(p.k) + k + item.h_kv * p.k_strides[2];
    item.v = static_cast<const Element*>(p.v) + v + item.h_kv * p.v_strides[2];
    return item;
}

// The work item of this block, and in `first_row` the first of the block's `rows` query rows, which may be past the
// end.
static __device__ __forceinline__ WorkItem work_item_of_block(const AttentionParams& p, int rows, int& first_row) {
    const int longest = p.s_q * (p.h / p.h_kv);  // in a ragged batch s_q is the longest sequence
    const int tiles = (longest + rows - 1) / rows;
    // The last queries first: under a causal mask they have the most keys.
    first_row = (tiles - 1 - static_cast<int>(blockIdx.x) % tiles) * rows;
    return work_item(p, static_cast<int>(blockIdx.x) / tiles);
}

// Address of query row `index` of a work item.
static __device__ __forceinline__ const Element* query_row(const AttentionParams& p, const WorkItem& item, int index) {
    return item.q + (index / item.group) * p.q_strides[1] + (index % item.group) * p.q_strides[2];
}

// Online softmax step (Milakov & Gimelshein 2018): raises `row_max` to `tile_max`. Returns what to subtract from the
// tile's scores before exp2; `factor` is what earlier sums and outputs have to be multiplied by.
static __device__ __forceinline__ float rescale(float& row_max, float tile_max, float& factor) {
    const float new_max = fmaxf(row_max, tile_max);
    // While a row has seen no key: exp2(-inf - 0) = 0, where -inf + inf would be NaN.
    const float base = new_max == NEG_INFINITY ? 0 : new_max;
    factor = exp2_fast(row_max - base);
    row_max = new_max;
    return base;
}
