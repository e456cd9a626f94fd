// Threads of candle's kernels: fibers that switch at barriers, or a loop for kernels without barriers.

#include "common.hpp"
#include <vector>

extern "C" void switch_fiber(void** save, void* load);
asm(R"(
.globl switch_fiber
switch_fiber:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

namespace gpu {
thread_local Dim block, blocks, size;
thread_local Thread* here;
thread_local unsigned char published[1024][16];

enum State { Runs, AtBlock, AtWarp, Ended };
struct Fiber { Thread thread; State state; void* stack_pointer; };
static thread_local std::vector<Fiber> fibers;
static thread_local void* scheduler;
static thread_local Fiber* current;
static thread_local void (*body)(void**);
static thread_local void** body_arguments;
constexpr size_t STACK = 64 << 10;

static void suspend(State state) {
    current->state = state;
    switch_fiber(&current->stack_pointer, scheduler);
}
void wait_block() { suspend(AtBlock); }
void wait_warp() { suspend(AtWarp); }

static void enter() {
    body(body_arguments);
    suspend(Ended);
    std::abort();
}

static Dim thread_index(unsigned linear) { return {linear % size.x, linear / size.x % size.y, linear / size.x / size.y}; }

static void run_block(std::vector<char>& stacks) {
    unsigned threads = size.x * size.y * size.z;
    for (unsigned i = 0; i < threads; ++i) {
        void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(&stacks[(i + 1) * STACK]) & ~uintptr_t(15)) - 64);
        top[6] = reinterpret_cast<void*>(enter);
        fibers[i] = {{thread_index(i), i}, Runs, top};
    }
    for (unsigned left = threads; left;) {
        for (unsigned first = 0; first < threads; first += 32) {
            unsigned end = std::min(first + 32, threads);
            for (;;) {
                unsigned runs = 0, at_warp = 0, at_block = 0;
                for (unsigned i = first; i < end; ++i) {
                    if (fibers[i].state == Runs) {
                        current = &fibers[i], here = &current->thread;
                        switch_fiber(&scheduler, current->stack_pointer);
                        left -= current->state == Ended;
                    }
                    at_warp += fibers[i].state == AtWarp, at_block += fibers[i].state == AtBlock;
                }
                if (!at_warp) break;
                if (at_block) fail("some threads of a warp wait at a block barrier, others at a warp barrier");
                for (unsigned i = first; i < end; ++i)
                    if (fibers[i].state == AtWarp) fibers[i].state = Runs, ++runs;
            }
        }
        for (unsigned i = 0; i < threads; ++i)
            if (fibers[i].state == AtBlock) fibers[i].state = Runs;
    }
}

void run(const Entry& entry, Dim grid, Dim threads_of_block, void** arguments) {
    blocks = grid, size = threads_of_block;
    unsigned threads = size.x * size.y * size.z;
    if (threads > 1024) fail("more than 1024 threads per block");
    body = entry.call, body_arguments = arguments;
    std::vector<char> stacks(entry.barriers ? threads * STACK + 16 : 0);
    fibers.resize(threads);
    for (unsigned z = 0; z < blocks.z; ++z)
        for (unsigned y = 0; y < blocks.y; ++y)
            for (unsigned x = 0; x < blocks.x; ++x) {
                block = {x, y, z};
                if (entry.barriers) {
                    run_block(stacks);
                    continue;
                }
                Thread thread;
                here = &thread;
                for (unsigned i = 0; i < threads; ++i) {
                    thread = {thread_index(i), i};
                    body(arguments);
                }
            }
}
}  // namespace gpu
