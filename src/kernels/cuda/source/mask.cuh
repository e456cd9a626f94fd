// Who sees whom, and what is added to the scores.

// One row of a job's queries.
struct Row {
    int from, to;  // the keys that lengths and bands let it see
    bool there;    // whether there is such a row
#if FEATURES & SLOPES
    int position;  // the key at which it stands
    float slope;   // in units of log 2, as scores are
#endif
#if FEATURES & BIAS
    const float* bias;  // of key 0
#endif
#if FEATURES & KEEP
    const unsigned char* keep;  // likewise
#endif
#if FEATURES & SEGMENTS
    i64 segment;
#endif
};

static __device__ __forceinline__ Row row_of(const Params& p, const Job& job, int index) {
    Row row;
    row.there = index / job.group < job.s_q;
    // What is no row sees nothing, but reads the masks of the first.
    const int i = row.there ? index / job.group : 0;
    row.from = 0;
    row.to = row.there ? job.s_kv : 0;
    const int position = i + (p.starts ? p.starts[job.b] : job.s_kv - job.s_q);
#if FEATURES & (SLOPES | BIAS | KEEP)
    const int head = job.h_kv * job.group + index % job.group;
#endif
#if FEATURES & SLOPES
    row.position = position;
    row.slope = p.slopes[head] * LOG2_E;
#endif
#if FEATURES & BIAS
    row.bias = p.bias + job.b * p.bias_strides[0] + head * p.bias_strides[1] + i * p.bias_strides[2];
#endif
#if FEATURES & KEEP
    row.keep = p.keep + job.b * p.keep_strides[0] + head * p.keep_strides[1] + i * p.keep_strides[2];
#endif
#if FEATURES & SEGMENTS
    row.segment = p.query_segments[static_cast<i64>(job.b) * job.s_q + i];
#endif
    if (p.lengths) row.to = smaller(row.to, p.lengths[job.b]);
    if (p.padding) row.to = smaller(row.to, i < p.padding[job.b] ? p.padding[job.b] : 0);
    if (p.query_ends) row.to = smaller(row.to, p.query_ends[static_cast<i64>(job.b) * job.s_q + i]);
    // In 64 bits: a limit may be as large as it likes.
    i64 end = static_cast<i64>(position) + p.right + 1, begin = static_cast<i64>(position) - p.left;
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

// Number `j` of those that lie `stride` apart, all within 4 GiB: in 32 bits and apart from the row's address, the product
// is the same for all rows.
template <typename T>
static __device__ __forceinline__ T at(const T* first, int j, i64 stride) {
    const u32 bytes = static_cast<u32>(j) * static_cast<u32>(stride * sizeof(T));
    return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + bytes);
}

// The score of a query for the key `j`, in units of log 2, from the product of both; HIDDEN where it is not seen. Without
// an early return: the compiler then takes no branch for each score.
static __device__ __forceinline__ float score(const Params& p, const Job& job, const Row& row, int j, float product) {
#if FEATURES & SOFTCAP
    product = p.softcap * LOG2_E * tanhf(product * (p.scale / p.softcap));
#else
    product *= p.scale * LOG2_E;
#endif
    const bool appended = j >= job.s_kv && j < job.s_kv + p.appended;
    const bool seen = j >= row.from && j < row.to;
    float masked = product;
#if FEATURES & SLOPES
    const float distance = static_cast<float>(row.position - j);
    masked -= row.slope * (p.symmetric ? fabsf(distance) : distance);
#endif
    // Read whether seen or not, as is a key that there is: then nothing is read under a condition.
#if FEATURES & (BIAS | KEEP | SEGMENTS)
    const int key = smaller(j, job.s_kv - 1);
#endif
#if FEATURES & BIAS
    const float bias = at(row.bias, key, p.bias_strides[3]);
    // A NaN is to be seen in the result.
    masked = bias <= LOWEST ? HIDDEN : masked + bias * LOG2_E;
#endif
#if FEATURES & KEEP
    masked = at(row.keep, key, p.keep_strides[3]) ? masked : HIDDEN;
#endif
#if FEATURES & SEGMENTS
    masked = at(p.key_segments + static_cast<i64>(job.b) * job.s_kv, key, 1) == row.segment ? masked : HIDDEN;
#endif
    return seen ? masked : appended ? product : HIDDEN;
}
