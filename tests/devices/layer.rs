//! The whole layer: projections around attention, ragged rows, caches and positions.

use std::collections::HashMap;

use candle_attention::position::{Alibi, Position, Rotary, RotaryStyle, T5RelativeBias};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, HeadNorm, KvCache, MultiHeadAttention, NormKind,
    NormOver,
};
use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use crate::cases::DTYPES;
use crate::common::Random;
use crate::common::naive::{self, Score, Sees};
use crate::judge::{Verdict, What, largest, to_cpu};
use crate::masks::{Extent, Kind};

/// A layer with fixed weights on a device, and the same weights in f64 on the CPU.
struct Layer {
    config: AttentionConfig,
    dtype: DType,
    weights: HashMap<String, Tensor>,
    on_device: MultiHeadAttention,
}

impl Layer {
    fn new(config: AttentionConfig, dtype: DType, device: &Device) -> Self {
        let map = VarMap::new();
        MultiHeadAttention::new(&config, VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu)).unwrap();
        let data = map.data().lock().unwrap();
        let mut names: Vec<_> = data.keys().cloned().collect();
        names.sort();
        let mut random = Random::new(50);
        // Weights that keep the magnitude of their input.
        let mut tensor = |name: &String| {
            let dims = data[name].dims();
            let factor = (3.0 / dims.last().map_or(1.0, |n| *n as f64)).sqrt();
            ((random.tensor(dims, DType::F32) * factor).unwrap()).to_dtype(dtype).unwrap()
        };
        let weights: HashMap<_, _> = names.iter().map(|name| (name.clone(), tensor(name))).collect();
        let moved = weights.iter().map(|(name, t)| (name.clone(), t.to_device(device).unwrap())).collect();
        let on_device = MultiHeadAttention::load(&config, VarBuilder::from_tensors(moved, dtype, device)).unwrap();
        Self { config, dtype, weights, on_device }
    }

    /// The layer in f64 on the eager backend on the CPU, which the suite compares with other libraries.
    fn in_f64(&self) -> MultiHeadAttention {
        let vb = VarBuilder::from_tensors(self.weights.clone(), DType::F64, &Device::Cpu);
        MultiHeadAttention::load(&self.config, vb).unwrap()
    }

    fn project(&self, name: &str, xs: &Tensor) -> Tensor {
        let parameter = |kind: &str| wide(&self.weights[&format!("{name}.{kind}")]);
        wide(xs).broadcast_matmul(&parameter("weight").t().unwrap()).unwrap().broadcast_add(&parameter("bias")).unwrap()
    }

    /// The output by the formula of attention.
    fn reference(&self, xs: &Tensor, memory: &Tensor, sees: Sees) -> Tensor {
        let heads = |t: Tensor, heads: usize| {
            let (b, s, width) = t.dims3().unwrap();
            t.reshape((b, s, heads, width / heads)).unwrap()
        };
        let (h, h_kv) = (self.config.num_attention_heads, self.config.resolved_num_key_value_heads());
        let [q, k, v] = [("q_proj", xs, h), ("k_proj", memory, h_kv), ("v_proj", memory, h_kv)]
            .map(|(name, xs, count)| heads(self.project(name, xs), count));
        let (context, _) = naive::attend(&q, &k, &v, &Score::Dot(self.config.resolved_scale()), sees);
        self.project("o_proj", &context.flatten_from(2).unwrap())
    }

    fn judge(&self, verdict: &mut Verdict, name: &str, got: &Tensor, want: &Tensor) {
        let name = format!("{name} in {:?}, {:?}", self.dtype, self.config);
        verdict.compare(&name, What::Layer, self.dtype, got, want, largest(want));
    }
}

fn wide(t: &Tensor) -> Tensor {
    t.to_dtype(DType::F64).unwrap()
}

/// A head dimension that fused kernels support, one that they may not support, and grouped heads.
fn configs() -> [AttentionConfig; 3] {
    [
        AttentionConfig::new(96, 3),
        AttentionConfig::new(64, 4).with_num_key_value_heads(2).with_head_dim(64),
        AttentionConfig::new(50, 6).with_num_key_value_heads(2).with_head_dim(20).with_value_head_dim(13),
    ]
}

