// Metal emulator for tests: runs the threads of a kernel's threadgroups as fibers.
//
// The emulator is stricter than a GPU. Simdgroups run ahead of each other. Threadgroup memory starts as NaN, and what is
// read after the end of a buffer is NaN. A write after it traps.

#include "../../cuda_emulator/emulator.hpp"
#include "runtime.hpp"

#include <sys/mman.h>
#include <unistd.h>
#include <csignal>
#include <string>
#include <ucontext.h>

namespace gpu {

using emulator::Context;
using emulator::guarded;
using emulator::init_context;
using emulator::PAGE;
using emulator::release;
using emulator::switch_context;

Thread current;
void* threadgroup_memory[BUFFERS];

namespace {

enum class State { ready, in_simdgroup, at_barrier, ended };

struct Lane {
    Context context;
    Thread at;
    State state;
    unsigned char* stack;  // null before it starts
};

struct Simdgroup {
    unsigned generation;
    uint32_t active;
};

constexpr size_t SHARED = 32 << 10;
constexpr size_t AFTER_BUFFER = 1 << 20;
constexpr size_t FIBER_STACK = 256 << 10;

std::vector<Lane> lanes;
std::vector<Simdgroup> simdgroups;
std::vector<unsigned char*> free_stacks;
std::vector<unsigned char> slots;  // two per lane, used in turns
Lane* running;
Context host;
const Kernel* own_kernel;
const Dispatch* dispatch;
std::string error;

size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

// Memory for `bytes` before memory that holds NaN and cannot be written. Kernels of MLX read after the end of a matrix
// where they do not use what they read.
unsigned char* allocate(size_t bytes) {
    static const int nan = [] {
        const int file = memfd_create("nan", 0);
        const std::vector<unsigned char> ones(AFTER_BUFFER, 0xff);
        if (write(file, ones.data(), ones.size()) != ssize_t(ones.size())) std::abort();
        return file;
    }();
    const size_t whole = whole_pages(bytes);
    void* start = mmap(nullptr, whole + AFTER_BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return nullptr;
    unsigned char* end = static_cast<unsigned char*>(start) + whole;
    mmap(end, AFTER_BUFFER, PROT_READ, MAP_PRIVATE | MAP_FIXED, nan, 0);
    return end - bytes;
}

void deallocate(unsigned char* memory, size_t bytes) {
    munmap(memory + bytes - whole_pages(bytes), whole_pages(bytes) + AFTER_BUFFER);
}

// Copies what is not a buffer to the end of a page. An argument without a value is NaN, because kernels of MLX read it
// where a function constant excludes it.
void bind_arguments(Dispatch& dispatch) {
    static unsigned char* pages[BUFFERS];
    static unsigned char* const none = allocate(0);
    for (unsigned i = 0; i < BUFFERS; ++i) {
        if (!dispatch.buffers[i]) dispatch.buffers[i] = none;
        const size_t bytes = dispatch.bytes[i], whole = (bytes + 15) / 16 * 16;
        if (!bytes) continue;
        if (whole > PAGE) error = "it has more than 4 KiB of bytes in an argument";
        if (!pages[i]) pages[i] = allocate(PAGE);
        dispatch.buffers[i] = std::memcpy(pages[i] + PAGE - std::min(whole, PAGE), dispatch.buffers[i], std::min(bytes, PAGE));
    }
}

void suspend(State state) {
    running->state = state;
    switch_context(&running->context, &host);
}

void enter_thread() {
    own_kernel->run(*dispatch);
    suspend(State::ended);
}

void out_of_bounds() { fail("it wrote after the end of a buffer, or read far from one"); }

// Continues in `out_of_bounds` if a kernel caused the signal.
void on_signal(int signal, siginfo_t*, void* context) {
    if (!running) {
        std::signal(signal, SIG_DFL);
        return;
    }
    greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    registers[REG_RIP] = reinterpret_cast<greg_t>(&out_of_bounds);
    registers[REG_RSP] = reinterpret_cast<greg_t>(running->stack + FIBER_STACK - 72);
}

unsigned char* take_stack() {
    if (free_stacks.empty()) {
        unsigned char* stack = guarded(FIBER_STACK + PAGE);
        mprotect(stack, PAGE, PROT_NONE);
        return stack + PAGE;
    }
    unsigned char* stack = free_stacks.back();
    free_stacks.pop_back();
    return stack;
}

void resume(Lane& lane) {
    if (!lane.stack) {
        lane.stack = take_stack();
        init_context(lane.context, lane.stack, FIBER_STACK, enter_thread);
    }
    running = &lane;
    current = lane.at;
    switch_context(&host, &lane.context);
    running = nullptr;
    if (lane.state == State::ended) free_stacks.push_back(lane.stack);
}

// Runs the lanes of a simdgroup until all wait at a barrier or ended. Returns whether any ran.
bool run_simdgroup(unsigned number, unsigned first) {
    const unsigned start = number * LANES, count = std::min<unsigned>(LANES, lanes.size() - start);
    bool any = false;
    while (error.empty()) {
        bool ran = false;
        for (unsigned i = 0; i < count && error.empty(); ++i) {
            Lane& lane = lanes[start + (i + first) % count];
            if (lane.state != State::ready) continue;
            resume(lane);
            ran = any = true;
        }
        if (ran) continue;
        uint32_t waiting = 0;
        for (unsigned i = 0; i < count; ++i) {
            if (lanes[start + i].state == State::in_simdgroup) waiting |= 1u << i;
        }
        if (!waiting) break;
        simdgroups[number].active = waiting;
        ++simdgroups[number].generation;
        for (unsigned i = 0; i < count; ++i) {
            if (waiting >> i & 1) lanes[start + i].state = State::ready;
        }
    }
    return any;
}

void run_threadgroup(std::minstd_rand& random) {
    simdgroups.assign((lanes.size() + LANES - 1) / LANES, Simdgroup{0, 0});
    for (;;) {
        const unsigned favored = random() % simdgroups.size(), first = random() % LANES;
        for (unsigned i = 0; i < simdgroups.size(); ++i) run_simdgroup((i + favored) % simdgroups.size(), first);
        if (!error.empty()) return;
        size_t waiting = 0;
        for (Lane& lane : lanes) waiting += lane.state == State::at_barrier;
        if (!waiting) return;
        // Threads may have ended before it, as in candle's gemv_t. Metal does not say what happens then; GPUs go on.
        for (Lane& lane : lanes) {
            if (lane.state == State::at_barrier) lane.state = State::ready;
        }
    }
}

void prepare(const Dispatch& dispatch) {
    static bool once = [] {
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, &action, nullptr);
        sigaction(SIGBUS, &action, nullptr);
        return true;
    }();
    (void)once;
    size_t sum = 0;
    for (unsigned i = 0; i < BUFFERS; ++i) {
        // Of each size, so that an index past the end of one traps.
        static size_t allocated[BUFFERS];
        const size_t bytes = (dispatch.threadgroup_bytes[i] + 15) / 16 * 16;
        sum += bytes;
        if (allocated[i] == bytes) continue;
        if (allocated[i]) release(static_cast<unsigned char*>(threadgroup_memory[i]), allocated[i]);
        threadgroup_memory[i] = bytes ? guarded(bytes) : nullptr;
        allocated[i] = bytes;
    }
    if (sum > SHARED) error = "it has more than 32 KiB of threadgroup memory";
}

}  // namespace

void fail(const char* what) {
    error = std::string(what) + ": threadgroup ";
    for (unsigned x : current.group) error += std::to_string(x) + " ";
    error += "thread " + std::to_string(current.index);
    suspend(State::ended);
    __builtin_unreachable();
}

void threadgroup_barrier() { suspend(State::at_barrier); }

Exchanged exchange(const void* mine, size_t bytes) {
    const unsigned index = running->at.index, lane = index % LANES;
    Simdgroup& own = simdgroups[index / LANES];
    unsigned char* bank = &slots[(index / LANES * 2 + own.generation % 2) * LANES * SLOT];
    std::memcpy(bank + lane * SLOT, mine, bytes);
    suspend(State::in_simdgroup);
    return {bank, own.active};
}

const char* run(const Kernel& kernel, const Dispatch& from) {
    error.clear();
    own_kernel = &kernel;
    Dispatch given = from;
    dispatch = &given;
    bind_arguments(given);
    prepare(given);
    unsigned groups[3];
    for (unsigned i = 0; i < 3; ++i) {
        if (given.group[i] == 0) return "a threadgroup without threads";
        groups[i] = (given.threads[i] + given.group[i] - 1) / given.group[i];
    }
    if (given.group[0] * given.group[1] * given.group[2] > 1024) return "more than 1024 threads in a threadgroup";
    if (kernel.shared_end - kernel.shared > static_cast<ptrdiff_t>(SHARED) + 16) {
        error = "it declares more than 32 KiB of threadgroup memory";
    }
    std::minstd_rand random(1);
    for (uint64_t n = 0; n < uint64_t(groups[0]) * groups[1] * groups[2] && error.empty(); ++n) {
        const unsigned at[] = {unsigned(n % groups[0]), unsigned(n / groups[0] % groups[1]), unsigned(n / groups[0] / groups[1])};
        unsigned size[3];  // smaller at the end of the grid
        for (unsigned i = 0; i < 3; ++i) size[i] = std::min(given.group[i], given.threads[i] - at[i] * given.group[i]);
        lanes.assign(size_t(size[0]) * size[1] * size[2], Lane{});
        slots.resize(std::max(slots.size(), (lanes.size() + LANES) * 2 * SLOT));
        for (unsigned i = 0; i < lanes.size(); ++i) {
            const unsigned x = i % size[0], y = i / size[0] % size[1], z = i / size[0] / size[1];
            lanes[i].at = {{at[0], at[1], at[2]}, {x, y, z}, i};
        }
        std::memset(kernel.shared, 0xff, kernel.shared_end - kernel.shared);
        for (unsigned i = 0; i < BUFFERS; ++i) {
            if (threadgroup_memory[i]) std::memset(threadgroup_memory[i], 0xff, (given.threadgroup_bytes[i] + 15) / 16 * 16);
        }
        run_threadgroup(random);
    }
    // Fibers that did not end are given up.
    for (Lane& lane : lanes) {
        if (lane.stack && lane.state != State::ended) free_stacks.push_back(lane.stack);
    }
    return error.empty() ? nullptr : error.c_str();
}

}  // namespace gpu

// Buffers for the host.
extern "C" void* emulator_allocate(size_t bytes) { return gpu::allocate(bytes); }
extern "C" void emulator_release(void* memory, size_t bytes) { gpu::deallocate(static_cast<unsigned char*>(memory), bytes); }
