// A GPU that is none: as much of NVIDIA's driver, of NVRTC, cuBLAS and cuRAND as cudarc and candle call, with the "device's"
// memory in this process. Kernels of this crate are compiled for the emulator of its tests, those of candle by cuda.hpp.
// Memory that is allocated begins as NaN, ends at a page that traps, and traps once it is freed.

#include "cuda.hpp"
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

[[noreturn]] static void fail(const std::string& what) {
    std::fprintf(stderr, "emulated GPU: %s\n", what.c_str());
    std::abort();
}

static long setting(const char* name, long otherwise) {
    const char* value = std::getenv(name);
    return value ? std::atol(value) : otherwise;
}

// ---- Threads of candle's kernels ----

extern "C" void change_fiber(void** save, void* load);
asm(R"(
.globl change_fiber
change_fiber:
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

static void rest(State state) {
    current->state = state;
    change_fiber(&current->stack_pointer, scheduler);
}
void wait_block() { rest(AtBlock); }
void wait_warp() { rest(AtWarp); }

static void enter() {
    body(body_arguments);
    rest(Ended);
    std::abort();
}

static Dim place(unsigned linear) { return {linear % size.x, linear / size.x % size.y, linear / size.x / size.y}; }

static void run_block(std::vector<char>& stacks) {
    unsigned threads = size.x * size.y * size.z;
    for (unsigned i = 0; i < threads; ++i) {
        void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(&stacks[(i + 1) * STACK]) & ~uintptr_t(15)) - 64);
        top[6] = reinterpret_cast<void*>(enter);
        fibers[i] = {{place(i), i}, Runs, top};
    }
    for (unsigned left = threads; left;) {
        for (unsigned first = 0; first < threads; first += 32) {
            unsigned end = std::min(first + 32, threads);
            for (;;) {
                unsigned runs = 0, at_warp = 0, at_block = 0;
                for (unsigned i = first; i < end; ++i) {
                    if (fibers[i].state == Runs) {
                        current = &fibers[i], here = &current->thread;
                        change_fiber(&scheduler, current->stack_pointer);
                        left -= current->state == Ended;
                    }
                    at_warp += fibers[i].state == AtWarp, at_block += fibers[i].state == AtBlock;
                }
                if (!at_warp) break;
                if (at_block) fail("some threads of a warp wait for the block");
                for (unsigned i = first; i < end; ++i)
                    if (fibers[i].state == AtWarp) fibers[i].state = Runs, ++runs;
            }
        }
        for (unsigned i = 0; i < threads; ++i)
            if (fibers[i].state == AtBlock) fibers[i].state = Runs;
    }
}

static void run(const Entry& entry, void** arguments) {
    unsigned threads = size.x * size.y * size.z;
    if (threads > 1024) fail("more than 1024 threads a block");
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
                    thread = {place(i), i};
                    body(arguments);
                }
            }
}
}  // namespace gpu

// Of each of candle's files, by the build.
extern const gpu::Entry* const candle_kernels[];

// ---- Driver ----

typedef int Result;
enum { Success = 0, InvalidValue = 1, NotFound = 500 };
typedef void (*Launch)(void** arguments, unsigned x, unsigned y, unsigned threads, size_t shared_bytes, unsigned seed);
struct Function { std::string name; const gpu::Entry* candles; Launch own; };
struct Module { void* library; std::map<std::string, Function> functions; };

static std::recursive_mutex one;
typedef std::lock_guard<std::recursive_mutex> Lock;
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
        gpu::blocks = {x, y, z}, gpu::size = {threads_x, threads_y, threads_z};
        gpu::run(*kernel.candles, arguments);
    }
    return Success;
}

// ---- NVRTC ----

struct Program { std::string source, result, log; };
int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*, const char* const*) {
    *program = new Program{source, "", ""};
    return 0;
}
int nvrtcDestroyProgram(Program** program) { delete *program; return 0; }
int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    Lock lock(one);
    static std::map<std::string, std::string> made;
    static const std::string folder = [] {
        char name[] = "/tmp/emulated-gpu-XXXXXX";
        if (!mkdtemp(name)) fail("no folder for kernels");
        return std::string(name);
    }();
    std::string definitions;
    for (int i = 0; i < count; ++i)
        if (std::strncmp(options[i], "-D", 2) == 0) definitions += std::string(" ") + options[i];
    std::string& library = made[definitions + program->source];
    if (library.empty()) {
        // After what the kernels need of a GPU, for which the emulator stands.
        size_t start = program->source.find("// The numbers that tensors are made of");
        if (start == std::string::npos) fail("a source that is not this crate's");
        std::ifstream emulator(EMULATOR);
        std::string text{std::istreambuf_iterator<char>(emulator), {}};
        text += program->source.substr(start);
        auto door = [&](const char* name, const char* params) {
            if (text.find(std::string(") ") + name + "(const " + params) == std::string::npos) return;
            text += std::string("extern \"C\" void launch_") + name +
                    "(void** arguments, unsigned x, unsigned y, unsigned threads, size_t shared_bytes, unsigned seed) {"
                    "emulator::run([copy = *static_cast<" + params + "*>(arguments[0])] { " + name +
                    "(copy); }, {x, y}, threads, shared_bytes, seed); }\n";
        };
        door("attention", "Params");
        if (definitions.find("-DSPLIT=1") != std::string::npos) door("combine", "Params");
        door("norm_rows", "NormParams");
        door("activate_rows", "ActivateParams");
        door("rotate_rows", "RotateParams");
        std::string path = folder + "/" + std::to_string(made.size());
        std::ofstream(path + ".cpp") << text;
        std::string command = "c++ -std=c++17 -O1 -w -shared -fPIC -o " + path + ".so" + definitions + " " + path + ".cpp";
        if (std::system(command.c_str()) != 0) fail("a kernel does not compile: " + command);
        library = path + ".so";
    }
    program->result = "emulated " + library;
    return 0;
}
int nvrtcGetPTXSize(Program* program, size_t* size) { *size = program->result.size() + 1; return 0; }
int nvrtcGetPTX(Program* program, char* to) { std::strcpy(to, program->result.c_str()); return 0; }
int nvrtcGetProgramLogSize(Program* program, size_t* size) { *size = 1; return 0; }
int nvrtcGetProgramLog(Program* program, char* to) { *to = 0; return 0; }
int nvrtcGetNumSupportedArchs(int* count) { *count = 2; return 0; }
int nvrtcGetSupportedArchs(int* all) { all[0] = 75, all[1] = 90; return 0; }
const char* nvrtcGetErrorString(int) { return "an error of the emulated compiler"; }