/// A layer per configuration and dtype.
fn layers(device: &Device) -> impl Iterator<Item = Layer> {
    let dtypes = configs().into_iter().flat_map(|config| DTYPES.map(|dtype| (config.clone(), dtype)));
    dtypes.map(|(config, dtype)| Layer::new(config, dtype, device))
}

/// Self-attention and cross-attention, on every backend that supports it.
pub fn under_every_mask(device: &Device) {
    let mut verdict = Verdict::default();
    let layers: Vec<_> = layers(device).collect();
    for (layer, kind) in layers.iter().flat_map(|layer| Kind::ALL.map(|kind| (layer, kind))) {
        let (b, s_q) = (2, 19);
        let mut random = Random::new(kind as u64 + 300);
        let xs = random.tensor(&[b, s_q, layer.config.hidden_size], layer.dtype);
        let memory = random.tensor(&[b, 33, layer.config.hidden_size], layer.dtype);
        let (xs_there, memory_there) = (xs.to_device(device).unwrap(), memory.to_device(device).unwrap());
        for (memory, memory_there) in [(&xs, &xs_there), (&memory, &memory_there)] {
            let extent = Extent { b, h: layer.config.num_attention_heads, s_q, s_kv: memory.dim(1).unwrap() };
            if kind.needs_self_attention() && s_q != extent.s_kv {
                continue;
            }
            let place = |mask: Tensor| mask.to_device(device).unwrap();
            let (mask, sees) = kind.make(extent, layer.dtype, &mut random, &place);
            let want = layer.reference(&xs, memory, &sees);
            let inputs = AttentionInputs::cross_attention(&xs_there, memory_there, &mask);
            let plan = layer.on_device.plan(&inputs, &AttentionOptions::default()).unwrap();
            let chosen = layer.on_device.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
            layer.judge(&mut verdict, &format!("{kind:?}, chosen"), &chosen, &want);
            for backend in plan.rejected.iter().map(|rejected| rejected.backend).chain([plan.backend]) {
                let options = AttentionOptions::default().with_backend(backend);
                if layer.on_device.plan(&inputs, &options).is_ok() {
                    let got = layer.on_device.attend_with(&inputs, &options).unwrap().output;
                    layer.judge(&mut verdict, &format!("{kind:?} on {backend}"), &got, &want);
                    if backend == plan.backend {
                        verdict.same(&format!("{kind:?} on {backend}, chosen and forced"), &chosen, &got);
                    }
                }
            }
        }
    }
    verdict.end(device);
}

/// Ragged batches against the formula per sequence, and against a padded batch.
pub fn on_ragged_batches(device: &Device) {
    const LENGTHS: [usize; 5] = [3, 70, 1, 0, 17];
    let mut verdict = Verdict::default();
    let masks = [AttentionMask::full(), AttentionMask::causal(), AttentionMask::window(Some(2), Some(1))];
    for layer in layers(device) {
        let hidden = layer.config.hidden_size;
        let xs = Random::new(61).tensor(&[LENGTHS.iter().sum(), hidden], layer.dtype);
        for mask in &masks {
            let xs_there = xs.to_device(device).unwrap();
            let inputs = AttentionInputs::ragged(&xs_there, &LENGTHS, mask);
            let got = layer.on_device.attend_with(&inputs, &AttentionOptions::default()).unwrap().output;
            let sees = |_: usize, _: usize, i: usize, j: usize| {
                let seen = match mask.to_string().as_str() {
                    "none" => true,
                    "causal" => j <= i,
                    _ => i <= j + 2 && j <= i + 1,
                };
                seen.then_some(0.0)
            };
            let (mut start, mut rows) = (0, Vec::new());
            for length in LENGTHS {
                rows.push(xs.narrow(0, start, length).unwrap().unsqueeze(0).unwrap());
                start += length;
            }
            let filled = || rows.iter().filter(|row| row.dims()[1] > 0);
            let want: Vec<_> = filled().map(|row| layer.reference(row, row, &sees).squeeze(0).unwrap()).collect();
            let want = Tensor::cat(&want, 0).unwrap();
            layer.judge(&mut verdict, &format!("ragged, {mask}"), &got, &want);

            let longest = LENGTHS.into_iter().max().unwrap();
            let pad = |row: &Tensor| match row.dims()[1] {
                0 => Tensor::zeros((1, longest, hidden), layer.dtype, &Device::Cpu).unwrap(),
                length => row.pad_with_zeros(1, 0, longest - length).unwrap(),
            };
            let padded = Tensor::cat(&rows.iter().map(pad).collect::<Vec<_>>(), 0).unwrap().to_device(device).unwrap();
            let mask = mask.clone().and(AttentionMask::padding(&LENGTHS));
            let padded = to_cpu(&layer.on_device.attend(&padded, &padded, &padded, &mask).unwrap());
            let unpadded = LENGTHS.iter().enumerate().filter(|(_, length)| **length > 0);
            let unpadded = unpadded.map(|(row, length)| padded.get(row).unwrap().narrow(0, 0, *length).unwrap());
            let unpadded = Tensor::cat(&unpadded.collect::<Vec<_>>(), 0).unwrap();
            layer.judge(&mut verdict, &format!("padded, {mask}"), &unpadded, &want);
        }
    }
    verdict.end(device);
}

