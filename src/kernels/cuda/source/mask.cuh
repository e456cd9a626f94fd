// Who sees whom, and what is added to the scores.

// The attention of one key-value head in one row of the batch: its queries are the rows of one matrix, query after query,
// and for each query the heads of the group one after the other.
struct Job {
    int b, h_kv, group;
    int s_q, s_kv;    // s_kv without appended keys
    i64 query_token;  // where its first query is stored among all
    const element* q;
    const element* k;
    const element* v;
};

// One row of that matrix.
struct Row {
    int i, head;
    int from, to;  // the keys that lengths and bands let it see
    int position;  // the key at which it stands
    bool there;    // whether there is such a row
};

// `index` counts key-value heads within rows of the batch.
static __device__ __forceinline__ Job job_of(const Params& p, int index) {
    Job job;
    job.b = index / p.h_kv;
    job.h_kv = index % p.h_kv;
    job.group = p.h / p.h_kv;
    job.s_q = p.s_q;
    job.s_kv = p.s_kv;
    i64 q = job.b * p.q_strides[0], k = job.b * p.k_strides[0], v = job.b * p.v_strides[0];
    job.query_token = static_cast<i64>(job.b) * p.s_q;
    if (p.rows) {
        int start = p.rows[job.b];
        job.s_q = job.s_kv = p.rows[job.b + 1] - start;
        q = start * p.q_strides[1], k = start * p.k_strides[1], v = start * p.v_strides[1];
        job.query_token = start;
    }
    job.q = static_cast<const element*>(p.q) + q + static_cast<i64>(job.h_kv) * job.group * p.q_strides[2];
    job.k = static_cast<const element*>(p.k) + k + job.h_kv * p.k_strides[2];
    job.v = static_cast<const element*>(p.v) + v + job.h_kv * p.v_strides[2];
    return job;
}

static __device__ __forceinline__ Row row_of(const Params& p, const Job& job, int index) {
    Row row;
    row.i = index / job.group;
    row.head = job.h_kv * job.group + index % job.group;
    row.from = 0;
    row.to = job.s_kv;
    row.position = row.i + (p.starts ? p.starts[job.b] : job.s_kv - job.s_q);
    row.there = row.i < job.s_q;
    if (!row.there) {
        // It sees nothing: no mask is looked at outside its bounds.
        row.to = 0;
        return row;
    }
    if (p.lengths) row.to = smaller(row.to, p.lengths[job.b]);
    if (p.padding) row.to = smaller(row.to, row.i < p.padding[job.b] ? p.padding[job.b] : 0);
    if (p.query_ends) row.to = smaller(row.to, p.query_ends[static_cast<i64>(job.b) * job.s_q + row.i]);
    // In 64 bits: a limit may be as large as it likes.
    i64 end = static_cast<i64>(row.position) + p.right + 1, begin = static_cast<i64>(row.position) - p.left;
    if (p.right >= 0 && end < row.to) row.to = end > 0 ? static_cast<int>(end) : 0;
    if (p.left >= 0 && begin > 0) row.from = begin < row.to ? static_cast<int>(begin) : row.to;
    return row;
}

// What all rows of a block see, and any of them: so that whole tiles are skipped, or taken without a look.
struct Extent {
    int from, to, inner_from, inner_to;
};

static __device__ __forceinline__ void extend(Extent* shared, const Row& row) {
    if (!row.there) return;
    if (row.from < row.to) {
        atomicMin(&shared->from, row.from);
        atomicMax(&shared->to, row.to);
    }
    atomicMax(&shared->inner_from, row.from);
    atomicMin(&shared->inner_to, row.to);
}

// The score of a query for the key `j`, in units of log 2, from the product of both; HIDDEN where it is not seen.
static __device__ __forceinline__ float score(const Params& p, const Job& job, const Row& row, int j, float product) {
#if FEATURES & SOFTCAP
    product = p.softcap * tanhf(product * p.scale / p.softcap) * LOG2_E;
#else
    product *= p.scale * LOG2_E;
#endif
    if (j >= job.s_kv) return j < job.s_kv + p.appended ? product : HIDDEN;
    if (j < row.from || j >= row.to) return HIDDEN;
#if FEATURES & SLOPES
    float distance = static_cast<float>(row.position - j);
    product -= p.slopes[row.head] * (p.symmetric ? fabsf(distance) : distance) * LOG2_E;
#endif
#if FEATURES & BIAS
    const i64* of_bias = p.bias_strides;
    float bias = p.bias[job.b * of_bias[0] + row.head * of_bias[1] + row.i * of_bias[2] + j * of_bias[3]];
    if (bias <= LOWEST) return HIDDEN;
    product += bias * LOG2_E;
#endif
#if FEATURES & KEEP
    const i64* of_keep = p.keep_strides;
    if (!p.keep[job.b * of_keep[0] + row.head * of_keep[1] + row.i * of_keep[2] + j * of_keep[3]]) return HIDDEN;
#endif
#if FEATURES & SEGMENTS
    const i64 *of_query = p.query_segment_strides, *of_key = p.key_segment_strides;
    if (p.query_segments[job.b * of_query[0] + row.i * of_query[1]] != p.key_segments[job.b * of_key[0] + j * of_key[1]])
        return HIDDEN;
#endif
    return product;
}

// What a row's sum and result are multiplied by at its end: the sink takes its share, a row that sees nothing is zeros.
static __device__ __forceinline__ float last_factor(const Params& p, int head, float most, float sum) {
    if (!p.sinks) return sum == 0 ? 0 : 1 / sum;
    float sink = p.sinks[head] * LOG2_E;
    float with = fmaxf(most, sink);
    if (with == HIDDEN) return 0;
    float scale = exp2_fast(most - with);
    return scale / (sum * scale + exp2_fast(sink - with));
}
