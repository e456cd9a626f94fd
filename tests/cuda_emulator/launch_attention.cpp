// Entry point of the emulated attention kernels, appended to their source.

// Launches `attention` and, if keys are split, `combine`. `blocks` and `shared_bytes` hold the values of each kernel.
extern "C" void emulate(
    const AttentionParams* params, const unsigned (&blocks)[2], const size_t (&shared_bytes)[2], unsigned seed) {
    const AttentionParams copy = *params;
    const unsigned splits = copy.splits;
    emulator::run([copy] { attention(copy); }, {blocks[0], splits}, THREADS, shared_bytes[0], seed);
#if SPLIT
    emulator::run([copy] { combine(copy); }, {blocks[1], 1}, 32 * COMBINE_WARPS, shared_bytes[1], seed);
#endif
}
