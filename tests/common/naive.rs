//! The reference: attention as loops in f64, one formula per line.

use candle_core::{Device, Tensor};

use crate::common::numbers;

/// Whether a query sees a key: `None` hides the key, `Some(bias)` is added to its score. Arguments: batch, head, query,
/// key.
pub type Sees<'a> = &'a dyn Fn(usize, usize, usize, usize) -> Option<f64>;

/// The score of a query and a key.
pub enum Score<'a> {
    Dot(f64),
    /// A dot product with softcap, `cap · tanh(score / cap)`, and attention sinks `(h)`: one more score per head,
    /// without a value.
    Bent {
        scale: f64,
        cap: Option<f64>,
        sinks: Option<&'a Tensor>,
    },
    /// `scale · Σ w · tanh(q + k)` with w `(h, d)`.
    Additive(&'a Tensor, f64),
}

/// q `(b, s_q, h, d)`, k `(b, s_kv, h_kv, d)`, v `(b, s_kv, h_kv, d_v)` → output `(b, s_q, h, d_v)` and attention
/// weights `(b, h, s_q, s_kv)`, both f64.
pub fn attend(q: &Tensor, k: &Tensor, v: &Tensor, score: &Score, sees: Sees) -> (Tensor, Tensor) {
    let (b, s_q, h, d) = q.dims4().unwrap();
    let (_, s_kv, h_kv, d_v) = v.dims4().unwrap();
    let (q, k, v) = (numbers(q), numbers(k), numbers(v));
    let sinks =
        if let Score::Bent { sinks: Some(sinks), .. } = score { numbers(sinks) } else { vec![f64::NEG_INFINITY; h] };
    let w = if let Score::Additive(w, _) = score { numbers(w) } else { Vec::new() };
    let mut output = vec![0.0; b * s_q * h * d_v];
    let mut weights = vec![0.0; b * h * s_q * s_kv];
    for (bi, hi, i) in (0..b).flat_map(|bi| (0..h).flat_map(move |hi| (0..s_q).map(move |i| (bi, hi, i)))) {
        let kv_head = hi / (h / h_kv);
        let q_row = &q[((bi * s_q + i) * h + hi) * d..][..d];
        let scores: Vec<Option<f64>> = (0..s_kv)
            .map(|j| {
                let bias = sees(bi, hi, i, j)?;
                let k_row = &k[((bi * s_kv + j) * h_kv + kv_head) * d..][..d];
                let pairs = q_row.iter().zip(k_row);
                let score = match score {
                    Score::Dot(scale) => scale * pairs.map(|(q, k)| q * k).sum::<f64>(),
                    Score::Bent { scale, cap, .. } => {
                        let score = scale * pairs.map(|(q, k)| q * k).sum::<f64>();
                        cap.map_or(score, |cap| cap * (score / cap).tanh())
                    }
                    Score::Additive(_, scale) => {
                        scale * pairs.zip(&w[hi * d..]).map(|((q, k), w)| w * (q + k).tanh()).sum::<f64>()
                    }
                };
                Some(score + bias)
            })
            .collect();
        let max = scores.iter().flatten().copied().fold(sinks[hi], f64::max);
        let sum: f64 = scores.iter().flatten().chain(&[sinks[hi]]).map(|score| (score - max).exp()).sum();
        for (j, score) in scores.iter().enumerate() {
            let Some(score) = score else { continue };
            let weight = (score - max).exp() / sum;
            weights[((bi * h + hi) * s_q + i) * s_kv + j] = weight;
            let v_row = &v[((bi * s_kv + j) * h_kv + kv_head) * d_v..][..d_v];
            let out = &mut output[((bi * s_q + i) * h + hi) * d_v..][..d_v];
            out.iter_mut().zip(v_row).for_each(|(out, v)| *out += weight * v);
        }
    }
    let tensor = |numbers, dims: [usize; 4]| Tensor::from_vec(numbers, &dims, &Device::Cpu).unwrap();
    (tensor(output, [b, s_q, h, d_v]), tensor(weights, [b, h, s_q, s_kv]))
}
