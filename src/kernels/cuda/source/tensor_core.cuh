// Attention in f16 and bf16 on tensor cores: compute capability 8.0 and newer. Products of 16-bit numbers are summed in
// f32, the softmax is f32, its weights are rounded to the element type before they multiply the values (Dao 2023).
//
// Each of the WARPS warps has TILES times 16 rows of queries and goes over the keys BN at a time. In a warp, lane l has of
// each 16 x 8 block of scores or results rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next (PTX's mma.m16n8k16).
// While scores are computed the values are on their way, while results are summed the next keys are.
// D, DV: numbers of a head, rounded up to multiples of 16.

#define BM (WARPS * TILES * 16)
// 16 bytes more a row: eight rows of a block then lie in all banks.
#define LD_QK (D + 8)
#define LD_V (DV + 8)

// Begins to bring rows of `width` numbers into shared memory, zeros after `rows` and after `width`.
template <int ROWS, int COLUMNS, int LD, typename Place>
static __device__ __forceinline__ void fetch_begin(u16* to, int rows, int width, bool aligned, Place place) {
    const int READS = ROWS * (COLUMNS / 8);
    if (aligned) {
#pragma unroll 4
        for (int first = 0; first < READS; first += THREADS) {
            const int n = first + threadIdx.x, r = n / (COLUMNS / 8), c = n % (COLUMNS / 8) * 8;
            const bool there = r < rows && c < width;
            if (READS % THREADS == 0 || n < READS)
                copy_begin(to + r * LD + c, place(there ? r : 0) + (there ? c : 0), there);
        }
        return;
    }
#pragma unroll 1
    for (int n = threadIdx.x; n < ROWS * COLUMNS; n += THREADS) {
        const int r = n / COLUMNS, c = n % COLUMNS;
        to[r * LD + c] = r < rows && c < width ? place(r)[c] : u16(0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(const Params p) {
    SHARED_BYTES(shared);
    u16* q = reinterpret_cast<u16*>(shared);
    u16* k = q + BM * LD_QK;
    u16* v = k + BN * LD_QK;
    Extent* extent = reinterpret_cast<Extent*>(v + BN * LD_V);

    int first;
    const Job job = job_of_block(p, BM, first);
    if (first >= job.s_q * job.group) return;
    const int keys = job.s_kv + p.appended;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (threadIdx.x == 0) *extent = {keys, 0, 0, job.s_kv};
    fetch_begin<BM, D, LD_QK>(q, job.s_q * job.group - first, p.d, p.aligned, [&](int r) { return query_at(p, job, first + r); });
    __syncthreads();
    // The rows of this lane: two of each tile.
    Row row[TILES][2];
    for (int t = 0; t < TILES; ++t)
        for (int half = 0; half < 2; ++half) {
            row[t][half] = row_of(p, job, first + (warp * TILES + t) * 16 + half * 8 + lane / 4);
            if (lane % 4 == 0) extend(extent, row[t][half]);
        }
    __syncthreads();
    const Extent seen = *extent;
    const float scale = p.scale * LOG2_E;

    float most[TILES][2], sum[TILES][2], result[TILES][DV / 8][4];
    for (int t = 0; t < TILES; ++t) {
        for (int half = 0; half < 2; ++half) most[t][half] = HIDDEN, sum[t][half] = 0;
        for (int n = 0; n < DV / 8; ++n)
            for (int i = 0; i < 4; ++i) result[t][n][i] = 0;
    }

    auto fetch_keys = [&](int start) {
        fetch_begin<BN, D, LD_QK>(k, keys - start, p.d, p.aligned, [&](int r) { return job.k + (start + r) * p.k_strides[1]; });
    };
    int end, start = keys_of_block(p, job, seen, end);
    if (start < end) fetch_keys(start);
    for (; start < end; start += BN) {
        // The keys are there, and nobody reads the values of the last round any more.
        copy_wait();
        __syncthreads();
        fetch_begin<BN, DV, LD_V>(v, keys - start, p.d_v, p.aligned, [&](int r) { return job.v + (start + r) * p.v_strides[1]; });

        float scores[TILES][BN / 8][4];
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int n = 0; n < BN / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) scores[t][n][i] = 0;
#pragma unroll
        for (int i = 0; i < D; i += 16) {
            u32 queries[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; ++t)
                load_blocks(queries[t], q + ((warp * TILES + t) * 16 + lane % 16) * LD_QK + i + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < BN / 16; ++n) {
                u32 some[4];  // 16 keys: of the first eight in [0] and [1], of the others in [2] and [3]
                load_blocks(some, k + (n * 16 + lane % 8 + lane / 16 * 8) * LD_QK + i + lane / 8 % 2 * 8);
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    multiply_add(scores[t][2 * n], queries[t], some[0], some[1]);
                    multiply_add(scores[t][2 * n + 1], queries[t], some[2], some[3]);
                }
            }
        }
        // The values are there, and nobody reads these keys any more.
        copy_wait();
        __syncthreads();
        if (start + BN < end) fetch_keys(start + BN);

        // One branch for all scores, not one for each.
        if (!FEATURES && start >= seen.inner_from && start + BN <= seen.inner_to) {
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int n = 0; n < BN / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) scores[t][n][i] *= scale;
        } else {
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int n = 0; n < BN / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float& x = scores[t][n][i];
                        x = score(p, job, row[t][i / 2], start + n * 8 + lane % 4 * 2 + i % 2, x);
                    }
        }
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float largest = HIDDEN;
#pragma unroll
                for (int n = 0; n < BN / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i) largest = fmaxf(largest, scores[t][n][2 * half + i]);
                float rescale;
                const float base = carry_on(most[t][half], largest_of<4>(largest), rescale);
                sum[t][half] *= rescale;
#pragma unroll
                for (int n = 0; n < DV / 8; ++n) {
                    result[t][n][2 * half] *= rescale;
                    result[t][n][2 * half + 1] *= rescale;
                }
#pragma unroll
                for (int n = 0; n < BN / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        float& x = scores[t][n][2 * half + i];
                        x = exp2_fast(x - base);
                        sum[t][half] += x;
                    }
            }

