//! What a program that depends on the crate gets with it.

/// Only the feature `x86-v4` compiles candle's own products for AVX-512, and no other feature but `default` asks for
/// it.
#[test]
fn the_bare_layer_leaves_candle_as_it_is() {
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    let lines = |part: &str| -> Vec<&str> {
        let settings = manifest.lines().filter(|line| !line.starts_with('#') && line.contains(part));
        settings.map(|line| line.split('=').next().unwrap().trim()).collect()
    };
    assert_eq!(lines("\"dep:gemm\""), ["x86-v4"]);
    assert_eq!(lines("x86-v4\""), ["default", "gemm"]);
    let gemm = manifest.lines().find(|line| line.starts_with("gemm =")).unwrap();
    assert!(gemm.contains("optional = true"), "{gemm}");
}

/// The re-exports are the crates whose tensors the layer takes.
#[test]
fn candle_is_re_exported() {
    use candle_attention::candle_core::{DType, Device, Module, Tensor};
    use candle_attention::candle_nn::{VarBuilder, VarMap};
    use candle_attention::{AttentionConfig, MultiHeadAttention};

    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let layer = MultiHeadAttention::new(&AttentionConfig::new(6, 2), vb).unwrap();
    let xs = Tensor::ones((1, 3, 6), DType::F32, &Device::Cpu).unwrap();
    assert_eq!(layer.forward(&xs).unwrap().dims(), [1, 3, 6]);
}
