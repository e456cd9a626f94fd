//! Every instruction set of this machine against naive references in f64, over odd sizes.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "aarch64")]
mod arm;
mod attention;
mod backward;
mod blas;
mod convert;
mod distances;
mod few_queries;
mod functions;
mod gate;
mod gemm;
mod int8;
mod int8_heads;
#[path = "../../../tests/common/loops.rs"]
mod loops;
mod memory;
mod non_finite;
mod norm;
mod pair_tiles;
mod score_tiles;
pub(crate) mod sets;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
mod sizes;
mod support;
mod team;
mod unpack;

use candle_attention_kernels::{Isa, PackedWeights, Packer, Result, WeightFormat};
use support::{Random, downcast, upcast};

/// The instruction sets of this machine, or only the one that `CANDLE_ATTENTION_ISA` names.
fn isas() -> Vec<Isa> {
    let forced = std::env::var("CANDLE_ATTENTION_ISA").ok();
    let isas: Vec<Isa> =
        Isa::all().into_iter().filter(|isa| forced.as_ref().is_none_or(|name| isa.name() == name)).collect();
    assert!(!isas.is_empty(), "this machine does not have {forced:?}");
    isas
}

/// Runs with a pool of so many threads; on WebAssembly, which has none, on the only one.
fn on_threads<R: Send>(threads: usize, run: impl FnOnce() -> R + Send) -> R {
    if cfg!(target_family = "wasm") {
        return run();
    }
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

impl PackedWeights {
    /// Packs `weight` `(out_features, in_features)` and `bias` `(out_features)`.
    pub fn new(
        isa: Isa,
        weight: &[f32],
        bias: Option<&[f32]>,
        out_features: usize,
        in_features: usize,
    ) -> Result<Self> {
        let mut packer = Packer::new(isa, WeightFormat::F32, out_features, in_features)?;
        packer.push(out_features, weight, bias)?;
        packer.finish()
    }

    /// Packs weights that are f16 values.
    pub fn new_f16(
        isa: Isa,
        weight: &[f32],
        bias: Option<&[f32]>,
        out_features: usize,
        in_features: usize,
    ) -> Result<Self> {
        let mut packer = Packer::new(isa, WeightFormat::F16, out_features, in_features)?;
        packer.push(out_features, &downcast::<half::f16>(weight), bias)?;
        packer.finish()
    }

    /// Packs weights that are bf16 values.
    pub fn new_bf16(
        isa: Isa,
        weight: &[f32],
        bias: Option<&[f32]>,
        out_features: usize,
        in_features: usize,
    ) -> Result<Self> {
        let weight: Vec<half::bf16> = weight.iter().map(|weight| half::bf16::from_f32(*weight)).collect();
        let mut packer = Packer::new(isa, WeightFormat::Bf16, out_features, in_features)?;
        packer.push(out_features, &weight, bias)?;
        packer.finish()
    }
}
