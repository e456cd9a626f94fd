// The door to emulated attention, at the end of its source.

// A launch of `attention` and, if keys are split, one of `combine`: blocks and bytes of shared memory of each.
extern "C" void emulate(const Params* params, const unsigned (&blocks)[2], const size_t (&shared_bytes)[2], unsigned seed) {
    Params copy = *params;
    emulator::run([copy] { attention(copy); }, {blocks[0], static_cast<unsigned>(copy.splits)}, THREADS, shared_bytes[0], seed);
#if SPLIT
    emulator::run([copy] { combine(copy); }, {blocks[1], 1}, 32 * COMBINE_WARPS, shared_bytes[1], seed);
#endif
}
