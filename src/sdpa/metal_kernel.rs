//! Attention on Apple GPUs by the crate's own kernel. It is off, because nobody has run it on a Mac: a variable of the
//! environment switches it on for calls that candle's kernel cannot run, and for ragged batches.

use candle_attention_kernels::{Batch, MaskStructure};
use candle_core::Tensor;

use crate::error::{Error, Result};
#[cfg(any(test, feature = "metal"))]
use crate::kernels::metal::MAX_HEAD;
#[cfg(any(test, feature = "metal"))]
use crate::kernels::metal::{Params, Sequence, limit, sequences};
use crate::sdpa::unsupported::{first_reason, no_fused_kernel};
use crate::sdpa::{Backend, Call, DeviceKind, SdpaOptions};

/// The variable that switches the kernel on where it is `1`.
const SWITCH: &str = "CANDLE_ATTENTION_METAL_KERNEL";

/// Whether the kernel is on without being asked for by name.
pub(crate) fn is_switched_on() -> bool {
    std::env::var_os(SWITCH).is_some_and(|value| value == "1")
}

/// Why the kernel cannot run a call; `None` if it can.
pub(super) fn unsupported_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let elsewhere = [
        (call.device != DeviceKind::Metal, "the tensors are not on an Apple GPU"),
        (cfg!(not(any(test, feature = "metal"))), "the crate was built without its feature `metal`"),
    ];
    let own = || own_reason(call, options);
    first_reason(elsewhere).or_else(|| no_fused_kernel(call, options)).or_else(own).or_else(|| compile_error(call))
}

fn own_reason(call: &Call, options: &SdpaOptions) -> Option<String> {
    let asked_for = options.backend == Some(Backend::MetalKernel) || is_switched_on();
    let off = format!("nobody has run it on a Mac yet; {SWITCH}=1 switches it on");
    // The kernel counts in 32 bits.
    let counts = [call.shape.s_q, call.shape.s_kv, call.shape.b.saturating_mul(call.shape.h)];
    first_reason([
        (!asked_for, off.as_str()),
        (call.d.max(call.d_v) > MAX_HEAD, "the head dimension is larger than 256"),
        (options.appended_keys > 0, "it does not support appended keys"),
        (!options.mask.is_bounded(), "it supports lengths per sequence, causal masks and windows only"),
        (counts.into_iter().any(|count| count > 1 << 30), "it counts up to 2^30"),
    ])
}

/// Bytes of temporary memory: the sequences.
pub(super) fn scratch_bytes(call: &Call) -> usize {
    const PER_SEQUENCE: usize = 48;
    call.shape.b.saturating_mul(PER_SEQUENCE)
}

/// Why the kernel for a call does not compile.
#[cfg(feature = "metal")]
fn compile_error(call: &Call) -> Option<String> {
    use std::sync::OnceLock;

    use candle_core::MetalDevice;
    use candle_core::backend::BackendDevice;

    // What compiles for one of them does for all: a call does not say on which one its tensors are.
    static FIRST: OnceLock<Option<MetalDevice>> = OnceLock::new();
    let device = FIRST.get_or_init(|| MetalDevice::new(0).ok()).as_ref()?;
    let reason = crate::kernels::metal::compile(device, variant(call)).err()?;
    Some(format!("its source did not compile: {reason}"))
}

#[cfg(not(feature = "metal"))]
fn compile_error(_: &Call) -> Option<String> {
    None
}

#[cfg(feature = "metal")]
fn variant(call: &Call) -> crate::kernels::metal::Variant {
    crate::kernels::metal::Variant { dtype: call.dtype, d: call.d, d_v: call.d_v }
}