// ---- cuBLAS ----

int cublasCreate_v2(void** handle) { *handle = &something; return 0; }
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void*, void*) { return 0; }
}

static double number(const void* from, int type, size_t i) {
    switch (type) {
        case 0: return static_cast<const float*>(from)[i];
        case 1: return static_cast<const double*>(from)[i];
        case 2: return float(static_cast<const __half*>(from)[i]);
        case 14: return float(static_cast<const __nv_bfloat16*>(from)[i]);
        default: fail("a product of numbers of an unknown type");
    }
}

extern "C" int cublasGemmStridedBatchedEx(void*, int turned_a, int turned_b, int m, int n, int k, const void* alpha,
                                          const void* a, int type_a, int lda, long long stride_a, const void* b, int type_b,
                                          int ldb, long long stride_b, const void* beta, void* c, int type_c, int ldc,
                                          long long stride_c, int batch, int compute, int) {
    const int type = compute == 70 ? 1 : compute == 64 ? 2 : 0;
    const double factor = number(alpha, type, 0), kept = number(beta, type, 0);
    std::vector<double> left(size_t(m) * k), right(size_t(k) * n);
    for (int i = 0; i < batch; ++i) {
        for (int row = 0; row < m; ++row)
            for (int l = 0; l < k; ++l)
                left[size_t(row) * k + l] = number(a, type_a, i * stride_a + (turned_a ? l + size_t(row) * lda : row + size_t(l) * lda));
        for (int column = 0; column < n; ++column)
            for (int l = 0; l < k; ++l)
                right[size_t(column) * k + l] = number(b, type_b, i * stride_b + (turned_b ? column + size_t(l) * ldb : l + size_t(column) * ldb));
        for (int column = 0; column < n; ++column)
            for (int row = 0; row < m; ++row) {
                double sum = 0;
                for (int l = 0; l < k; ++l) sum += left[size_t(row) * k + l] * right[size_t(column) * k + l];
                size_t at = i * stride_c + row + size_t(column) * ldc;
                double x = factor * sum + (kept == 0 ? 0 : kept * number(c, type_c, at));
                if (type_c == 0) static_cast<float*>(c)[at] = x;
                else if (type_c == 1) static_cast<double*>(c)[at] = x;
                else if (type_c == 2) static_cast<__half*>(c)[at] = __half(x);
                else static_cast<__nv_bfloat16*>(c)[at] = __nv_bfloat16(x);
            }
    }
    return 0;
}

extern "C" int cublasDgemmStridedBatched(void* handle, int turned_a, int turned_b, int m, int n, int k, const double* alpha,
                                         const double* a, int lda, long long stride_a, const double* b, int ldb,
                                         long long stride_b, const double* beta, double* c, int ldc, long long stride_c,
                                         int batch) {
    return cublasGemmStridedBatchedEx(handle, turned_a, turned_b, m, n, k, alpha, a, 1, lda, stride_a, b, 1, ldb, stride_b,
                                      beta, c, 1, ldc, stride_c, batch, 70, 0);
}

// ---- cuRAND ----

static std::mt19937_64 random_bits;
template <typename T, typename From>
static int fill(T* to, size_t count, From from) {
    for (size_t i = 0; i < count; ++i) to[i] = from(random_bits);
    return 0;
}

extern "C" {
int curandCreateGenerator(void** generator, int) { *generator = &something; return 0; }
int curandDestroyGenerator(void*) { return 0; }
int curandSetStream(void*, void*) { return 0; }
int curandSetPseudoRandomGeneratorSeed(void*, unsigned long long seed) { random_bits.seed(seed); return 0; }
int curandGenerateUniform(void*, float* to, size_t count) { return fill(to, count, std::uniform_real_distribution<float>()); }
int curandGenerateUniformDouble(void*, double* to, size_t count) { return fill(to, count, std::uniform_real_distribution<>()); }
int curandGenerateNormal(void*, float* to, size_t count, float mean, float deviation) {
    return fill(to, count, std::normal_distribution<float>(mean, deviation));
}
int curandGenerateNormalDouble(void*, double* to, size_t count, double mean, double deviation) {
    return fill(to, count, std::normal_distribution<>(mean, deviation));
}
}
