// Declarations shared by the parts of the emulated GPU.
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

inline long setting(const char* name, long default_value) {
    const char* value = std::getenv(name);
    return value ? std::atol(value) : default_value;
}

namespace gpu {
// Runs a kernel for every thread of `blocks` blocks of `size` threads.
void run(const Entry& entry, Dim blocks, Dim size, void** arguments);

// Driver calls run one at a time.
typedef std::lock_guard<std::recursive_mutex> Lock;
extern std::recursive_mutex mutex;
}  // namespace gpu
