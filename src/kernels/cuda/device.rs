/// What there is to be known of an NVIDIA GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(not(any(test, feature = "cuda")), allow(dead_code))] // without them there is none
pub(crate) struct Gpu {
    /// Compute capability, 80 for 8.0.
    pub capability: u32,
    pub multiprocessors: usize,
    /// Bytes of shared memory that a block may have.
    pub shared_memory: usize,
}