/// A sequence in chunks through each kind of cache, against the whole sequence.
pub fn token_by_token(device: &Device) {
    const CHUNKS: [usize; 6] = [5, 1, 1, 3, 1, 1];
    let s = CHUNKS.iter().sum();
    let mut verdict = Verdict::default();
    for layer in layers(device) {
        let xs = Random::new(62).tensor(&[2, s, layer.config.hidden_size], layer.dtype);
        let there = xs.to_device(device).unwrap();
        for (mut cache, window) in [(KvCache::growing(), s), (KvCache::fixed(s), s), (KvCache::streaming(4), 4)] {
            let sees = |_: usize, _: usize, i: usize, j: usize| (j <= i && i < j + window).then_some(0.0);
            let want = layer.reference(&xs, &xs, &sees);
            let (mut start, mut outputs) = (0, Vec::new());
            for length in CHUNKS {
                let chunk = there.narrow(1, start, length).unwrap();
                let mask = AttentionMask::causal();
                let inputs = AttentionInputs::self_attention(&chunk, &mask);
                let options = AttentionOptions::default();
                outputs.push(layer.on_device.attend_with(&inputs.with_cache(&mut cache), &options).unwrap().output);
                start += length;
            }
            let got = Tensor::cat(&outputs, 1).unwrap();
            layer.judge(&mut verdict, &format!("cached, a window of {window}"), &got, &want);
        }

        // Sequences of different lengths: the second has one token fewer in each chunk of more than one token.
        for (mut cache, window) in [(KvCache::growing(), s), (KvCache::streaming(4), 4)] {
            let (mut starts, mut kept) = ([0, 0], [Vec::new(), Vec::new()]);
            let mask = AttentionMask::causal();
            for length in CHUNKS {
                let lengths = [length, (length - 1).max(1)];
                let row = |row: usize| {
                    let there = there.narrow(0, row, 1).unwrap().narrow(1, starts[row], lengths[row]).unwrap();
                    there.pad_with_zeros(1, 0, length - lengths[row]).unwrap()
                };
                let chunk = Tensor::cat(&[row(0), row(1)], 0).unwrap();
                let inputs = AttentionInputs::self_attention(&chunk, &mask);
                let options = AttentionOptions::default();
                let got = layer.on_device.attend_with(&inputs.with_cache_lengths(&mut cache, &lengths), &options);
                let got = got.unwrap().output;
                for row in 0..2 {
                    kept[row].push(got.narrow(0, row, 1).unwrap().narrow(1, 0, lengths[row]).unwrap());
                    starts[row] += lengths[row];
                }
            }
            let want = layer.reference(&xs, &xs, &|_, _, i, j| (j <= i && i < j + window).then_some(0.0));
            for row in 0..2 {
                let (what, got) =
                    (format!("cached row {row}, a window of {window}"), Tensor::cat(&kept[row], 1).unwrap());
                layer.judge(
                    &mut verdict,
                    &what,
                    &got,
                    &want.narrow(0, row, 1).unwrap().narrow(1, 0, starts[row]).unwrap(),
                );
            }
        }

        // Sequences selected from a memory that was projected once, and their queries token by token.
        let memory = Random::new(64).tensor(&[2, 7, layer.config.hidden_size], layer.dtype);
        let memory_there = memory.to_device(device).unwrap();
        let cache = layer.on_device.cross_cache(&memory_there, &memory_there).unwrap();
        let cache = cache.select_sequences(&[1, 1]).unwrap();
        let rows = Tensor::new(&[1u32, 1], &Device::Cpu).unwrap();
        let want = layer.reference(&xs, &memory.index_select(&rows, 0).unwrap(), &|_, _, _, _| Some(0.0));
        let token = |at: usize| {
            let (query, options) = (there.narrow(1, at, 1).unwrap(), AttentionOptions::default());
            let inputs = AttentionInputs::cross_cached(&query, &cache, AttentionMask::full());
            layer.on_device.attend_with(&inputs, &options).unwrap().output
        };
        let got = Tensor::cat(&(0..s).map(token).collect::<Vec<_>>(), 1).unwrap();
        layer.judge(&mut verdict, "cross-attention with a cache", &got, &want);
    }
    verdict.end(device);
}