/// The numbers of a launch and its sequences. `strides` are those of q, k and v between sequences, tokens and heads.
///
/// # Errors
/// A ragged batch that is not `tokens` tokens in sequences one after another.
#[cfg(any(test, feature = "metal"))]
fn arguments(
    strides: [[usize; 3]; 3],
    tokens: usize,
    offsets: Option<&[usize]>,
    structure: &MaskStructure,
    call: &Call,
    options: &SdpaOptions,
) -> Result<(Params, Vec<Sequence>)> {
    use crate::mask::AttnShape;

    let AttnShape { b, h, s_q, s_kv } = call.shape;
    let batch = match offsets {
        None => Batch::Padded { b, s_q, s_kv },
        Some(offsets) => Batch::Ragged { offsets },
    };
    if let Some(offsets) = offsets {
        let ends = offsets.first() == Some(&0) && offsets.last() == Some(&tokens);
        let fits = offsets.windows(2).all(|ends| ends[0] <= ends[1] && ends[1] - ends[0] <= s_q);
        if !ends || !fits || offsets.len() != b + 1 || s_q != s_kv || !structure.lengths.is_empty() {
            let found = format!("{} offsets from {:?} to {:?}", offsets.len(), offsets.first(), offsets.last());
            let expected = format!("{b} sequences of at most {s_q} of {tokens} tokens, one after another");
            return Err(Error::value("the ragged batch", found, expected));
        }
    }
    let of_tokens = strides.map(|[sequence, token, _]| [sequence, token]);
    let in_sequence = |[_, token, head]: [usize; 3]| [token as i64, head as i64];
    let [q_strides, k_strides, v_strides] = strides.map(in_sequence);
    let params = Params {
        q_strides,
        k_strides,
        v_strides,
        h: h as i32,
        h_kv: call.h_kv as i32,
        left: limit(structure.left),
        right: limit(structure.right),
        scale: options.dot_product_scale(call.d) as f32,
        softcap: options.softcap.unwrap_or(0.0) as f32,
        has_sinks: i32::from(options.sinks.is_some()),
        reserved: 0,
    };
    Ok((params, sequences(batch, structure, of_tokens, h * call.d_v)?))
}

/// Runs a call; arguments as for [`fused`](crate::sdpa::fused).
#[cfg(feature = "metal")]
pub(super) fn attend(
    qkv: [&Tensor; 3],
    offsets: Option<&[usize]>,
    call: &Call,
    options: &SdpaOptions,
) -> Result<Tensor> {
    use candle_core::op::BackpropOp;
    use candle_core::{DType, Device, Storage};

    use crate::kernels::metal::{Input, Launch};
    use crate::tensor::last_dim_contiguous;

    let mask = options.mask.lower(call.shape, &Device::Cpu)?;
    let [q, k, v] = qkv.map(last_dim_contiguous);
    let [q, k, v] = [q?, k?, v?];
    let sinks = options.sinks.map(|sinks| sinks.to_dtype(DType::F32)?.contiguous()).transpose()?;
    let strides = [&q, &k, &v].map(|tensor| [0, 1, 2].map(|axis| tensor.stride()[axis]));
    let (batch, tokens, h, _) = q.dims4()?;
    let (params, sequences) = arguments(strides, tokens, offsets, &mask.structure, call, options)?;
    let views = [&q, &k, &v].map(|tensor| tensor.storage_and_layout());
    let sink_view = sinks.as_ref().map(Tensor::storage_and_layout);
    let elsewhere = || Error::value("a tensor for a Metal kernel", "elsewhere", "on an Apple GPU");
    let Device::Metal(device) = q.device() else { return Err(elsewhere()) };
    let mut inputs = Vec::with_capacity(4);
    for (storage, layout) in views.iter().chain(&sink_view) {
        let Storage::Metal(storage) = &**storage else { return Err(elsewhere()) };
        let offset = layout.start_offset() * candle_core::backend::BackendStorage::dtype(storage).size_in_bytes();
        inputs.push(Input { buffer: storage.buffer(), offset });
    }
    let sinks = if inputs.len() > 3 { inputs.pop() } else { None };
    let Ok(inputs) = <[Input; 3]>::try_from(inputs) else { return Err(elsewhere()) };
    let outputs = batch * tokens * h * call.d_v;
    let (variant, longest) = (variant(call), call.shape.s_q);
    let out = Launch { variant, inputs, sinks, params, sequences: &sequences, longest, outputs }.queue(device)?;
    Ok(Tensor::from_storage(Storage::Metal(out), (batch, tokens, h, call.d_v), BackpropOp::none(), false))
}

