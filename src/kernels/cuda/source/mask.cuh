// Masks: which keys a query sees, and what is added to its scores.

// One query row of a work item.
struct QueryRow {
    int key_begin, key_end;  // keys that lengths and windows leave visible
    bool in_bounds;          // false for rows past the last query
#if FEATURES & SLOPES
    int position;  // among the keys
    float slope;   // in units of log 2, like the scores
#endif
#if FEATURES & BIAS
    const float* bias;  // of key 0
#endif
#if FEATURES & KEEP
    const unsigned char* keep;  // of key 0
#endif
#if FEATURES & SEGMENTS
    i64 segment;
#endif
};

static __device__ __forceinline__ QueryRow init_row(const AttentionParams& p, const WorkItem& item, int index) {
    QueryRow row;
    row.in_bounds = index / item.group < item.s_q;
    // A row out of bounds sees no key, but reads the mask of query 0.
    const int i = row.in_bounds ? index / item.group : 0;
    row.key_begin = 0;
    row.key_end = row.in_bounds ? item.s_kv : 0;
    const int position = i + (p.query_starts ? p.query_starts[item.b] : item.s_kv - item.s_q);
#if FEATURES & (SLOPES | BIAS | KEEP)
    const int head = item.h_kv * item.group + index % item.group;
#endif
#if FEATURES & SLOPES
    row.position = position;
    row.slope = p.slopes[head] * LOG2_E;
#endif
#if FEATURES & BIAS
    row.bias = p.bias + item.b * p.bias_strides[0] + head * p.bias_strides[1] + i * p.bias_strides[2];
#endif
#if FEATURES & KEEP
    row.keep = p.keep + item.b * p.keep_strides[0] + head * p.keep_strides[1] + i * p.keep_strides[2];
#endif
#if FEATURES & SEGMENTS
    row.segment = p.query_segments[static_cast<i64>(item.b) * item.s_q + i];
#endif
    if (p.key_lengths) row.key_end = min_int(row.key_end, p.key_lengths[item.b]);
    if (p.padding_lengths) {
        row.key_end = min_int(row.key_end, i < p.padding_lengths[item.b] ? p.padding_lengths[item.b] : 0);
    }
    if (p.query_lengths) {
        row.key_end = min_int(row.key_end, p.query_lengths[static_cast<i64>(item.b) * item.s_q + i]);
    }
    // In 64 bits, because a window may be as large as an int.
    const i64 end = static_cast<i64>(position) + p.window_size_right + 1;
    const i64 begin = static_cast<i64>(position) - p.window_size_left;
    if (p.window_size_right >= 0 && end < row.key_end) row.key_end = end > 0 ? static_cast<int>(end) : 0;
    if (p.window_size_left >= 0 && begin > 0) {
        row.key_begin = begin < row.key_end ? static_cast<int>(begin) : row.key_end;
    }
    return row;
}

// Keys that any row of a block sees, and within them the keys that all rows see: tiles outside the first range are
// skipped, tiles inside the second need no mask.
struct KeyRange {
    int begin, end, full_begin, full_end;
};

static __device__ __forceinline__ void extend_range(KeyRange* shared, const QueryRow& row) {
    if (!row.in_bounds) return;
    if (row.key_begin < row.key_end) {
        atomicMin(&shared->begin, row.key_begin);
        atomicMax(&shared->end, row.key_end);
    }
    atomicMax(&shared->full_begin, row.key_begin);
    atomicMin(&shared->full_end, row.key_end);
}

// Element `j` of an array with a stride, at most 4 GiB long. The byte offset is computed in 32 bits and apart from
// the row's address, so that the compiler computes it once for all rows.
template <typename T>
static __device__ __forceinline__ T load_strided(const T* first, int j, i64 stride) {
    const u32 bytes = static_cast<u32>(j) * static_cast<u32>(stride * sizeof(T));
    return *reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + bytes);
}

// Masked score of a query row and key `j`, in units of log 2, from their dot product; NEG_INFINITY where the key is
// masked. There is no early return, so that the compiler emits no branch per score.
static __device__ __forceinline__ float masked_score(
    const AttentionParams& p, const WorkItem& item, const QueryRow& row, int j, float dot_product) {
#if FEATURES & SOFTCAP
    const float score = p.softcap * LOG2_E * tanhf(dot_product * (p.scale / p.softcap));
#else
    const float score = dot_product * (p.scale * LOG2_E);
#endif
    const bool appended = j >= item.s_kv && j < item.s_kv + p.appended_keys;
    const bool visible = j >= row.key_begin && j < row.key_end;
    float masked = score;
#if FEATURES & SLOPES
    const float distance = static_cast<float>(row.position - j);
    masked -= row.slope * (p.symmetric ? fabsf(distance) : distance);
#endif
    // Mask arrays are read for masked keys too, at an index that exists: no load depends on a condition.
#if FEATURES & (BIAS | KEEP | SEGMENTS)
    const int key = min_int(j, item.s_kv - 1);
#endif
#if FEATURES & BIAS
    const float bias = load_strided(row.bias, key, p.bias_strides[3]);
    // The comparisons are false for NaN, so that a NaN in the bias reaches the output. The product must not overflow: a
    // finite bias above the lowest, such as the lowest of bf16, leaves the key visible.
    const float largest = -LOWEST_FINITE / LOG2_E;
    const float bounded = bias > largest ? largest : bias < -largest ? -largest : bias;
    masked = bias <= LOWEST_FINITE ? NEG_INFINITY : masked + bounded * LOG2_E;
#endif
#if FEATURES & KEEP
    masked = load_strided(row.keep, key, p.keep_strides[3]) ? masked : NEG_INFINITY;
#endif
#if FEATURES & SEGMENTS
    // In 64 bits: up to 2^30 keys of 8 bytes each are more than 4 GiB.
    const i64* key_segments = p.key_segments + static_cast<i64>(item.b) * item.s_kv;
    masked = key_segments[key] == row.segment ? masked : NEG_INFINITY;
#endif
    return visible ? masked : appended ? score : NEG_INFINITY;
}