/// Positions, norms and other steps between projection and attention, against the same layer in f64.
pub fn with_positions(device: &Device) {
    let mut verdict = Verdict::default();
    let plain = || AttentionConfig::new(64, 4).with_num_key_value_heads(2).with_head_dim(32);
    let rotary = || Rotary::default().with_theta(30.0);
    let norm = |kind, over| plain().with_qk_norm(HeadNorm::new(kind, over, 1e-6));
    let configs = [
        plain().with_position(Position::Rotary(rotary())),
        plain().with_position(Position::Rotary(rotary().with_dim(16).with_style(RotaryStyle::Interleaved))),
        plain().with_position(Position::Alibi(Alibi::default())),
        plain().with_position(Position::Alibi(Alibi::default().with_symmetric(true))),
        plain().with_position(Position::T5RelativeBias(T5RelativeBias::new(8, 12, true))),
        norm(NormKind::Rms, NormOver::Head),
        norm(NormKind::Layer, NormOver::AllHeads),
        plain().with_softcap(1.5).with_clip_qkv(1.0),
        plain().with_add_zero_attn(true).with_add_bias_kv(true),
    ];
    for (config, dtype) in configs.into_iter().flat_map(|config| DTYPES.map(|dtype| (config.clone(), dtype))) {
        let layer = Layer::new(config, dtype, device);
        let xs = Random::new(63).tensor(&[2, 23, 64], dtype);
        let (there, wide_xs) = (xs.to_device(device).unwrap(), wide(&xs));
        for mask in [AttentionMask::full(), AttentionMask::causal(), AttentionMask::padding(&[9, 23])] {
            let want = layer.in_f64().attend(&wide_xs, &wide_xs, &wide_xs, &mask).unwrap();
            let got = layer.on_device.attend(&there, &there, &there, &mask).unwrap();
            layer.judge(&mut verdict, &mask.to_string(), &got, &want);
        }
        if matches!(layer.config.position, Position::Rotary(_)) {
            let positions: Vec<i64> = (0..46).map(|i| i * i % 37).collect();
            let positions = Tensor::from_vec(positions, (2, 23), &Device::Cpu).unwrap();
            let run = |of: &MultiHeadAttention, xs: &Tensor, positions: &Tensor| {
                let inputs = AttentionInputs::self_attention(xs, AttentionMask::causal());
                of.attend_with(&inputs, &AttentionOptions::default().with_positions(positions)).unwrap().output
            };
            let want = run(&layer.in_f64(), &wide_xs, &positions);
            let got = run(&layer.on_device, &there, &positions.to_device(device).unwrap());
            layer.judge(&mut verdict, "given positions", &got, &want);
        }
    }
    verdict.end(device);
}
