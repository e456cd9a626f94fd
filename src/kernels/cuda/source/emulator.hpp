// The kernels on a CPU, for tests: what device.cuh and CUDA C++ give them, done by fibers, one a thread of a block.
// Stricter than a GPU in what it lets pass: warps run ahead of each other, the threads of one in random order from barrier
// to barrier, shared memory begins as NaN and ends at a page that traps, asynchronous copies happen no earlier than they are
// waited for, addresses that must be aligned are looked at, a barrier that not all threads reach ends the program.

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
#define threadIdx (emulator::here->index)
#define blockIdx emulator::block_index

typedef unsigned short u16;
typedef unsigned int u32;

struct uint4 { u32 x, y, z, w; };
struct float4 { float x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulator {

#if defined(__x86_64__) && defined(__GNUC__)
// By hand: the system's own way asks the kernel at every change.
typedef void* Context;

__attribute__((naked, noinline)) static void change(Context*, Context*) {
    asm("push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp, (%rdi)\n mov (%rsi), %rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret");
}

static void begin(Context& context, void* stack, size_t size, void (*enter)()) {
    void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + size) & ~uintptr_t(15));
    *--top = nullptr;  // where `enter` would return to
    *--top = reinterpret_cast<void*>(enter);
    context = top - 6;
}
#else
}  // namespace emulator
#include <ucontext.h>
namespace emulator {
typedef ucontext_t Context;

static void change(Context* from, Context* to) { swapcontext(from, to); }

static void begin(Context& context, void* stack, size_t size, void (*enter)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, enter, 0);
}
#endif

struct Index { unsigned x, y; };
struct Copy { void* to; const void* from; bool there; };

struct Fiber {
    Context context;
    Index index;
    std::vector<Copy> copies;
    bool ended;
};

struct Barrier {
    unsigned expected, arrived, generation;
};

constexpr size_t STACK = 128 << 10;
constexpr size_t PAGE = 4096;

static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static Barrier block;
static std::vector<unsigned char> published;  // of each thread, what its warp may read
static Fiber* here;
static Index block_index;
static unsigned char* shared;
static Context scheduler;
static bool progress;
static std::function<void()> kernel;
constexpr size_t SLOT = 64;

[[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "emulated kernel, block %u, %u, thread %u: %s\n", block_index.x, block_index.y,
                 here ? here->index.x : 0, what);
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
    while (barrier.generation == generation) change(&here->context, &scheduler);
}

static Barrier& own_warp() { return warps[here->index.x / 32]; }

// Lets all lanes of the warp see `mine`; `read(lane)` is what that lane published.
template <typename T, typename Use>
static void exchange(const T& mine, Use use) {
    static_assert(sizeof(T) <= SLOT, "the slot is too small");
    std::memcpy(&published[here->index.x * SLOT], &mine, sizeof(T));
    wait(own_warp());
    const unsigned char* first = &published[here->index.x / 32 * 32 * SLOT];
    use([&](unsigned lane) {
        T theirs;
        std::memcpy(&theirs, first + lane * SLOT, sizeof(T));
        return theirs;
    });
    wait(own_warp());
}

static void enter() {
    kernel();
    here->ended = true;
    progress = true;
    change(&here->context, &scheduler);
}

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

// Memory that ends at a page which must not be touched; `bytes` is a multiple of 16.
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
        begin(fiber.context, &stacks[i * STACK], STACK, enter);
    }
    block = {threads, 0, 0};
    warps.assign(threads / 32, Barrier{32, 0, 0});
    // One warp at a time, which may run far ahead of the others: a missing barrier shows.
    std::vector<unsigned> order(32);
    unsigned favourite = random() % warps.size(), stuck = 0, left = threads;
    while (left) {
        progress = false;
        for (unsigned i = 0; i < 32; ++i) order[i] = favourite * 32 + i;
        std::shuffle(order.begin(), order.end(), random);
        for (unsigned i : order) {
            here = &fibers[i];
            if (here->ended) continue;
            change(&scheduler, &here->context);
            left -= here->ended;
        }
        stuck = progress ? 0 : stuck + 1;
        if (left && stuck > warps.size()) fail("some threads wait at a barrier that others never reach");
        if (stuck) favourite = (favourite + 1) % warps.size();
        else if (random() % 256 == 0) favourite = random() % warps.size();
    }
}

