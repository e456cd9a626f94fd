// Attention in f32 on CUDA cores: any element type, any GPU.
//
// A block takes BLOCK_M query rows and visits the keys BLOCK_N at a time with an online softmax (Milakov & Gimelshein
// 2018; FlashAttention, Dao et al. 2022). Its threads form THREAD_ROWS rows of 8. Thread (y, x) holds the query rows
// y + r * THREAD_ROWS; of the scores it holds columns x + 8 c, of the output columns 4 x + 32 c and the next three.
// The eight threads that share a row are neighbors in a warp and reduce over it with shuffles.
//
// HEAD_DIM, HEAD_DIM_V: elements per head of keys and of values, rounded up to multiples of 32.

#define THREAD_ROWS (THREADS / 8)
#define RM (BLOCK_M / THREAD_ROWS)
#define CN (BLOCK_N / 8)
#define CV (HEAD_DIM_V / 32)
// Rows in shared memory are padded by 4 floats, so that the eight threads of a row read from different banks.
#define LD_QK (HEAD_DIM + 4)
#define LD_V (HEAD_DIM_V + 4)
#define LD_P (BLOCK_N + 8)

// Copies rows of `width` elements from global to shared memory, converted to f32 and zero-padded to ROWS x COLUMNS.
// `row_start(r)` is the address of row r.
template <int ROWS, int COLUMNS, int LD, typename RowStart>
static __device__ __forceinline__ void fetch(float* to, int rows, int width, bool vectorized, RowStart row_start) {
    if (!vectorized) {
#pragma unroll 1
        for (int n = threadIdx.x; n < ROWS * COLUMNS; n += THREADS) {
            const int r = n / COLUMNS, c = n % COLUMNS;
            to[r * LD + c] = r < rows && c < width ? to_float(row_start(r)[c]) : 0;
        }
        return;
    }
    const int VECTORS_PER_ROW = COLUMNS / VECTOR_SIZE;
    // Four loads are in flight at a time.
#pragma unroll 1
    for (int n = threadIdx.x; n < ROWS * VECTORS_PER_ROW; n += 4 * THREADS) {
        uint4 vectors[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = (n + i * THREADS) / VECTORS_PER_ROW, c = (n + i * THREADS) % VECTORS_PER_ROW * VECTOR_SIZE;
            vectors[i] = {0, 0, 0, 0};
            if (r < ROWS && r < rows && c < width) vectors[i] = load_16_bytes(row_start(r) + c);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = (n + i * THREADS) / VECTORS_PER_ROW, c = (n + i * THREADS) % VECTORS_PER_ROW * VECTOR_SIZE;
            if (r >= ROWS) break;
            float elements[VECTOR_SIZE];
            unpack(vectors[i], elements);
#pragma unroll
            for (int j = 0; j < VECTOR_SIZE; j += 4) {
                *reinterpret_cast<float4*>(to + r * LD + c + j) =
                    make_float4(elements[j], elements[j + 1], elements[j + 2], elements[j + 3]);
            }
        }
    }
}

static __device__ __forceinline__ float4 load_float4(const float* p) { return *reinterpret_cast<const float4*>(p); }

