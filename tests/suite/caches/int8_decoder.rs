//! A small decoder is trained, and writes the same tokens from a cache in int8.

use candle_attention::position::Rotary;
use candle_attention::{AttentionConfig, AttentionMask, KvCache, MultiHeadAttention};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{AdamW, Optimizer, VarBuilder, VarMap, loss::cross_entropy};

use crate::common::Random;

const CPU: Device = Device::Cpu;
const VOCABULARY: usize = 16;
const HIDDEN: usize = 32;
/// A token follows from the one that stands so many tokens before it.
const DISTANCE: usize = 5;

/// Two attention layers between an embedding and its transpose.
struct Decoder {
    embedding: Tensor,
    layers: [MultiHeadAttention; 2],
}

impl Decoder {
    /// The logits of the next token for each of `tokens` `(b, s)`.
    fn logits(&self, tokens: &Tensor, mut caches: Option<&mut [KvCache; 2]>) -> Tensor {
        let (b, s) = tokens.dims2().unwrap();
        let xs = self.embedding.index_select(&tokens.flatten_all().unwrap(), 0).unwrap();
        let mut xs = xs.reshape((b, s, HIDDEN)).unwrap();
        for (i, layer) in self.layers.iter().enumerate() {
            let attended = match &mut caches {
                Some(caches) => layer.step(&xs, &mut caches[i]).unwrap(),
                None => layer.attend(&xs, &xs, &xs, AttentionMask::full()).unwrap(),
            };
            xs = (xs + attended).unwrap();
        }
        xs.reshape((b * s, HIDDEN)).unwrap().matmul(&self.embedding.t().unwrap()).unwrap()
    }

    /// The tokens after a prompt, each the one with the largest logit.
    fn greedy(&self, prompt: &[u32], count: usize, mut caches: [KvCache; 2]) -> Vec<u32> {
        let (mut next, mut written) = (prompt.to_vec(), Vec::new());
        while written.len() < count {
            let tokens = Tensor::new(next.as_slice(), &CPU).unwrap().unsqueeze(0).unwrap();
            let logits = self.logits(&tokens, Some(&mut caches));
            let last = logits.get(next.len() - 1).unwrap().argmax(0).unwrap().to_scalar().unwrap();
            written.push(last);
            next = vec![last];
        }
        written
    }
}

/// `DISTANCE` random tokens, and those that follow from them.
fn sequence(random: &mut Random, len: usize) -> Vec<u32> {
    let mut tokens: Vec<u32> = (0..DISTANCE).map(|_| (random.uniform() * VOCABULARY as f64) as u32).collect();
    while tokens.len() < len {
        tokens.push((tokens[tokens.len() - DISTANCE] + 1) % VOCABULARY as u32);
    }
    tokens
}

fn trained(random: &mut Random) -> Decoder {
    let map = VarMap::new();
    let vb = VarBuilder::from_varmap(&map, DType::F32, &CPU);
    let config = AttentionConfig::new(HIDDEN, 4).with_num_key_value_heads(2).with_position(Rotary::default());
    let config = config.with_mask(AttentionMask::causal());
    let layer = |name: &str| {
        // The same weights in every run.
        let layer = MultiHeadAttention::new(&config, vb.pp(name)).unwrap();
        (name.to_string(), layer)
    };
    let [(_, first), (_, second)] = ["first", "second"].map(layer);
    let mut variables = map.data().lock().unwrap().iter().map(|(n, v)| (n.clone(), v.clone())).collect::<Vec<_>>();
    variables.sort_by(|a, b| a.0.cmp(&b.0));
    for (_, variable) in &variables {
        variable.set(&(random.tensor(variable.dims(), DType::F32) * 0.2).unwrap()).unwrap();
    }
    let embedding = Var::from_tensor(&random.tensor(&[VOCABULARY, HIDDEN], DType::F32)).unwrap();
    let all = variables.into_iter().map(|(_, variable)| variable).chain([embedding.clone()]).collect();
    let mut optimizer = AdamW::new_lr(all, 5e-3).unwrap();
    let mut decoder = Decoder { embedding: embedding.as_tensor().clone(), layers: [first, second] };
    for _ in 0..250 {
        let (b, s) = (4, 210);
        let batch: Vec<Vec<u32>> = (0..b).map(|_| sequence(random, s + 1)).collect();
        let of = |range: std::ops::Range<usize>| {
            let tokens: Vec<u32> = batch.iter().flat_map(|tokens| tokens[range.clone()].to_vec()).collect();
            Tensor::from_vec(tokens, (b, range.len()), &CPU).unwrap()
        };
        let logits = decoder.logits(&of(0..s), None).reshape((b, s, VOCABULARY)).unwrap();
        // The first tokens follow from nothing.
        let known = s - DISTANCE + 1;
        let logits = logits.narrow(1, DISTANCE - 1, known).unwrap().reshape((b * known, VOCABULARY)).unwrap();
        let loss = cross_entropy(&logits, &of(DISTANCE..s + 1).flatten_all().unwrap()).unwrap();
        optimizer.backward_step(&loss).unwrap();
    }
    decoder.embedding = decoder.embedding.detach();
    let Decoder { embedding, layers } = decoder;
    Decoder { embedding, layers: layers.map(|layer| layer.frozen().unwrap()) }
}

#[test]
fn a_trained_decoder_writes_the_same_tokens() {
    let mut random = Random::new(220);
    let decoder = trained(&mut random);
    for _ in 0..3 {
        let tokens = sequence(&mut random, 10 + 200);
        let (prompt, want) = tokens.split_at(10);
        let caches = || [KvCache::growing(), KvCache::growing()];
        let wide = decoder.greedy(prompt, 200, caches());
        assert_eq!(wide, want, "the decoder has not learned");
        assert_eq!(decoder.greedy(prompt, 200, caches().map(KvCache::with_int8)), wide);
    }
}
