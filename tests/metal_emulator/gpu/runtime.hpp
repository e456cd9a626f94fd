// What a compiled kernel and the emulator know of each other.
#pragma once
#include <cstddef>
#include <cstdint>

namespace gpu {

constexpr unsigned BUFFERS = 31, LANES = 32;

// A value of a function constant.
struct Constant {
    uint64_t index, bits;
};

// A dispatch, as the host's stand-in `objc2-metal` fills it.
struct Dispatch {
    void* buffers[BUFFERS];
    uint64_t bytes[BUFFERS];  // of arguments that are not buffers, which the emulator copies
    uint64_t threadgroup_bytes[BUFFERS];
    uint64_t threads[3];      // in the grid
    uint64_t group[3];        // threads per threadgroup
    const Constant* constants;
    uint64_t constant_count;
};

// Position of the thread that runs.
struct Thread {
    unsigned group[3], own[3], index;  // of the threadgroup in the grid; in the threadgroup
};

// A kernel with the memory of a threadgroup that its source declares, which lies between `shared` and `shared_end`.
struct Kernel {
    void (*run)(const Dispatch&);
    char *shared, *shared_end;
};

extern Thread current;
// Memory for the arguments `[[threadgroup(n)]]`.
extern void* threadgroup_memory[BUFFERS];

// Runs a kernel. Returns what it did wrong; null if nothing.
const char* run(const Kernel&, const Dispatch&);

// Waits for all threads of the threadgroup.
void threadgroup_barrier();

constexpr size_t SLOT = 32;

// What the lanes of a simdgroup exchanged. Lanes that did not take part are not in `active`.
struct Exchanged {
    const unsigned char* slots;
    uint32_t active;
};

// Waits for the other lanes of the simdgroup. A lane that ended or waits elsewhere takes no part.
Exchanged exchange(const void* mine, size_t bytes);

[[noreturn]] void fail(const char* what);

}  // namespace gpu
