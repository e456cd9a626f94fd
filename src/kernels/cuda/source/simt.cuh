// Attention in f32 on the ordinary cores: any element type, any GPU.
//
// A block takes BM rows of queries and goes over the keys BN at a time with the softmax carried along (Milakov 2018,
// Dao 2022). Its threads lie in BM / RM rows of 8: thread (y, x) has the rows y + r * ROWS_OF_THREADS, of the scores the
// columns x + 8 c, of the result the columns 4 x + 32 c and the three after each. Eight threads that share a row are
// neighbours in a warp, so that what a row needs of them is exchanged there.
// D, DV: numbers of a head, rounded up to multiples of 32.

#define ROWS_OF_THREADS (THREADS / 8)
#define RM (BM / ROWS_OF_THREADS)
#define CN (BN / 8)
#define CV (DV / 32)
// One group of four more a row: the eight threads of a row then read from all banks.
#define LD_QK (D + 4)
#define LD_V (DV + 4)
#define LD_P (BN + 8)

// Rows of `width` numbers from global memory into shared memory, zeros after `rows` and after `width`. `place(r)` is where
// row r starts.
template <int ROWS, int COLUMNS, int LD, typename Place>
static __device__ __forceinline__ void fetch(float* to, int rows, int width, bool aligned, Place place) {
    if (!aligned) {
#pragma unroll 1
        for (int n = threadIdx.x; n < ROWS * COLUMNS; n += THREADS) {
            const int r = n / COLUMNS, c = n % COLUMNS;
            to[r * LD + c] = r < rows && c < width ? to_float(place(r)[c]) : 0;
        }
        return;
    }
    const int PER_ROW = COLUMNS / PER_READ;
    // Four reads are on their way at a time.
#pragma unroll 1
    for (int n = threadIdx.x; n < ROWS * PER_ROW; n += 4 * THREADS) {
        uint4 reads[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = (n + i * THREADS) / PER_ROW, c = (n + i * THREADS) % PER_ROW * PER_READ;
            reads[i] = {0, 0, 0, 0};
            if (r < ROWS && r < rows && c < width) reads[i] = read_16(place(r) + c);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = (n + i * THREADS) / PER_ROW, c = (n + i * THREADS) % PER_ROW * PER_READ;
            if (r >= ROWS) break;
            float numbers[PER_READ];
            unpack(reads[i], numbers);
#pragma unroll
            for (int j = 0; j < PER_READ; j += 4) {
                *reinterpret_cast<float4*>(to + r * LD + c + j) =
                    make_float4(numbers[j], numbers[j + 1], numbers[j + 2], numbers[j + 3]);
            }
        }
    }
}

static __device__ __forceinline__ float4 four(const float* p) { return *reinterpret_cast<const float4*>(p); }

