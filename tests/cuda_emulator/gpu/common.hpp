// What the parts of the emulated GPU have in common.
#pragma once
#include "cuda.hpp"
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

[[noreturn]] inline void fail(const std::string& what) {
    std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
    std::abort();
}

inline long setting(const char* name, long otherwise) {
    const char* value = std::getenv(name);
    return value ? std::atol(value) : otherwise;
}

namespace gpu {
// Calls an entry for each thread of blocks of `size`.
void run(const Entry& entry, Dim blocks, Dim size, void** arguments);

// One call at a time.
typedef std::lock_guard<std::recursive_mutex> Lock;
extern std::recursive_mutex one;
}  // namespace gpu
