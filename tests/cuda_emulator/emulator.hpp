// CUDA emulator for tests: defines on a CPU what device.cuh and CUDA C++ provide on a GPU. Each thread of a block is
// a fiber.
//
// The emulator is stricter than a GPU. Warps run ahead of each other, and between barriers the threads of a warp run
// in random order. Shared memory starts as NaN and ends at a page that traps. Asynchronous copies happen only when
// they are waited for. Alignment is checked. A barrier that some threads never reach aborts the program.

#include <sys/mman.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define SHARED_BYTES(name) unsigned char* name = emulator::shared
#define threadIdx (emulator::current->index)
#define blockIdx emulator::block_index

typedef unsigned short u16;
typedef unsigned int u32;

struct uint4 { u32 x, y, z, w; };
struct float4 { float x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

#if defined(__x86_64__) && defined(__GNUC__)
// In assembly, because swapcontext makes a system call at every switch.
typedef void* Context;

__attribute__((naked, noinline)) static void switch_context(Context*, Context*) {
    asm("push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n mov (%rsi), %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret");
}

static void init_context(Context& context, void* stack, size_t size, void (*enter)()) {
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15));
    *--top = nullptr;  // return address of `enter`, which never returns
    *--top = reinterpret_cast<void*>(enter);
    context = top - 6;
}
#else
}  // namespace emulator
#include <ucontext.h>
namespace emulator {
typedef ucontext_t Context;

static void switch_context(Context* from, Context* to) { swapcontext(from, to); }

static void init_context(Context& context, void* stack, size_t size, void (*enter)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
}
#endif

struct Index { unsigned x, y; };
struct Copy { void* to; const void* from; bool in_bounds; };

struct Fiber {
    Context context;
    Index index;
    std::vector<Copy> copies;
    bool ended, vote;
};

struct Barrier {
    unsigned expected, arrived, generation;
};

constexpr size_t STACK = 128 << 10;
constexpr size_t PAGE = 4096;

static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static Barrier block;
static std::vector<unsigned char> exchanged;  // one slot per thread, read by the lanes of its warp
static Fiber* current;
static Index block_index;
static unsigned char* shared;
static Context scheduler;
static bool progress;
static std::function<void()> kernel;
constexpr size_t SLOT = 64;

[[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "emulated kernel, block %u, %u, thread %u: %s\n", block_index.x, block_index.y,
                 current ? current->index.x : 0, what);
    std::abort();
}

static void wait(Barrier& barrier) {
    progress = true;
    unsigned generation = barrier.generation;
    if (++barrier.arrived == barrier.expected) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) switch_context(&current->context, &scheduler);
}

static Barrier& own_warp() { return warps[current->index.x / 32]; }

// Lets all lanes of the warp see `mine`; `read(lane)` is what that lane exchanged.
template <typename T, typename Use>
static void exswitch_context(const T& mine, Use use) {
    static_assert(sizeof(T) <= SLOT, "the slot is too small");
    std::memcpy(&exchanged[current->index.x * SLOT], &mine, sizeof(T));
    wait(own_warp());
    const unsigned char* first = &exchanged[current->index.x / 32 * 32 * SLOT];
    use([&](unsigned lane) {
        T theirs;
        std::memcpy(&theirs, first + lane * SLOT, sizeof(T));
        return theirs;
    });
    wait(own_warp());
}

static void enter() {
    kernel();
    current->ended = true;
    progress = true;
    switch_context(&current->context, &scheduler);
}

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

// Allocates memory that ends at a page that traps. `bytes` is a multiple of 16.
static unsigned char* guarded(size_t bytes) {
    size_t whole = whole_pages(bytes);
    void* start = mmap(nullptr, whole + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) fail("no memory");
    unsigned char* end = static_cast<unsigned char*>(start) + whole;
    mprotect(end, PAGE, PROT_NONE);
    return end - bytes;
}

static void release(unsigned char* memory, size_t bytes) {
    munmap(memory + bytes - whole_pages(bytes), whole_pages(bytes) + PAGE);
}

static void run_block(unsigned threads, std::mt19937& random, std::vector<unsigned char>& stacks) {
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.index = {i, 0};
        fiber.copies.clear();
        fiber.ended = false;
        init_context(fiber.context, &stacks[i * STACK], STACK, enter);
    }
    block = {threads, 0, 0};
    warps.assign(threads / 32, Barrier{32, 0, 0});
    // One warp runs at a time and may run far ahead of the others, so that a missing barrier shows.
    std::vector<unsigned> order(32);
    unsigned favored = random() % warps.size(), stuck = 0, left = threads;
    while (left) {
        progress = false;
        for (unsigned i = 0; i < 32; ++i) order[i] = favored * 32 + i;
        std::shuffle(order.begin(), order.end(), random);
        for (unsigned i : order) {
            current = &fibers[i];
            if (current->ended) continue;
            switch_context(&scheduler, &current->context);
            left -= current->ended;
        }
        stuck = progress ? 0 : stuck + 1;
        if (left && stuck > warps.size()) fail("some threads wait at a barrier that others never reach");
        if (stuck) favored = (favored + 1) % warps.size();
        else if (random() % 256 == 0) favored = random() % warps.size();
    }
}

static void run(std::function<void()> body, Index blocks, unsigned threads, size_t shared_bytes, unsigned seed) {
    kernel = body;
    fibers.resize(threads);
    exchanged.assign(threads * SLOT, 0);
    std::vector<unsigned char> stacks(threads * STACK);
    std::mt19937 random(seed);
    shared = guarded(shared_bytes);
    for (unsigned y = 0; y < blocks.y; ++y) {
        for (unsigned x = 0; x < blocks.x; ++x) {
            std::memset(shared, 0xff, shared_bytes);
            block_index = {x, y};
            run_block(threads, random, stacks);
        }
    }
    release(shared, shared_bytes);
}

