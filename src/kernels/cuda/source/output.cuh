// Which keys a block goes over, and what it writes.

// The first key of the block's first tile of BN, and in `end` where its last one ends.
static __device__ __forceinline__ int keys_of_block(const Params& p, const Job& job, const Extent& seen, int& end) {
    int start = smaller(seen.from, job.s_kv) / BN * BN;
    end = p.appended ? job.s_kv + p.appended : seen.to;
#if SPLIT
    const int tiles = end > start ? (end - start + BN - 1) / BN : 0;
    const int share = (tiles + p.splits - 1) / p.splits * BN;
    start += static_cast<int>(blockIdx.y) * share;
    end = smaller(end, start + share);
#endif
    return start;
}

// What the result of a head is multiplied by at its end: the sink takes its share, a row that sees nothing is zeros.
static __device__ __forceinline__ float last_factor(const Params& p, int head, float most, float sum) {
    if (!p.sinks) return sum == 0 ? 0 : 1 / sum;
    float sink = p.sinks[head] * LOG2_E;
    float with = fmaxf(most, sink);
    if (with == HIDDEN) return 0;
    float scale = exp2_fast(most - with);
    return scale / (sum * scale + exp2_fast(sink - with));
}

#if SPLIT
// A block leaves what it has summed, then its largest score and the sum of its weights; `combine` finishes.
typedef float written;
static __device__ __forceinline__ written to_written(float x) { return x; }
#else
typedef element written;
static __device__ __forceinline__ written to_written(float x) { return from_float(x); }
#endif

// Where row `index` of a job is written, and in `factor` what it is multiplied by before. `leader`: whether the thread is
// the first of those that share the row.
static __device__ __forceinline__ written* begin_row(
    const Params& p, const Job& job, int index, bool leader, float most, float sum, float& factor) {
    const int head = job.h_kv * job.group + index % job.group;
    const i64 row = (job.query_token + index / job.group) * p.h + head;
#if SPLIT
    float* partial = p.partials + (row * p.splits + blockIdx.y) * (p.d_v + 2);
    if (leader) partial[p.d_v] = most, partial[p.d_v + 1] = sum;
    factor = 1;
    return partial;
#else
    factor = last_factor(p, head, most, sum);
    return static_cast<element*>(p.out) + row * p.d_v;
#endif
}

#if SPLIT
// Puts together what the blocks that shared the keys of a query have left: a block for each query of each head (the second
// half of Dao 2023's flash-decoding). Each of its warps takes every COMBINE_WARPS-th part, then the warps' sums are joined.
extern "C" __global__ void __launch_bounds__(32 * COMBINE_WARPS) combine(const Params p) {
    SHARED_BYTES(shared);
    float* joined = reinterpret_cast<float*>(shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = p.d_v + 2;
    const i64 row = blockIdx.x;
    const float* partials = p.partials + row * p.splits * width;

    float most = HIDDEN, sum = 0, result[(DV + 31) / 32];
    for (int c = 0; c < (DV + 31) / 32; ++c) result[c] = 0;
    auto add = [&](const float* part) {
        const float others = part[p.d_v];
        float rescale;
        const float factor = exp2_fast(others - carry_on(most, others, rescale));
        sum = sum * rescale + part[p.d_v + 1] * factor;
#pragma unroll
        for (int c = 0; c < (DV + 31) / 32; ++c)
            if (lane + 32 * c < p.d_v) result[c] = result[c] * rescale + part[lane + 32 * c] * factor;
    };
#pragma unroll 4
    for (int split = warp; split < p.splits; split += COMBINE_WARPS) add(partials + split * width);

    float* own = joined + warp * width;
    for (int c = 0; c < (DV + 31) / 32; ++c)
        if (lane + 32 * c < p.d_v) own[lane + 32 * c] = result[c];
    if (lane == 0) own[p.d_v] = most, own[p.d_v + 1] = sum;
    __syncthreads();
    if (warp > 0) return;
    for (int other = 1; other < COMBINE_WARPS; ++other) add(joined + other * width);
    const float factor = last_factor(p, static_cast<int>(row % p.h), most, sum);
    for (int c = 0; c < (DV + 31) / 32; ++c)
        if (lane + 32 * c < p.d_v) static_cast<element*>(p.out)[row * p.d_v + lane + 32 * c] = from_float(result[c] * factor);
}
#endif