extern "C" __global__ void __launch_bounds__(THREADS) attention(const Params p) {
    SHARED_BYTES(shared);
    float* q = reinterpret_cast<float*>(shared);
    float* k = q + BM * LD_QK;
    float* v = k + BN * LD_QK;
    float* weights = v + BN * LD_V;
    Extent* extent = reinterpret_cast<Extent*>(weights + BM * LD_P);

    int first;
    const Job job = job_of_block(p, BM, first);
    if (first >= job.s_q * job.group) return;
    const int keys = job.s_kv + p.appended;
    const int y = threadIdx.x / 8, x = threadIdx.x % 8;

    if (threadIdx.x == 0) *extent = {keys, 0, 0, job.s_kv};
    fetch<BM, D, LD_QK>(q, job.s_q * job.group - first, p.d, p.aligned, [&](int r) { return query_at(p, job, first + r); });
    __syncthreads();
    Row row[RM];
    for (int r = 0; r < RM; ++r) {
        row[r] = row_of(p, job, first + y + r * ROWS_OF_THREADS);
        if (x == 0) extend(extent, row[r]);
    }
    __syncthreads();
    const Extent seen = *extent;
    const float scale = p.scale * LOG2_E;

    float most[RM], sum[RM], result[RM][CV][4];
    for (int r = 0; r < RM; ++r) {
        most[r] = HIDDEN, sum[r] = 0;
        for (int c = 0; c < CV; ++c)
            for (int i = 0; i < 4; ++i) result[r][c][i] = 0;
    }

    int end;
    for (int start = keys_of_block(p, job, seen, end); start < end; start += BN) {
        fetch<BN, D, LD_QK>(k, keys - start, p.d, p.aligned, [&](int r) { return job.k + (start + r) * p.k_strides[1]; });
        fetch<BN, DV, LD_V>(v, keys - start, p.d_v, p.aligned, [&](int r) { return job.v + (start + r) * p.v_strides[1]; });
        __syncthreads();

        float scores[RM][CN];
#pragma unroll
        for (int r = 0; r < RM; ++r)
#pragma unroll
            for (int c = 0; c < CN; ++c) scores[r][c] = 0;
#pragma unroll 1
        for (int i = 0; i < D; i += 4) {
            float4 queries[RM];
#pragma unroll
            for (int r = 0; r < RM; ++r) queries[r] = four(q + (y + r * ROWS_OF_THREADS) * LD_QK + i);
#pragma unroll
            for (int c = 0; c < CN; ++c) {
                float4 key = four(k + (x + 8 * c) * LD_QK + i);
#pragma unroll
                for (int r = 0; r < RM; ++r) {
                    scores[r][c] = fmaf(queries[r].x, key.x, scores[r][c]);
                    scores[r][c] = fmaf(queries[r].y, key.y, scores[r][c]);
                    scores[r][c] = fmaf(queries[r].z, key.z, scores[r][c]);
                    scores[r][c] = fmaf(queries[r].w, key.w, scores[r][c]);
                }
            }
        }

        // One branch for all scores, not one for each.
        if (!FEATURES && start >= seen.inner_from && start + BN <= seen.inner_to) {
#pragma unroll
            for (int r = 0; r < RM; ++r)
#pragma unroll
                for (int c = 0; c < CN; ++c) scores[r][c] *= scale;
        } else {
#pragma unroll
            for (int r = 0; r < RM; ++r)
#pragma unroll
                for (int c = 0; c < CN; ++c) scores[r][c] = score(p, job, row[r], start + x + 8 * c, scores[r][c]);
        }
#pragma unroll
        for (int r = 0; r < RM; ++r) {
            float largest = HIDDEN;
#pragma unroll
            for (int c = 0; c < CN; ++c) largest = fmaxf(largest, scores[r][c]);
            float rescale;
            const float base = carry_on(most[r], largest_of<8>(largest), rescale);
            sum[r] *= rescale;
#pragma unroll
            for (int c = 0; c < CV; ++c)
#pragma unroll
                for (int i = 0; i < 4; ++i) result[r][c][i] *= rescale;
#pragma unroll
            for (int c = 0; c < CN; ++c) {
                float weight = exp2_fast(scores[r][c] - base);
                sum[r] += weight;
                weights[(y + r * ROWS_OF_THREADS) * LD_P + x + 8 * c] = weight;
            }
        }
        // The eight threads that share a row are in one warp.
        __syncwarp();

#pragma unroll 1
        for (int j = 0; j < BN; j += 4) {
            float4 w[RM];
#pragma unroll
            for (int r = 0; r < RM; ++r) w[r] = four(weights + (y + r * ROWS_OF_THREADS) * LD_P + j);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
#pragma unroll
                for (int c = 0; c < CV; ++c) {
                    float4 value = four(v + (j + n) * LD_V + 4 * x + 32 * c);
#pragma unroll
                    for (int r = 0; r < RM; ++r) {
                        float weight = n == 0 ? w[r].x : n == 1 ? w[r].y : n == 2 ? w[r].z : w[r].w;
                        result[r][c][0] = fmaf(weight, value.x, result[r][c][0]);
                        result[r][c][1] = fmaf(weight, value.y, result[r][c][1]);
                        result[r][c][2] = fmaf(weight, value.z, result[r][c][2]);
                        result[r][c][3] = fmaf(weight, value.w, result[r][c][3]);
                    }
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < RM; ++r) {
        const float total = sum_of<8>(sum[r]);
        const int index = first + y + r * ROWS_OF_THREADS;
        if (index >= job.s_q * job.group) continue;
        float factor;
        written* out = begin_row(p, job, index, x == 0, most[r], total, factor);
#pragma unroll
        for (int c = 0; c < CV; ++c)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                int column = 4 * x + 32 * c + i;
                if (column < p.d_v) out[column] = to_written(result[r][c][i] * factor);
            }
    }
}
