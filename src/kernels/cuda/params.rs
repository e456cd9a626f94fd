//! Parameters of the attention kernels.

/// Parameters of an attention launch, the struct of `source/types.cuh`, which documents each field. Addresses are
/// device addresses, 0 for null; strides count elements.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct AttentionParams {
    pub q: u64,
    pub k: u64,
    pub v: u64,
    pub out: u64,
    pub sinks: u64,
    pub slopes: u64,
    pub bias: u64,
    pub keep: u64,
    pub query_segments: u64,
    pub key_segments: u64,
    pub key_lengths: u64,
    pub padding_lengths: u64,
    pub query_lengths: u64,
    pub query_starts: u64,
    pub offsets: u64,
    pub partials: u64,
    pub q_strides: [i64; 3],
    pub k_strides: [i64; 3],
    pub v_strides: [i64; 3],
    pub bias_strides: [i64; 4],
    pub keep_strides: [i64; 4],
    pub b: i32,
    pub h: i32,
    pub h_kv: i32,
    pub s_q: i32,
    pub s_kv: i32,
    pub appended_keys: i32,
    pub d: i32,
    pub d_v: i32,
    pub window_size_left: i32,
    pub window_size_right: i32,
    pub symmetric: i32,
    pub vectorized: i32,
    pub splits: i32,
    pub scale: f32,
    pub softcap: f32,
}

// SAFETY: `repr(C)` and plain numbers, with the fields of the struct in `source/types.cuh` in the same order.
#[cfg(feature = "cuda")]
unsafe impl candle_core::cuda_backend::cudarc::driver::DeviceRepr for AttentionParams {}

#[cfg(feature = "cuda")]
impl AttentionParams {
    /// The flags of what the kernel does to scores, from the addresses that are not null.
    pub(crate) fn features(&self) -> super::variant::Features {
        use super::variant::Features;

        let flags = [
            (Features::SOFTCAP, self.softcap != 0.0),
            (Features::SLOPES, self.slopes != 0),
            (Features::BIAS, self.bias != 0),
            (Features::KEEP, self.keep != 0),
            (Features::SEGMENTS, self.query_segments != 0),
        ];
        Features(flags.into_iter().filter(|(_, used)| *used).map(|(flag, _)| flag).sum())
    }
}

/// Whether rows of `row_len` elements of `T` at these addresses (0 for null) and with these strides can be read 16
/// bytes at a time.
#[cfg(feature = "cuda")]
pub(crate) fn vectorizable<T>(addresses: &[u64], strides: &[i64], row_len: usize) -> bool {
    let vector = 16 / size_of::<T>();
    addresses.iter().all(|address| address.is_multiple_of(16))
        && strides.iter().all(|stride| stride.unsigned_abs().is_multiple_of(vector as u64))
        && row_len.is_multiple_of(vector)
}
