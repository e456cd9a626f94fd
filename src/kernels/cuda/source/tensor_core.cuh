// Attention in f16 and bf16 on tensor cores, for compute capability 8.0 and newer. Products of 16-bit elements
// accumulate in f32, the softmax is f32, and the probabilities are rounded to the element type before they multiply
// the values, as in FlashAttention-2 (Dao 2023).
//
// Each of the WARPS warps takes TILES times 16 query rows and visits the keys BLOCK_N at a time. Of each 16 x 8 tile
// of scores or outputs, lane l of a warp holds rows l / 4 and l / 4 + 8, columns 2 (l % 4) and 2 (l % 4) + 1 (PTX's
// mma.m16n8k16). Loads overlap with computation: values load while scores are computed, the next keys while outputs
// are.
//
// HEAD_DIM, HEAD_DIM_V: elements per head of keys and of values, rounded up to multiples of 16.

#define BLOCK_M (WARPS * TILES * 16)
// Rows in shared memory are padded by 16 bytes, so that the eight rows of a matrix occupy different banks.
#define LD_QK (HEAD_DIM + 8)
#define LD_V (HEAD_DIM_V + 8)

// Starts to copy rows of `width` elements from global to shared memory, zero-padded to ROWS x COLUMNS. `row_start(r)`
// is the address of row r.
template <int ROWS, int COLUMNS, int LD, typename RowStart>
static __device__ __forceinline__ void fetch_async(u16* to, int rows, int width, bool vectorized, RowStart row_start) {
    const int VECTORS = ROWS * (COLUMNS / 8);
    if (vectorized) {
#pragma unroll 4
        for (int first = 0; first < VECTORS; first += THREADS) {
            const int n = first + threadIdx.x, r = n / (COLUMNS / 8), c = n % (COLUMNS / 8) * 8;
            const bool in_bounds = r < rows && c < width;
            if (VECTORS % THREADS == 0 || n < VECTORS)
                copy_async(to + r * LD + c, row_start(in_bounds ? r : 0) + (in_bounds ? c : 0), in_bounds);
        }
        return;
    }
#pragma unroll 1
    for (int n = threadIdx.x; n < ROWS * COLUMNS; n += THREADS) {
        const int r = n / COLUMNS, c = n % COLUMNS;
        to[r * LD + c] = r < rows && c < width ? row_start(r)[c] : u16(0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(const AttentionParams p) {
    SHARED_BYTES(shared);
    u16* q = reinterpret_cast<u16*>(shared);
    u16* k = q + BLOCK_M * LD_QK;
    u16* v = k + BLOCK_N * LD_QK;
    KeyRange* shared_range = reinterpret_cast<KeyRange*>(v + BLOCK_N * LD_V);

    int first_row;
    const WorkItem item = work_item_of_block(p, BLOCK_M, first_row);
    if (first_row >= item.s_q * item.group) return;
    const int keys = item.s_kv + p.appended_keys;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (threadIdx.x == 0) *shared_range = {keys, 0, 0, item.s_kv};
    fetch_async<BLOCK_M, HEAD_DIM, LD_QK>(q, item.s_q * item.group - first_row, p.d, p.vectorized,
        [&](int r) { return query_row(p, item, first_row + r); });
    __syncthreads();
    // The query rows of this lane: two per tile.
    QueryRow row[TILES][2];
    for (int t = 0; t < TILES; ++t)
        for (int half = 0; half < 2; ++half) {
            row[t][half] = init_row(p, item, first_row + (warp * TILES + t) * 16 + half * 8 + lane / 4);
            if (lane % 4 == 0) extend_range(shared_range, row[t][half]);
        }
    __syncthreads();
    const KeyRange range = *shared_range;
    const float scale = p.scale * LOG2_E;

    float row_max[TILES][2], row_sum[TILES][2], acc[TILES][HEAD_DIM_V / 8][4];
    for (int t = 0; t < TILES; ++t) {
        for (int half = 0; half < 2; ++half) row_max[t][half] = NEG_INFINITY, row_sum[t][half] = 0;
        for (int n = 0; n < HEAD_DIM_V / 8; ++n)
            for (int i = 0; i < 4; ++i) acc[t][n][i] = 0;
    }

    auto fetch_keys = [&](int start) {
        fetch_async<BLOCK_N, HEAD_DIM, LD_QK>(k, keys - start, p.d, p.vectorized,
            [&](int r) { return item.k + (start + r) * p.k_strides[1]; });
    };
    int end, start = key_tiles_of_block(p, item, range, end);
    if (start < end) fetch_keys(start);
    for (; start < end; start += BLOCK_N) {
        // The keys have arrived, and no warp still reads the values of the previous iteration.
        wait_for_copies();
        __syncthreads();
        fetch_async<BLOCK_N, HEAD_DIM_V, LD_V>(v, keys - start, p.d_v, p.vectorized,
            [&](int r) { return item.v + (start + r) * p.v_strides[1]; });

        float scores[TILES][BLOCK_N / 8][4];
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int n = 0; n < BLOCK_N / 8; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) scores[t][n][i] = 0;
#pragma unroll
        for (int i = 0; i < HEAD_DIM; i += 16) {
            u32 queries[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; ++t)
                load_matrices(queries[t], q + ((warp * TILES + t) * 16 + lane % 16) * LD_QK + i + lane / 16 * 8);
#pragma unroll
            for (int n = 0; n < BLOCK_N / 16; ++n) {
                u32 key_pairs[4];  // 16 keys: the first eight in [0] and [1], the others in [2] and [3]
                load_matrices(key_pairs, k + (n * 16 + lane % 8 + lane / 16 * 8) * LD_QK + i + lane / 8 % 2 * 8);
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    mma_m16n8k16(scores[t][2 * n], queries[t], key_pairs[0], key_pairs[1]);
                    mma_m16n8k16(scores[t][2 * n + 1], queries[t], key_pairs[2], key_pairs[3]);
                }
            }
        }
        // The values have arrived, and no warp still reads these keys.
        wait_for_copies();
        __syncthreads();
        if (start + BLOCK_N < end) fetch_keys(start + BLOCK_N);

        // One branch for the whole tile: tiles that every row sees completely need no mask.
        const bool seen_by_all = !FEATURES && start >= range.full_begin && start + BLOCK_N <= range.full_end;
        if (seen_by_all) {
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int n = 0; n < BLOCK_N / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) scores[t][n][i] *= scale;
        } else {
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int n = 0; n < BLOCK_N / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        float& x = scores[t][n][i];
                        x = masked_score(p, item, row[t][i / 2], start + n * 8 + lane % 4 * 2 + i % 2, x);
                    }
        }
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float tile_max = NEG_INFINITY;
#pragma unroll
                for (int n = 0; n < BLOCK_N / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i) tile_max = fmaxf(tile_max, scores[t][n][2 * half + i]);
                float factor;
                const float base = rescale(row_max[t][half], lanes_max<4>(tile_max), factor);
                row_sum[t][half] *= factor;
#pragma unroll
                for (int n = 0; n < HEAD_DIM_V / 8; ++n) {
                    acc[t][n][2 * half] *= factor;
                    acc[t][n][2 * half + 1] *= factor;
                }
#pragma unroll
                for (int n = 0; n < BLOCK_N / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        float& x = scores[t][n][2 * half + i];
                        x = exp2_fast(x - base);
                        row_sum[t][half] += x;
                    }
            }

        if (!seen_by_all && tile_has_non_finite<BLOCK_N, HEAD_DIM_V, LD_V>(v)) {
#pragma unroll 1
            for (int j = 0; j < BLOCK_N; ++j)
#pragma unroll
                for (int t = 0; t < TILES; ++t)
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        if (masked_score(p, item, row[t][half], start + j, 0) == NEG_INFINITY) continue;
#pragma unroll
                        for (int n = 0; n < HEAD_DIM_V / 8; ++n)
#pragma unroll
                            for (int i = 0; i < 2; ++i) {
                                const u16 x = v[j * LD_V + n * 8 + lane % 4 * 2 + i];
                                if (not_finite(x)) acc[t][n][2 * half + i] += to_float(x);
                            }
                    }
            zero_non_finite<BLOCK_N, HEAD_DIM_V, LD_V>(v);
        }

