//! Products by a library, which loops stand in for: as by the kernels, on every way to run a layer.

use candle_attention::ops::with_blas;
use candle_attention::position::Rotary;
use candle_attention::tensor::MapTensors;
use candle_attention::{
    AttentionConfig, AttentionMask, GateActivation, GateOver, HeadNorm, LatentAttention, MultiHeadAttention, NormKind,
    NormOver, OutputGate,
};
use candle_core::{DType, Tensor};

use crate::common::everywhere::Everywhere;
use crate::common::loops::{LOOPS, count_multiply_adds};
use crate::common::{Random, attend_ragged, random_layer};

#[test]
fn every_way_to_run_a_layer_gives_the_same() {
    let causal = |config: AttentionConfig| config.with_mask(AttentionMask::causal());
    let grouped = causal(AttentionConfig::new(12, 4).with_num_key_value_heads(2).with_head_dim(6));
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6);
    let gate = OutputGate::new(GateActivation::Sigmoid, GateOver::Element);
    let latent = AttentionConfig::new(14, 3).with_latent(LatentAttention::new(11, 5, 4, 7).with_q_lora_rank(6));
    with_blas(Some(LOOPS), || {
        Everywhere::new(AttentionConfig::new(12, 3)).check(1);
        Everywhere::new(grouped.with_position(Rotary::default()).with_qk_norm(norm).with_output_gate(gate)).check(2);
        Everywhere::new(causal(latent).with_position(Rotary::default())).in_layout("deepseek").check(3);
    });
}

#[test]
fn no_padding_is_multiplied() {
    let config = AttentionConfig::new(12, 4).with_num_key_value_heads(2).with_output_size(13);
    let (lengths, mut random) = ([9, 1, 4], Random::new(4));
    let xs = random.tensor(&[3, 9, 12], DType::F32);
    let rows: Vec<Tensor> = (0..3).map(|i| xs.get(i).unwrap().narrow(0, 0, lengths[i]).unwrap()).collect();
    let rows = Tensor::cat(&rows, 0).unwrap();
    let (qkv, output) = (12 * (12 + 6 + 6), 12 * 13);
    for dtype in [DType::F32, DType::BF16] {
        let layer = random_layer(&config, 0.5, &mut random);
        let [xs, rows] = [&xs, &rows].map(|xs| xs.to_dtype(dtype).unwrap());
        let count = |run: &dyn Fn(&MultiHeadAttention)| {
            let layer = layer.map_tensors(&mut |tensor| Ok(tensor.to_dtype(dtype)?)).unwrap();
            count_multiply_adds(|counted| with_blas(Some(counted), || run(&layer)))
        };
        let (full, padding) = (AttentionMask::full(), AttentionMask::padding(&lengths));
        let ragged = count(&|layer| _ = attend_ragged(layer, &rows, &lengths, &full).unwrap());
        let padded = count(&|layer| _ = layer.attend(&xs, &xs, &xs, &padding).unwrap());
        assert_eq!(ragged, 14 * (qkv + output));
        assert_eq!(padded, ragged + 4 * output, "and four rows, the fewest, for the outputs of all padding");
    }
}