#pragma unroll
        for (int j = 0; j < BN / 16; ++j) {
            // Two blocks of scores side by side are laid out as the left operand of the next product.
            u32 weights[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float* pair = scores[t][2 * j + i / 2] + i % 2 * 2;
                    weights[t][i] = pack(pair[0], pair[1]);
                }
#pragma unroll
            for (int n = 0; n < DV / 16; ++n) {
                u32 some[4];  // 16 columns of 16 values
                load_blocks_transposed(some, v + (j * 16 + lane % 16) * LD_V + n * 16 + lane / 16 * 8);
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    multiply_add(result[t][2 * n], weights[t], some[0], some[1]);
                    multiply_add(result[t][2 * n + 1], weights[t], some[2], some[3]);
                }
            }
        }
    }
    // Where there was no key at all, the queries are still on their way to memory that another block may get.
    copy_wait();

#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = sum_of<4>(sum[t][half]);
            const int index = first + (warp * TILES + t) * 16 + half * 8 + lane / 4;
            if (index >= job.s_q * job.group) continue;
            float factor;
            written* out = begin_row(p, job, index, lane % 4 == 0, most[t][half], total, factor);
#pragma unroll
            for (int n = 0; n < DV / 8; ++n) {
                const int column = n * 8 + lane % 4 * 2;
                const float low = result[t][n][2 * half] * factor, high = result[t][n][2 * half + 1] * factor;
#if !SPLIT
                if (p.d_v % 2 == 0 && column < p.d_v) {
                    *reinterpret_cast<u32*>(out + column) = pack(low, high);
                    continue;
                }
#endif
                if (column < p.d_v) out[column] = to_written(low);
                if (column + 1 < p.d_v) out[column + 1] = to_written(high);
            }
        }
}
