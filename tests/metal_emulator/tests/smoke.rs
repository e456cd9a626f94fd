//! Operations of candle on its Metal device, against the same on the CPU.

use candle_core::{DType, Device, Module, Result, Tensor};

/// Numbers from -1 to 1.
fn numbers(dims: &[usize], seed: usize) -> Tensor {
    let count = dims.iter().product::<usize>();
    let values = (0..count).map(|i| ((i * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0);
    Tensor::from_iter(values, &Device::Cpu).unwrap().reshape(dims).unwrap()
}

/// The largest difference between what `f` gives on the two devices.
fn difference(f: impl Fn(&Device) -> Result<Tensor>) -> f32 {
    let metal = Device::new_metal(0).unwrap();
    let [want, got] = [&Device::Cpu, &metal].map(|device| {
        let output = f(device).unwrap().to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap();
        output.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    });
    assert_eq!(want.len(), got.len());
    let differences = want.iter().zip(&got).map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() });
    differences.fold(0.0, f32::max)
}

fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F32 => 1e-5,
        DType::F16 => 4e-3,
        _ => 3e-2,
    }
}

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

#[test]
fn elementwise() {
    for dtype in DTYPES {
        let off = difference(|device| {
            let x = numbers(&[3, 5, 7], 1).to_dtype(dtype)?.to_device(device)?;
            let y = numbers(&[3, 1, 7], 2).to_dtype(dtype)?.to_device(device)?;
            ((x.broadcast_mul(&y)? * 0.5)?.exp()?.transpose(0, 1)?.contiguous()? + 1.0)?.gelu()
        });
        assert!(off < tolerance(dtype) * 4.0, "{dtype:?}: {off}");
    }
}

#[test]
fn products() {
    for dtype in DTYPES {
        for (m, k, n) in [(1, 64, 48), (5, 7, 3), (33, 40, 65), (64, 64, 64)] {
            let off = difference(|device| {
                let x = numbers(&[2, m, k], 1).to_dtype(dtype)?.to_device(device)?;
                let y = numbers(&[2, n, k], 2).to_dtype(dtype)?.to_device(device)?;
                x.matmul(&y.transpose(1, 2)?)? / k as f64
            });
            assert!(off < tolerance(dtype), "{dtype:?} {m} {k} {n}: {off}");
        }
    }
}

#[test]
fn softmax_and_norms() {
    for dtype in DTYPES {
        let off = difference(|device| {
            let x = numbers(&[4, 50], 1).to_dtype(dtype)?.to_device(device)?;
            let gain = numbers(&[50], 2).to_dtype(dtype)?.to_device(device)?;
            let norm = candle_nn::LayerNorm::new(gain.clone(), gain.clone(), 1e-5).forward(&x)?;
            candle_nn::ops::softmax_last_dim(&x)? + norm + candle_nn::ops::rms_norm(&x, &gain, 1e-5)?
        });
        assert!(off < tolerance(dtype) * 8.0, "{dtype:?}: {off}");
    }
}

/// Attention by candle's fused kernels, in f32 on the CPU by its parts.
#[test]
fn attention() {
    for dtype in DTYPES {
        for d in [32, 64, 72, 80, 96, 128, 256, 512] {
            for (s_q, s_kv, heads) in [(37, 37, 2), (9, 70, 1), (1, 50, 1), (1, 1500, 1)] {
                if s_q > 1 && dtype == DType::F32 && d >= 256 {
                    continue; // more threadgroup memory than there is
                }
                if s_q == 1 && [72, 80].contains(&d) {
                    continue; // no kernel for one query
                }
                let off = difference(|device| {
                    let q = numbers(&[1, 2, s_q, d], 1).to_dtype(dtype)?.to_device(device)?;
                    let k = numbers(&[1, heads, s_kv, d], 2).to_dtype(dtype)?.to_device(device)?;
                    let v = numbers(&[1, heads, s_kv, d], 3).to_dtype(dtype)?.to_device(device)?;
                    let scale = (d as f64).powf(-0.5);
                    if device.is_metal() {
                        return candle_nn::ops::sdpa(&q, &k, &v, None, false, scale as f32, 1.0);
                    }
                    let wide = |t: &Tensor| t.to_dtype(DType::F32);
                    let scores = (wide(&q)?.broadcast_matmul(&wide(&k)?.transpose(2, 3)?)? * scale)?;
                    candle_nn::ops::softmax_last_dim(&scores)?.broadcast_matmul(&wide(&v)?)
                });
                assert!(off < tolerance(dtype), "{dtype:?} d {d}, {s_q} queries, {s_kv} keys: {off}");
            }
        }
    }
}
