// Entry points of the emulated row-wise kernels, appended to their source.

extern "C" void emulate_norm(const NormParams* p, unsigned blocks, unsigned seed) {
    emulator::run([copy = *p] { rowwise_norm(copy); }, {blocks, 1}, THREADS, 16, seed);
}

extern "C" void emulate_activation(const ActivationParams* p, unsigned blocks, unsigned seed) {
    emulator::run([copy = *p] { rowwise_activation(copy); }, {blocks, 1}, THREADS, 16, seed);
}

extern "C" void emulate_rotary(const RotaryParams* p, unsigned blocks, unsigned seed) {
    emulator::run([copy = *p] { rowwise_rotary(copy); }, {blocks, 1}, THREADS, 16, seed);
}
