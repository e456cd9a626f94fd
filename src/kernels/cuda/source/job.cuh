// What a block of threads does, and what both kernels do alike.

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

// The job of this block, and in `first` the first of its `rows` rows; the row may lie past the last one of the job.
static __device__ __forceinline__ Job job_of_block(const Params& p, int rows, int& first) {
    const int of_longest = p.s_q * (p.h / p.h_kv);  // in a ragged batch
    const int tiles = (of_longest + rows - 1) / rows;
    // The last queries first: under a causal mask they have most to do.
    first = (tiles - 1 - static_cast<int>(blockIdx.x) % tiles) * rows;
    return job_of(p, static_cast<int>(blockIdx.x) / tiles);
}

// Where row `index` of a job's queries is.
static __device__ __forceinline__ const element* query_at(const Params& p, const Job& job, int index) {
    return job.q + (index / job.group) * p.q_strides[1] + (index % job.group) * p.q_strides[2];
}

// The softmax goes on to scores up to `largest`: what is to be taken from them before exp2, and in `rescale` what sums and
// results so far are to be multiplied by.
static __device__ __forceinline__ float carry_on(float& most, float largest, float& rescale) {
    const float now = fmaxf(most, largest);
    // A row that has seen nothing yet: exp2(-inf - 0) = 0, where -inf + inf would be NaN.
    const float base = now == HIDDEN ? 0 : now;
    rescale = exp2_fast(most - base);
    most = now;
    return base;
}
