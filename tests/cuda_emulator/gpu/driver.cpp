// As much of NVIDIA's driver as cudarc and candle call, with the "device's" memory in this process. Memory that is allocated
// begins as NaN, ends at a page that traps, and traps once it is freed.
// EMULATED_GPU_CAPABILITY and EMULATED_GPU_MULTIPROCESSORS say what it takes itself for; with EMULATED_GPU_LOG=1 it names each
// kernel that is launched.

#include "common.hpp"
#include <dlfcn.h>
#include <sys/mman.h>
#include <map>

// Of each of candle's files, by the build.
extern const gpu::Entry* const candle_kernels[];

typedef int Result;
enum { Success = 0, InvalidValue = 1, NotFound = 500 };
typedef void (*Launch)(void** arguments, unsigned x, unsigned y, unsigned threads, size_t shared_bytes, unsigned seed);
struct Function { std::string name; const gpu::Entry* candles; Launch own; };
struct Module { void* library; std::map<std::string, Function> functions; };

namespace gpu { std::recursive_mutex one; }
using gpu::Lock;
using gpu::one;
static std::map<uintptr_t, size_t> allocated;  // where a block of memory begins, and all that is mapped for it
static int something;

static size_t pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Whether `bytes` at an address are memory of one allocation.
static bool known(uintptr_t at, size_t bytes) {
    Lock lock(one);
    auto after = allocated.upper_bound(at);
    return bytes == 0 || (after != allocated.begin() && at + bytes <= std::prev(after)->first + std::prev(after)->second);
}

extern "C" {
Result cuInit(unsigned) { return Success; }
Result cuDeviceGet(int* device, int) { *device = 0; return Success; }
Result cuDeviceGetCount(int* count) { *count = 1; return Success; }
Result cuDeviceGetAttribute(int* value, int attribute, int) {
    long capability = setting("EMULATED_GPU_CAPABILITY", 90);
    *value = attribute == 16 ? setting("EMULATED_GPU_MULTIPROCESSORS", 16)
             : attribute == 75 ? capability / 10
             : attribute == 76 ? capability % 10
             : attribute == 97 ? 227 << 10
             : attribute == 115 ? 1 : 0;
    return Success;
}
Result cuDevicePrimaryCtxRetain(void** context, int) { *context = &something; return Success; }
Result cuDevicePrimaryCtxRelease_v2(int) { return Success; }
Result cuCtxGetCurrent(void** context) { *context = &something; return Success; }
Result cuCtxSetCurrent(void*) { return Success; }
Result cuCtxDestroy_v2(void*) { return Success; }
Result cuEventCreate(void** event, unsigned) { *event = &something; return Success; }
Result cuEventDestroy_v2(void*) { return Success; }
Result cuEventRecord(void*, void*) { return Success; }
Result cuStreamWaitEvent(void*, void*, unsigned) { return Success; }
Result cuStreamSynchronize(void*) { return Success; }
Result cuStreamDestroy_v2(void*) { return Success; }
Result cuStreamIsCapturing(void*, int* status) { *status = 0; return Success; }
Result cuGetErrorString(Result, const char** text) { *text = "an error of the emulated GPU"; return Success; }

Result cuMemAlloc_v2(uintptr_t* at, size_t bytes) {
    Lock lock(one);
    if (bytes == 0) return InvalidValue;
    size_t whole = pages(bytes), used = (bytes + 15) / 16 * 16;
    char* start = static_cast<char*>(mmap(nullptr, whole + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (start == MAP_FAILED) return 2;
    mprotect(start + whole, 4096, PROT_NONE);
    std::memset(start, 0xff, whole);
    *at = reinterpret_cast<uintptr_t>(start + whole - used);
    allocated[*at] = used;
    return Success;
}
// Of nothing, which cudarc asks for, it gives an address of nothing; cuMemAlloc fails.
Result cuMemAllocAsync(uintptr_t* at, size_t bytes, void*) {
    if (bytes) return cuMemAlloc_v2(at, bytes);
    *at = 0;
    return Success;
}
Result cuMemFree_v2(uintptr_t at) {
    Lock lock(one);
    auto found = allocated.find(at);
    if (found == allocated.end()) fail("memory is given back that was not given");
    size_t whole = pages(found->second);
    munmap(reinterpret_cast<void*>(at + found->second - whole), whole + 4096);
    allocated.erase(found);
    return Success;
}
Result cuMemFreeAsync(uintptr_t at, void*) { return at ? cuMemFree_v2(at) : Success; }
Result cuMemcpyHtoDAsync_v2(uintptr_t to, const void* from, size_t bytes, void*) {
    if (!known(to, bytes)) fail("a copy to what is no memory of the device");
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return Success;
}
Result cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, void*) {
    if (!known(from, bytes)) fail("a copy from what is no memory of the device");
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return Success;
}
Result cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void*) {
    if (!known(from, bytes) || !known(to, bytes)) fail("a copy between what is no memory of the device");
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return Success;
}
Result cuMemcpyPeerAsync(uintptr_t to, void*, uintptr_t from, void*, size_t bytes, void* stream) {
    return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
Result cuMemsetD8Async(uintptr_t at, unsigned char value, size_t bytes, void*) {
    if (!known(at, bytes)) fail("a fill of what is no memory of the device");
    std::memset(reinterpret_cast<void*>(at), value, bytes);
    return Success;
}

Result cuModuleLoadData(void** module, const void* image) {
    std::string text(static_cast<const char*>(image));
    const std::string own = "emulated ";
    void* library = nullptr;
    if (text.compare(0, own.size(), own) == 0) {
        library = dlopen(text.substr(own.size()).c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) fail(dlerror());
    }
    *module = new Module{library, {}};
    return Success;
}
Result cuModuleLoad(void**, const char*) { return NotFound; }
Result cuModuleUnload(void*) { return Success; }
Result cuModuleGetFunction(void** function, void* module, const char* name) {
    Lock lock(one);
    Module& from = *static_cast<Module*>(module);
    auto known = from.functions.find(name);
    if (known == from.functions.end()) {
        Function found{name, nullptr, nullptr};
        if (from.library) found.own = reinterpret_cast<Launch>(dlsym(from.library, (std::string("launch_") + name).c_str()));
        for (auto file = candle_kernels; !from.library && *file; ++file)
            for (auto entry = *file; entry->name; ++entry)
                if (found.name == entry->name) found.candles = entry;
        if (!found.own && !found.candles) fail(std::string("no kernel ") + name);
        known = from.functions.emplace(name, found).first;
    }
    *function = &known->second;
    return Success;
}
Result cuFuncSetAttribute(void*, int, int) { return Success; }

Result cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                      unsigned threads_z, unsigned shared_bytes, void*, void** arguments, void**) {
    Lock lock(one);
    static unsigned seed = 1;
    const Function& kernel = *static_cast<Function*>(function);
    if (!x || !y || !z || y > 65535 || z > 65535 || x > 0x7fffffff) {
        std::fprintf(stderr, "emulated GPU: %s in a grid of %u, %u, %u\n", kernel.name.c_str(), x, y, z);
        return InvalidValue;
    }
    if (setting("EMULATED_GPU_LOG", 0))
        std::fprintf(stderr, "%s: %u x %u blocks of %u threads\n", kernel.name.c_str(), x, y, threads_x * threads_y);
    if (kernel.own) {
        kernel.own(arguments, x, y, threads_x, shared_bytes ? shared_bytes : 16, seed++);
    } else {
        gpu::run(*kernel.candles, {x, y, z}, {threads_x, threads_y, threads_z}, arguments);
    }
    return Success;
}
}