static void run(std::function<void()> body, Index blocks, unsigned threads, size_t shared_bytes, unsigned seed) {
    kernel = body;
    fibers.resize(threads);
    published.assign(threads * SLOT, 0);
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
static inline void __syncwarp() { emulator::wait(emulator::own_warp()); }

static inline void atomicMin(int* at, int x) { *at = x < *at ? x : *at; }
static inline void atomicMax(int* at, int x) { *at = x > *at ? x : *at; }

static inline float bits_to_float(u32 bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static inline u32 float_to_bits(float x) { u32 bits; std::memcpy(&bits, &x, 4); return bits; }

static inline uint4 read_16(const void* p) {
    emulator::check_aligned(p, 16);
    return *static_cast<const uint4*>(p);
}

static inline void write_16(void* p, const uint4& x) {
    emulator::check_aligned(p, 16);
    *static_cast<uint4*>(p) = x;
}

static inline float exp2_fast(float x) { return std::exp2(x); }

static inline float from_lane_xor(float x, int mask) {
    float y = 0;
    unsigned lane = threadIdx.x % 32;
    emulator::exchange(x, [&](auto read) { y = read(lane ^ mask); });
    return y;
}

static inline float f16_to_float(u16 x) {
    int exponent = x >> 10 & 31, fraction = x & 1023;
    float y = exponent == 31  ? (fraction ? NAN : INFINITY)
              : exponent == 0 ? std::ldexp(float(fraction), -24)
                              : std::ldexp(float(fraction + 1024), exponent - 25);
    return x >> 15 ? -y : y;
}

// To nearest, ties to even.
static inline u16 float_to_f16(float x) {
    u16 sign = std::signbit(x) ? 0x8000 : 0;
    float size = std::fabs(x);
    if (std::isnan(x)) return sign | 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    if (size == 0) return sign;
    int exponent = 0;
    std::frexp(size, &exponent);  // size = m 2^exponent, m in [0.5, 1)
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

static inline u32 pack(float low, float high) { return static_cast<u32>(narrow(high)) << 16 | narrow(low); }

static inline void load_blocks_any(u32 (&x)[4], const u16* row, bool transposed) {
    emulator::check_aligned(row, 16);
    unsigned lane = threadIdx.x % 32;
    emulator::exchange(row, [&](auto read) {
        for (unsigned n = 0; n < 4; ++n) {
            auto at = [&](unsigned r, unsigned c) { return static_cast<u32>(read(n * 8 + r)[c]); };
            unsigned i = lane / 4, j = lane % 4 * 2;
            x[n] = transposed ? at(j + 1, i) << 16 | at(j, i) : at(i, j + 1) << 16 | at(i, j);
        }
    });
}

static inline void load_blocks(u32 (&x)[4], const u16* row) { load_blocks_any(x, row, false); }
static inline void load_blocks_transposed(u32 (&x)[4], const u16* row) { load_blocks_any(x, row, true); }

struct Operands { u32 a[4], b[2]; };

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
static inline void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    unsigned lane = threadIdx.x % 32;
    emulator::exchange(Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](auto read) {
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

static inline void copy_begin(void* to, const void* from, bool there) {
    emulator::check_aligned(to, 16);
    if (there) emulator::check_aligned(from, 16);
    emulator::here->copies.push_back({to, from, there});
}

static inline void copy_wait() {
    for (const emulator::Copy& copy : emulator::here->copies) {
        if (copy.there) std::memcpy(copy.to, copy.from, 16);
        else std::memset(copy.to, 0, 16);
    }
    emulator::here->copies.clear();
}
#endif

// Memory for what kernels read and write. `bytes` is a multiple of 16.
extern "C" void* guarded(size_t bytes) { return emulator::guarded(bytes); }

extern "C" void release(void* memory, size_t bytes) {
    emulator::release(static_cast<unsigned char*>(memory), bytes);
}
