// The functions of NVRTC, cuBLAS and cuRAND that cudarc and candle call. Sources passed to NVRTC are this crate's kernels; they
// are compiled with the emulator.

#include "common.hpp"
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <vector>

static int handle;  // stands for every handle

extern "C" {
struct Program { std::string source, result, log; };
int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*, const char* const*) {
    *program = new Program{source, "", ""};
    return 0;
}
int nvrtcDestroyProgram(Program** program) { delete *program; return 0; }
int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    gpu::Lock lock(gpu::mutex);
    static std::map<std::string, std::string> compiled;
    // Never destroyed, because the exit handler uses it.
    static const std::string& folder = *[] {
        char name[] = "/tmp/emulated-gpu-XXXXXX";
        if (!mkdtemp(name)) fail("cannot create a folder for kernels");
        std::atexit([] { std::filesystem::remove_all(folder); });
        return new std::string(name);
    }();
    std::string definitions;
    for (int i = 0; i < count; ++i)
        if (std::strncmp(options[i], "-D", 2) == 0) definitions += std::string(" ") + options[i];
    std::string& library = compiled[definitions + program->source];
    if (library.empty()) {
        // The emulator replaces device.cuh, which ends where element.cuh starts.
        size_t start = program->source.find("// Element types of tensors");
        if (start == std::string::npos) fail("the source is not one of this crate's");
        std::ifstream emulator(EMULATOR);
        std::string text{std::istreambuf_iterator<char>(emulator), {}};
        text += program->source.substr(start);
        auto add_entry = [&](const char* name, const char* params) {
            if (text.find(std::string(") ") + name + "(const " + params) == std::string::npos) return;
            text += std::string("extern \"C\" void launch_") + name +
                    "(void** arguments, unsigned x, unsigned y, unsigned threads, size_t shared_bytes, unsigned seed) {"
                    "emulator::run([copy = *static_cast<" + params + "*>(arguments[0])] { " + name +
                    "(copy); }, {x, y}, threads, shared_bytes, seed); }\n";
        };
        add_entry("attention", "AttentionParams");
        if (definitions.find("-DSPLIT=1") != std::string::npos) add_entry("combine", "AttentionParams");
        std::string path = folder + "/" + std::to_string(compiled.size());
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

int cublasCreate_v2(void** handle) { *handle = &handle; return 0; }
int cublasDestroy_v2(void*) { return 0; }
int cublasSetStream_v2(void*, void*) { return 0; }
}

static double load(const void* from, int type, size_t i) {
    switch (type) {
        case 0: return static_cast<const float*>(from)[i];
        case 1: return static_cast<const double*>(from)[i];
        case 2: return float(static_cast<const __half*>(from)[i]);
        case 14: return float(static_cast<const __nv_bfloat16*>(from)[i]);
        default: fail("matrix product of an unknown type");
    }
}

extern "C" int cublasGemmStridedBatchedEx(void*, int transposed_a, int transposed_b, int m, int n, int k, const void* alpha,
                                          const void* a, int type_a, int lda, long long stride_a, const void* b, int type_b,
                                          int ldb, long long stride_b, const void* beta, void* c, int type_c, int ldc,
                                          long long stride_c, int batch, int compute, int) {
    const int type = compute == 70 ? 1 : compute == 64 ? 2 : 0;
    const double factor = load(alpha, type, 0), beta_value = load(beta, type, 0);
    std::vector<double> left(size_t(m) * k), right(size_t(k) * n);
    for (int i = 0; i < batch; ++i) {
        for (int row = 0; row < m; ++row)
            for (int l = 0; l < k; ++l)
                left[size_t(row) * k + l] = load(a, type_a, i * stride_a + (transposed_a ? l + size_t(row) * lda : row + size_t(l) * lda));
        for (int column = 0; column < n; ++column)
            for (int l = 0; l < k; ++l)
                right[size_t(column) * k + l] = load(b, type_b, i * stride_b + (transposed_b ? column + size_t(l) * ldb : l + size_t(column) * ldb));
        for (int column = 0; column < n; ++column)
            for (int row = 0; row < m; ++row) {
                double sum = 0;
                for (int l = 0; l < k; ++l) sum += left[size_t(row) * k + l] * right[size_t(column) * k + l];
                size_t at = i * stride_c + row + size_t(column) * ldc;
                double x = factor * sum + (beta_value == 0 ? 0 : beta_value * load(c, type_c, at));
                if (type_c == 0) static_cast<float*>(c)[at] = x;
                else if (type_c == 1) static_cast<double*>(c)[at] = x;
                else if (type_c == 2) static_cast<__half*>(c)[at] = __half(x);
                else static_cast<__nv_bfloat16*>(c)[at] = __nv_bfloat16(x);
            }
    }
    return 0;
}

extern "C" int cublasDgemmStridedBatched(void* handle, int transposed_a, int transposed_b, int m, int n, int k, const double* alpha,
                                         const double* a, int lda, long long stride_a, const double* b, int ldb,
                                         long long stride_b, const double* beta, double* c, int ldc, long long stride_c,
                                         int batch) {
    return cublasGemmStridedBatchedEx(handle, transposed_a, transposed_b, m, n, k, alpha, a, 1, lda, stride_a, b, 1, ldb, stride_b,
                                      beta, c, 1, ldc, stride_c, batch, 70, 0);
}

static std::mt19937_64 random_bits;
template <typename T, typename From>
static int fill(T* to, size_t count, From from) {
    for (size_t i = 0; i < count; ++i) to[i] = from(random_bits);
    return 0;
}

extern "C" {
int curandCreateGenerator(void** generator, int) { *generator = &handle; return 0; }
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
