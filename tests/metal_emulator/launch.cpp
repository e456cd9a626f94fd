// Entry point of the emulated attention kernel, appended to its source.

struct Arguments {
    const T* q;
    const T* k;
    const T* v;
    T* out;
    const Sequence* sequences;
    const float* sinks;
    Params params;
};

extern "C" void emulate(const Arguments* arguments, const unsigned (&groups)[2], size_t tile_bytes, unsigned seed) {
    const Arguments a = *arguments;
    auto body = [a] {
        float* tile = reinterpret_cast<float*>(emulator::shared);
        uint2 group = {emulator::block_index.x, emulator::block_index.y};
        attention(a.q, a.k, a.v, a.out, a.sequences, a.sinks, a.params, tile, group, threadIdx.x);
    };
    emulator::run(body, {groups[0], groups[1]}, THREADS, tile_bytes, seed);
}
