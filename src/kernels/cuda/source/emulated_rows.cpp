// The doors to the emulated kernels of rows.cuh, at the end of its source.

extern "C" void emulate_norm(const NormParams* p, unsigned blocks, unsigned seed) {
    emulator::run([copy = *p] { norm_rows(copy); }, {blocks, 1}, THREADS, 16, seed);
}

extern "C" void emulate_activate(const ActivateParams* p, unsigned blocks, unsigned seed) {
    emulator::run([copy = *p] { activate_rows(copy); }, {blocks, 1}, THREADS, 16, seed);
}

extern "C" void emulate_rotate(const RotateParams* p, unsigned blocks, unsigned seed) {
    emulator::run([copy = *p] { rotate_rows(copy); }, {blocks, 1}, THREADS, 16, seed);
}