static void check_aligned(const void* p, size_t to) {
    if (reinterpret_cast<uintptr_t>(p) % to) fail("an address is not aligned");
}

}  // namespace emulator

static inline void __syncthreads() { emulator::wait(emulator::block); }

static inline int __syncthreads_or(int predicate) {
    emulator::current->vote = predicate != 0;
    __syncthreads();
    int any = 0;
    for (const emulator::Fiber& fiber : emulator::fibers) any |= fiber.vote;
    __syncthreads();
    return any;
}

static inline void __syncwarp() { emulator::wait(emulator::own_warp()); }

static inline void atomicMin(int* at, int x) { *at = x < *at ? x : *at; }
static inline void atomicMax(int* at, int x) { *at = x > *at ? x : *at; }

static inline float bits_to_float(u32 bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static inline u32 float_to_bits(float x) { u32 bits; std::memcpy(&bits, &x, 4); return bits; }

static inline uint4 load_16_bytes(const void* p) {
    emulator::check_aligned(p, 16);
    return *static_cast<const uint4*>(p);
}

static inline float exp2_fast(float x) { return std::exp2(x); }

static inline float shuffle_xor(float x, int lane_mask) {
    float y = 0;
    unsigned lane = threadIdx.x % 32;
    emulator::exswitch_context(x, [&](auto read) { y = read(lane ^ lane_mask); });
    return y;
}

static inline float f16_to_float(u16 x) {
    int exponent = x >> 10 & 31, fraction = x & 1023;
    float y = exponent == 31  ? (fraction ? NAN : INFINITY)
              : exponent == 0 ? std::ldexp(float(fraction), -24)
                              : std::ldexp(float(fraction + 1024), exponent - 25);
    return x >> 15 ? -y : y;
}

// Rounds to nearest, ties to even.
static inline u16 float_to_f16(float x) {
    u16 sign = std::signbit(x) ? 0x8000 : 0;
    float size = std::fabs(x);
    if (std::isnan(x)) return sign | 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    if (size == 0) return sign;
    int exponent = 0;
    std::frexp(size, &exponent);  // size = m 2^exponent with m in [0.5, 1)
    if (exponent < -13) exponent = -13;
    float units = std::nearbyint(std::ldexp(size, 11 - exponent));  // in units of the last place
    return sign | static_cast<u16>(((exponent + 13) << 10) + static_cast<int>(units));
}

#if TENSOR_CORES
static inline u16 narrow(float x) {
#if ELEMENT == 1
    return float_to_f16(x);
#else
    u32 bits = float_to_bits(x);
    return std::isnan(x) ? 0x7fc0 : static_cast<u16>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

static inline float wide(u16 x) {
#if ELEMENT == 1
    return f16_to_float(x);
#else
    return bits_to_float(static_cast<u32>(x) << 16);
#endif
}

static inline u32 pack_pair(float low, float high) { return static_cast<u32>(narrow(high)) << 16 | narrow(low); }

static inline void load_matrices_any(u32 (&x)[4], const u16* row, bool transposed) {
    emulator::check_aligned(row, 16);
    unsigned lane = threadIdx.x % 32;
    emulator::exswitch_context(row, [&](auto read) {
        for (unsigned n = 0; n < 4; ++n) {
            auto at = [&](unsigned r, unsigned c) { return static_cast<u32>(read(n * 8 + r)[c]); };
            unsigned i = lane / 4, j = lane % 4 * 2;
            x[n] = transposed ? at(j + 1, i) << 16 | at(j, i) : at(i, j + 1) << 16 | at(i, j);
        }
    });
}

static inline void load_matrices(u32 (&x)[4], const u16* row) { load_matrices_any(x, row, false); }
static inline void load_matrices_transposed(u32 (&x)[4], const u16* row) { load_matrices_any(x, row, true); }

struct Operands { u32 a[4], b[2]; };

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
static inline void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    unsigned lane = threadIdx.x % 32;
    emulator::exswitch_context(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](auto read) {
        for (unsigned i = 0; i < 4; ++i) {
            unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
            for (unsigned k = 0; k < 16; ++k) {
                u32 left = read(row % 8 * 4 + k % 8 / 2).a[row / 8 + k / 8 * 2];
                u32 right = read(column * 4 + k % 8 / 2).b[k / 8];
                unsigned shift = k % 2 * 16;
                c[i] += wide(static_cast<u16>(left >> shift)) * wide(static_cast<u16>(right >> shift));
            }
        }
    });
}

static inline void copy_async(void* to, const void* from, bool in_bounds) {
    emulator::check_aligned(to, 16);
    if (in_bounds) emulator::check_aligned(from, 16);
    emulator::current->copies.push_back({to, from, in_bounds});
}

static inline void wait_for_copies() {
    for (const emulator::Copy& copy : emulator::current->copies) {
        if (copy.in_bounds) std::memcpy(copy.to, copy.from, 16);
        else std::memset(copy.to, 0, 16);
    }
    emulator::current->copies.clear();
}
#endif

// Allocation of the arrays that kernels read and write. `bytes` is a multiple of 16.
extern "C" void* guarded(size_t bytes) { return emulator::guarded(bytes); }

extern "C" void release(void* memory, size_t bytes) {
    emulator::release(static_cast<unsigned char*>(memory), bytes);
}