extern "C" __global__ void __launch_bounds__(THREADS) attention(const AttentionParams p) {
    SHARED_BYTES(shared);
    float* q = reinterpret_cast<float*>(shared);
    float* k = q + BLOCK_M * LD_QK;
    float* v = k + BLOCK_N * LD_QK;
    float* probs = v + BLOCK_N * LD_V;
    KeyRange* shared_range = reinterpret_cast<KeyRange*>(probs + BLOCK_M * LD_P);

    int first_row;
    const WorkItem item = work_item_of_block(p, BLOCK_M, first_row);
    if (first_row >= item.s_q * item.group) return;
    const int keys = item.s_kv + p.appended_keys;
    const int y = threadIdx.x / 8, x = threadIdx.x % 8;

    if (threadIdx.x == 0) *shared_range = {keys, 0, 0, item.s_kv};
    fetch<BLOCK_M, HEAD_DIM, LD_QK>(q, item.s_q * item.group - first_row, p.d, p.vectorized,
        [&](int r) { return query_row(p, item, first_row + r); });
    __syncthreads();
    QueryRow row[RM];
    for (int r = 0; r < RM; ++r) {
        row[r] = init_row(p, item, first_row + y + r * THREAD_ROWS);
        if (x == 0) extend_range(shared_range, row[r]);
    }
    __syncthreads();
    const KeyRange range = *shared_range;
    const float scale = p.scale * LOG2_E;

    float row_max[RM], row_sum[RM], acc[RM][CV][4];
    for (int r = 0; r < RM; ++r) {
        row_max[r] = NEG_INFINITY, row_sum[r] = 0;
        for (int c = 0; c < CV; ++c)
            for (int i = 0; i < 4; ++i) acc[r][c][i] = 0;
    }

    int end;
    for (int start = key_tiles_of_block(p, item, range, end); start < end; start += BLOCK_N) {
        fetch<BLOCK_N, HEAD_DIM, LD_QK>(k, keys - start, p.d, p.vectorized,
            [&](int r) { return item.k + (start + r) * p.k_strides[1]; });
        fetch<BLOCK_N, HEAD_DIM_V, LD_V>(v, keys - start, p.d_v, p.vectorized,
            [&](int r) { return item.v + (start + r) * p.v_strides[1]; });
        __syncthreads();

        float scores[RM][CN];
#pragma unroll
        for (int r = 0; r < RM; ++r)
#pragma unroll
            for (int c = 0; c < CN; ++c) scores[r][c] = 0;
#pragma unroll 1
        for (int i = 0; i < HEAD_DIM; i += 4) {
            float4 queries[RM];
#pragma unroll
            for (int r = 0; r < RM; ++r) queries[r] = load_float4(q + (y + r * THREAD_ROWS) * LD_QK + i);
#pragma unroll
            for (int c = 0; c < CN; ++c) {
                float4 key = load_float4(k + (x + 8 * c) * LD_QK + i);
#pragma unroll
                for (int r = 0; r < RM; ++r) {
                    scores[r][c] = fmaf(queries[r].x, key.x, scores[r][c]);
                    scores[r][c] = fmaf(queries[r].y, key.y, scores[r][c]);
                    scores[r][c] = fmaf(queries[r].z, key.z, scores[r][c]);
                    scores[r][c] = fmaf(queries[r].w, key.w, scores[r][c]);
                }
            }
        }

        // One branch for the whole tile: tiles that every row sees completely need no mask.
        const bool seen_by_all = !FEATURES && start >= range.full_begin && start + BLOCK_N <= range.full_end;
        if (seen_by_all) {
#pragma unroll
            for (int r = 0; r < RM; ++r)
#pragma unroll
                for (int c = 0; c < CN; ++c) scores[r][c] *= scale;
        } else {
#pragma unroll
            for (int r = 0; r < RM; ++r)
#pragma unroll
                for (int c = 0; c < CN; ++c)
                    scores[r][c] = masked_score(p, item, row[r], start + x + 8 * c, scores[r][c]);
        }
#pragma unroll
        for (int r = 0; r < RM; ++r) {
            float tile_max = NEG_INFINITY;
#pragma unroll
            for (int c = 0; c < CN; ++c) tile_max = fmaxf(tile_max, scores[r][c]);
            float factor;
            const float base = rescale(row_max[r], lanes_max<8>(tile_max), factor);
            row_sum[r] *= factor;
#pragma unroll
            for (int c = 0; c < CV; ++c)
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[r][c][i] *= factor;
#pragma unroll
            for (int c = 0; c < CN; ++c) {
                const float prob = exp2_fast(scores[r][c] - base);
                row_sum[r] += prob;
                probs[(y + r * THREAD_ROWS) * LD_P + x + 8 * c] = prob;
            }
        }
        if (!seen_by_all && tile_has_non_finite<BLOCK_N, HEAD_DIM_V, LD_V>(v)) {
#pragma unroll 1
            for (int j = 0; j < BLOCK_N; ++j)
#pragma unroll
                for (int r = 0; r < RM; ++r) {
                    if (masked_score(p, item, row[r], start + j, 0) == NEG_INFINITY) continue;
#pragma unroll
                    for (int c = 0; c < CV; ++c)
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            const float value = v[j * LD_V + 4 * x + 32 * c + i];
                            if (not_finite(value)) acc[r][c][i] += value;
                        }
                }
            zero_non_finite<BLOCK_N, HEAD_DIM_V, LD_V>(v);
        }
        // A warp barrier is enough: the eight threads that share a row are in one warp.
        __syncwarp();

#pragma unroll 1
        for (int j = 0; j < BLOCK_N; j += 4) {
            float4 row_probs[RM];
#pragma unroll
            for (int r = 0; r < RM; ++r) row_probs[r] = load_float4(probs + (y + r * THREAD_ROWS) * LD_P + j);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
                for (int c = 0; c < CV; ++c) {
                    float4 value = load_float4(v + (j + n) * LD_V + 4 * x + 32 * c);
#pragma unroll
                    for (int r = 0; r < RM; ++r) {
                        const float4& w = row_probs[r];
                        const float prob = n == 0 ? w.x : n == 1 ? w.y : n == 2 ? w.z : w.w;
                        acc[r][c][0] = fmaf(prob, value.x, acc[r][c][0]);
                        acc[r][c][1] = fmaf(prob, value.y, acc[r][c][1]);
                        acc[r][c][2] = fmaf(prob, value.z, acc[r][c][2]);
                        acc[r][c][3] = fmaf(prob, value.w, acc[r][c][3]);
                    }
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < RM; ++r) {
        const float total_sum = lanes_sum<8>(row_sum[r]);
        const int index = first_row + y + r * THREAD_ROWS;
        if (index >= item.s_q * item.group) continue;
        float factor;
        OutputElement* out = output_row(p, item, index, x == 0, row_max[r], total_sum, factor);
#pragma unroll
        for (int c = 0; c < CV; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int column = 4 * x + 32 * c + i;
                if (column < p.d_v) out[column] = to_output(acc[r][c][i] * factor);
            }
    }
}
