// The door to an emulated kernel, at the end of its source. Sizes of memory are multiples of 16.

extern "C" void* guarded(size_t bytes) { return emulator::guarded(bytes); }

extern "C" void release(void* memory, size_t bytes) {
    emulator::release(static_cast<unsigned char*>(memory), bytes);
}

extern "C" void emulate(const Params* params, unsigned blocks, size_t shared_bytes, unsigned seed) {
    Params copy = *params;
    emulator::run([copy] { attention(copy); }, blocks, THREADS, shared_bytes, seed);
}