#pragma unroll
        for (int j = 0; j < BLOCK_N / 16; ++j) {
            // Two neighboring 16 x 8 tiles of scores have the register layout of the left operand of the next
            // product.
            u32 probs[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; ++t)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float* pair = scores[t][2 * j + i / 2] + i % 2 * 2;
                    probs[t][i] = pack_pair(pair[0], pair[1]);
                }
#pragma unroll
            for (int n = 0; n < HEAD_DIM_V / 16; ++n) {
                u32 value_pairs[4];  // 16 columns of 16 values
                load_matrices_transposed(value_pairs, v + (j * 16 + lane % 16) * LD_V + n * 16 + lane / 16 * 8);
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    mma_m16n8k16(acc[t][2 * n], probs[t], value_pairs[0], value_pairs[1]);
                    mma_m16n8k16(acc[t][2 * n + 1], probs[t], value_pairs[2], value_pairs[3]);
                }
            }
        }
    }
    // If there was no key tile, the copy of the queries may still be in flight. It must not outlive the block, whose
    // shared memory another block may get.
    wait_for_copies();

#pragma unroll
    for (int t = 0; t < TILES; ++t)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total_sum = lanes_sum<4>(row_sum[t][half]);
            const int index = first_row + (warp * TILES + t) * 16 + half * 8 + lane / 4;
            if (index >= item.s_q * item.group) continue;
            float factor;
            OutputElement* out = output_row(p, item, index, lane % 4 == 0, row_max[t][half], total_sum, factor);
#pragma unroll
            for (int n = 0; n < HEAD_DIM_V / 8; ++n) {
                const int column = n * 8 + lane % 4 * 2;
                const float low = acc[t][n][2 * half] * factor, high = acc[t][n][2 * half + 1] * factor;
#if !SPLIT
                if (p.d_v % 2 == 0 && column < p.d_v) {
                    *reinterpret_cast<u32*>(out + column) = pack_pair(low, high);
                    continue;
                }
#endif
                if (column < p.d_v) out[column] = to_output(low);
                if (column + 1 < p.d_v) out[column + 1] = to_output(high);
            }
        }
}