/// Without the feature `metal`, [`unsupported_reason`] always has a reason.
#[cfg(not(feature = "metal"))]
pub(super) fn attend(_: [&Tensor; 3], _: Option<&[usize]>, _: &Call, _: &SdpaOptions) -> Result<Tensor> {
    let reason = "the crate was built without its feature `metal`".to_string();
    Err(Error::Backend { backend: Backend::MetalKernel.to_string(), reason })
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;
    use crate::mask::{AttentionMask, AttnShape};
    use crate::sdpa::{Plan, ragged_backend};

    fn call() -> Call {
        Call {
            shape: AttnShape { b: 2, h: 4, s_q: 5, s_kv: 5 },
            h_kv: 2,
            d: 40,
            d_v: 40,
            dtype: DType::F16,
            device: DeviceKind::Metal,
            distance_embeddings: 0,
            tracks_gradient: false,
        }
    }

    #[test]
    fn the_kernel_is_off_unless_it_is_asked_for() {
        let mask = AttentionMask::causal();
        let plan = Plan::new(&call(), &SdpaOptions::new(&mask)).unwrap();
        assert_eq!(plan.backend, Backend::Eager);
        assert!(plan.to_string().contains("nobody has run it on a Mac yet"), "{plan}");
        let forced = SdpaOptions::new(&mask).with_backend(Backend::MetalKernel);
        assert_eq!(Plan::new(&call(), &forced).unwrap().backend, Backend::MetalKernel);
        assert_eq!(ragged_backend(&call(), &forced).unwrap(), Some(Backend::MetalKernel));
        assert_eq!(ragged_backend(&call(), &SdpaOptions::new(&mask)).unwrap(), None);
    }

    #[test]
    fn calls_that_it_does_not_support_are_named() {
        let full = AttentionMask::full();
        let ones = Tensor::ones((2, 4, 5, 5), DType::U8, &candle_core::Device::Cpu).unwrap();
        let dense = AttentionMask::keep(&ones).unwrap();
        let reason = |call: Call, options: SdpaOptions| {
            let options = options.with_backend(Backend::MetalKernel);
            unsupported_reason(&call, &options).unwrap_or_default()
        };
        let masks = [
            AttentionMask::lengths(&[5, 3]),
            AttentionMask::padding(&[5, 0]).and(AttentionMask::causal()),
            AttentionMask::window(Some(2), Some(1)),
        ];
        for mask in &masks {
            assert_eq!(reason(call(), SdpaOptions::new(mask)), "", "{mask}");
        }
        assert_eq!(
            reason(Call { d_v: 256, shape: AttnShape { s_q: 1, ..call().shape }, ..call() }, SdpaOptions::new(&full)),
            ""
        );
        let wrong = [
            (Call { device: DeviceKind::Cpu, ..call() }, SdpaOptions::new(&full), "not on an Apple GPU"),
            (Call { dtype: DType::F64, ..call() }, SdpaOptions::new(&full), "f64"),
            (Call { d: 257, ..call() }, SdpaOptions::new(&full), "larger than 256"),
            (call(), SdpaOptions::new(&full).with_appended_keys(1), "appended keys"),
            (call(), SdpaOptions::new(&dense), "lengths per sequence"),
            (Call { shape: AttnShape { s_kv: 1 << 31, ..call().shape }, ..call() }, SdpaOptions::new(&full), "2^30"),
        ];
        for (call, options, expected) in wrong {
            assert!(reason(call, options.clone()).contains(expected), "{call:?}");
        }
    }

    /// A ragged batch is checked before the kernel relies on it.
    #[test]
    fn wrong_ragged_batches_are_errors() {
        let full = AttentionMask::full();
        let options = SdpaOptions::new(&full);
        let run = |offsets: &[usize], tokens| {
            arguments([[0, 320, 40]; 3], tokens, Some(offsets), &MaskStructure::default(), &call(), &options)
        };
        let (params, all) = run(&[0, 3, 8], 8).unwrap();
        assert_eq!((params.q_strides, params.h, params.h_kv), ([320, 40], 4, 2));
        let of = |sequence: &Sequence| (sequence.q, sequence.out, sequence.queries, sequence.visible_keys);
        assert_eq!(all.iter().map(of).collect::<Vec<_>>(), [(0, 0, 3, 3), (960, 480, 5, 5)]);
        for (offsets, tokens) in [(&[0, 3, 8][..], 9), (&[0, 2, 8], 8), (&[0, 8], 8), (&[1, 4, 8], 8), (&[0, 5, 3], 3)]
        {
            assert!(run(offsets, tokens).is_err(), "{offsets:?} of {tokens}");
        }
    }
}
