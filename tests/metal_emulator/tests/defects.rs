//! What candle 0.11.1 computes wrong on its Metal device: each test shows one defect of `docs/candle-metal.md`, and fails once
//! candle is right.

use std::sync::OnceLock;

use candle_core::{DType, Device, IndexOp, Result, Tensor};
use candle_nn::ops::sdpa;

fn metal() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| candle_attention::metal_device(0).unwrap())
}

/// Numbers from -1 to 1.
fn numbers(dims: &[usize], seed: usize) -> Tensor {
    let count = dims.iter().product::<usize>();
    let values = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0);
    Tensor::from_iter(values, &Device::Cpu).unwrap().reshape(dims).unwrap()
}

/// The largest difference; infinite where a number is NaN.
fn difference(a: &Tensor, b: &Tensor) -> f32 {
    let numbers = |t: &Tensor| t.to_device(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(a.dims(), b.dims());
    let pairs = numbers(a).into_iter().zip(numbers(b));
    pairs.map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() }).fold(0.0, f32::max)
}

/// Attention of the last `s_q` of the queries, by single operations on the CPU.
fn expected(q: &Tensor, k: &Tensor, v: &Tensor, causal: bool) -> Result<Tensor> {
    let (s_q, s_kv, d) = (q.dim(2)?, k.dim(2)?, q.dim(3)?);
    let mut scores = (q.broadcast_matmul(&k.transpose(2, 3)?.contiguous()?)? / (d as f64).sqrt())?;
    if causal {
        let hidden =
            (0..s_q).flat_map(|i| (0..s_kv).map(move |j| if j + s_q > i + s_kv { f32::NEG_INFINITY } else { 0.0 }));
        scores = scores.broadcast_add(&Tensor::from_iter(hidden, &Device::Cpu)?.reshape((s_q, s_kv))?)?;
    }
    candle_nn::ops::softmax_last_dim(&scores)?.broadcast_matmul(v)
}

#[test]
fn candle_sees_later_keys_in_causal_attention_of_fewer_queries() {
    let q = numbers(&[1, 2, 27, 64], 1);
    // Parts of larger tensors, so that what the kernel reads after the last key are numbers.
    let [k, v] = [2, 3].map(|seed| numbers(&[1, 2, 64, 64], seed));
    let [q_on_device, k_on_device, v_on_device] = [&q, &k, &v].map(|t| t.to_device(metal()).unwrap());
    let [k, v] = [k, v].map(|t| t.narrow(2, 0, 32).unwrap());
    let [k_on_device, v_on_device] = [k_on_device, v_on_device].map(|t| t.narrow(2, 0, 32).unwrap());
    for (causal, right) in [(false, true), (true, false)] {
        let got = sdpa(&q_on_device, &k_on_device, &v_on_device, None, causal, 0.125, 1.0).unwrap();
        let off = difference(&got, &expected(&q, &k, &v, causal).unwrap());
        println!("27 queries, 32 keys, causal {causal}: {off}");
        assert_eq!(off < 1e-5, right, "{off}");
    }
}

#[test]
fn candle_reads_after_the_last_value_in_causal_attention() {
    let [q, k, v] = [1, 2, 3].map(|seed| numbers(&[1, 2, 10, 128], seed));
    let [q_on_device, k_on_device, v_on_device] = [&q, &k, &v].map(|t| t.to_device(metal()).unwrap());
    let got = sdpa(&q_on_device, &k_on_device, &v_on_device, None, true, 128f32.powf(-0.5), 1.0).unwrap();
    // Memory after a buffer is NaN on the emulator.
    assert_eq!(difference(&got, &expected(&q, &k, &v, true).unwrap()), f32::INFINITY);
}

#[test]
fn candle_has_no_kernel_for_a_single_query_of_72_or_80() {
    for d in [72, 80] {
        let [q, kv] = [1, 32].map(|s| numbers(&[1, 2, s, d], s).to_device(metal()).unwrap());
        assert!(sdpa(&q, &kv, &kv, None, false, 0.1, 1.0).unwrap_err().to_string().contains("head size"));
    }
}

#[test]
fn candle_mixes_sequences_under_a_single_query_and_key_head() {
    let (q, kv) = (numbers(&[2, 4, 1, 64], 1), numbers(&[2, 20, 1, 64], 2));
    let kv_on_device = kv.to_device(metal()).unwrap().transpose(1, 2).unwrap().contiguous().unwrap();
    // The stride of the one head, which candle leaves as it was, is that of a key.
    assert_eq!(kv_on_device.stride(), [1280, 64, 64, 1]);
    let q_on_device = q.to_device(metal()).unwrap();
    let got = sdpa(&q_on_device, &kv_on_device, &kv_on_device, None, false, 0.125, 1.0).unwrap();
    let kv = kv.transpose(1, 2).unwrap();
    let off = difference(&got, &expected(&q, &kv, &kv, false).unwrap());
    println!("one head: {off}");
    assert!(off > 0.1, "candle is right now: {off}");
}

#[test]
fn candle_mixes_sequences_in_products_with_one_head() {
    let (a, b) = (numbers(&[2, 1, 4, 8], 1), numbers(&[2, 6, 1, 8], 2));
    let product = |device: &Device| {
        let b = b.to_device(device)?.transpose(1, 2)?.contiguous()?;
        a.to_device(device)?.matmul(&b.t()?)
    };
    let off = difference(&product(metal()).unwrap(), &product(&Device::Cpu).unwrap());
    println!("product: {off}");
    assert!(off > 0.1, "candle is right now: {off}");
}

#[test]
fn candle_reads_after_the_kernel_of_a_convolution() {
    let convolved = |device: &Device| {
        let kernel = numbers(&[3, 4, 1, 1], 2).to_device(device)?.i((.., 1..3, .., ..))?;
        numbers(&[1, 2, 4, 4], 1).to_device(device)?.conv2d(&kernel, 0, 2, 1, 1)
    };
    let off = difference(&convolved(metal()).unwrap(), &convolved(&Device::Cpu).unwrap());
    println!("convolution: {off}");
    assert!(off > 0.1, "candle is right now: {off}");
}

#[test]
fn candle_refuses_empty_tensors_and_strided_ids() {
    let empty = Tensor::zeros((0, 3), DType::F32, &Device::Cpu).unwrap();
    assert!(empty.to_device(metal()).is_err());
    let ids = Tensor::new(&[[0u32, 1], [2, 1]], metal()).unwrap().i((.., 0)).unwrap();
    let rows = numbers(&[3, 2], 1).to_device(metal()).unwrap();
    assert!(rows.index_select(&ids, 0).is_err());
}
