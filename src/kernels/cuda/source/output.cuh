// Key tiles that a block visits, normalization and output, and the kernel that combines split keys.

// The first key of the block's first key tile, and in `end` where its last tile ends.
static __device__ __forceinline__ int key_tiles_of_block(
    const AttentionParams& p, const WorkItem& item, const KeyRange& range, int& end) {
    int start = min_int(range.begin, item.s_kv) / BLOCK_N * BLOCK_N;
    end = p.appended_keys ? item.s_kv + p.appended_keys : range.end;
#if SPLIT
    const int tiles = end > start ? (end - start + BLOCK_N - 1) / BLOCK_N : 0;
    const int share = (tiles + p.splits - 1) / p.splits * BLOCK_N;
    start += static_cast<int>(blockIdx.y) * share;
    end = min_int(end, start + share);
#endif
    return start;
}

// Factor that normalizes an output row: 1 / row_sum, or less where a sink takes part of the softmax; 0 for a fully
// masked row.
static __device__ __forceinline__ float normalizer(const AttentionParams& p, int head, float row_max, float row_sum) {
    if (!p.sinks) return row_sum == 0 ? 0 : 1 / row_sum;
    float sink = p.sinks[head] * LOG2_E;
    float max_with_sink = fmaxf(row_max, sink);
    if (max_with_sink == NEG_INFINITY) return 0;
    float scale = exp2_fast(row_max - max_with_sink);
    return scale / (row_sum * scale + exp2_fast(sink - max_with_sink));
}

#if SPLIT
// Each split writes its unnormalized output row, then its row_max and row_sum; `combine` merges and normalizes them.
typedef float OutputElement;
static __device__ __forceinline__ OutputElement to_output(float x) { return x; }
#else
typedef Element OutputElement;
static __device__ __forceinline__ OutputElement to_output(float x) { return from_float(x); }
#endif

// Address of the output of query row `index`, and in `factor` what the row is multiplied by before it is written.
// `leader`: whether the thread is the first of those that share the row.
static __device__ __forceinline__ OutputElement* output_row(
    const AttentionParams& p, const WorkItem& item, int index, bool leader, float row_max, float row_sum,
    float& factor) {
    const int head = item.h_kv * item.group + index % item.group;
    const i64 row = (item.query_token + index / item.group) * p.h + head;
#if SPLIT
    float* partial = p.partials + (row * p.splits + blockIdx.y) * (p.d_v + 2);
    if (leader) partial[p.d_v] = row_max, partial[p.d_v + 1] = row_sum;
    factor = 1;
    return partial;
#else
    factor = normalizer(p, head, row_max, row_sum);
    return static_cast<Element*>(p.out) + row * p.d_v;
#endif
}

#if SPLIT
// Combines the partial results of split keys, one block per query and head (the second step of flash-decoding, Dao
// 2023). Each warp merges every COMBINE_WARPS-th split, then warp 0 merges the warps.
extern "C" __global__ void __launch_bounds__(32 * COMBINE_WARPS) combine(const AttentionParams p) {
    SHARED_BYTES(shared);
    float* merged = reinterpret_cast<float*>(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = p.d_v + 2;
    const i64 row = blockIdx.x;
    const float* partials = p.partials + row * p.splits * width;

    float row_max = NEG_INFINITY, row_sum = 0, acc[(HEAD_DIM_V + 31) / 32];
    for (int c = 0; c < (HEAD_DIM_V + 31) / 32; ++c) acc[c] = 0;
    auto merge = [&](const float* partial) {
        const float partial_max = partial[p.d_v];
        float factor;
        const float partial_factor = exp2_fast(partial_max - rescale(row_max, partial_max, factor));
        row_sum = row_sum * factor + partial[p.d_v + 1] * partial_factor;
#pragma unroll
        for (int c = 0; c < (HEAD_DIM_V + 31) / 32; ++c)
            if (lane + 32 * c < p.d_v) acc[c] = acc[c] * factor + partial[lane + 32 * c] * partial_factor;
    };
#pragma unroll 4
    for (int split = warp; split < p.splits; split += COMBINE_WARPS) merge(partials + split * width);

    float* own = merged + warp * width;
    for (int c = 0; c < (HEAD_DIM_V + 31) / 32; ++c)
        if (lane + 32 * c < p.d_v) own[lane + 32 * c] = acc[c];
    if (lane == 0) own[p.d_v] = row_max, own[p.d_v + 1] = row_sum;
    __syncthreads();
    if (warp > 0) return;
    for (int other = 1; other < COMBINE_WARPS; ++other) merge(merged + other * width);
    const float factor = normalizer(p, static_cast<int>(row % p.h), row_max, row_sum);
    Element* out = static_cast<Element*>(p.out) + row * p.d_v;
    for (int c = 0; c < (HEAD_DIM_V + 31) / 32; ++c)
        if (lane + 32 * c < p.d_v) out[lane + 32 * c] = from_float(acc[c] * factor);
}
#endif
