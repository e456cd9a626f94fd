//! Caches of a server: sequences join and leave a running batch, a path of a tree of drafts stays, and attention that
//! is composed by hand has a cache.

use candle_attention::position::{Alibi, Rotary};
use candle_attention::sdpa::{SdpaOptions, attend_bshd};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, KvCache, MultiHeadAttention, Position,
};
use candle_core::{DType, Device, Tensor, Var};

use crate::common::{Random, assert_close, max_diff, numbers, random_layer, says};

const CPU: Device = Device::Cpu;
const TOLERANCE: f64 = 2e-6;
const WINDOW: usize = 4;

fn window() -> AttentionMask {
    AttentionMask::window(Some(WINDOW - 1), Some(0))
}

fn configs() -> [AttentionConfig; 3] {
    let base = AttentionConfig::new(24, 4).with_mask(AttentionMask::causal());
    let rotary = base.clone().with_num_key_value_heads(2).with_position(Rotary::default().with_theta(50.0));
    [base.clone(), rotary, base.with_position(Position::Alibi(Alibi::default()))]
}

/// Each kind of cache, and the mask that goes with it.
fn kinds() -> [(fn() -> KvCache, AttentionMask); 4] {
    let full = AttentionMask::full;
    [
        (KvCache::growing, full()),
        (|| KvCache::fixed(30), full()),
        (|| KvCache::rotating(WINDOW), window()),
        (|| KvCache::streaming(WINDOW), full()),
    ]
}

fn step(
    layer: &MultiHeadAttention,
    xs: &Tensor,
    mask: &AttentionMask,
    cache: &mut KvCache,
    lengths: &[usize],
) -> Result<Tensor, Error> {
    let inputs = AttentionInputs::self_attention(xs, mask);
    Ok(layer.attend_with(&inputs.with_cache_lengths(cache, lengths), &AttentionOptions::default())?.output)
}

/// Tokens `start .. start + len` of each sequence of `all` `(b, s, width)`, padded on the right.
fn next(all: &Tensor, sequences: &[usize], starts: &[usize], lengths: &[usize]) -> Tensor {
    let longest = lengths.iter().copied().max().unwrap();
    let row = |i: usize| {
        let own = all.get(sequences[i])?.narrow(0, starts[i], lengths[i])?;
        own.pad_with_zeros(0, 0, longest - lengths[i])
    };
    Tensor::stack(&(0..sequences.len()).map(row).collect::<Result<Vec<_>, _>>().unwrap(), 0).unwrap()
}

/// Requests are prefilled alone and join those that are running; one row is emptied and used for another request.
#[test]
fn sequences_that_join_a_batch_continue_as_they_would_alone() {
    let mut random = Random::new(120);
    for config in configs() {
        let layer = random_layer(&config, 0.4, &mut random);
        let all = random.tensor(&[4, 20, 24], DType::F32);
        for (new, mask) in kinds() {
            let whole = if new().capacity() == Some(WINDOW) { window() } else { mask.clone() };
            let want = layer.attend(&all, &all, &all, &whole).unwrap();
            let (mut batch, mut sequences, mut seen) = (new(), Vec::new(), Vec::<usize>::new());
            let check = |got: &Tensor, sequences: &[usize], seen: &[usize], lengths: &[usize]| {
                for (i, &sequence) in sequences.iter().enumerate().filter(|(i, _)| lengths[*i] > 0) {
                    let got = got.get(i).unwrap().narrow(0, 0, lengths[i]).unwrap();
                    let want = want.get(sequence).unwrap().narrow(0, seen[i], lengths[i]).unwrap();
                    assert_close(&format!("{:?}, {:?}", config.position, new()), &got, &want, TOLERANCE);
                }
            };
            for (sequence, prompt) in [(0, 7), (1, 2), (2, 5)] {
                let mut own = new();
                let xs = all.narrow(0, sequence, 1).unwrap().narrow(1, 0, prompt).unwrap();
                step(&layer, &xs, &mask, &mut own, &[prompt]).unwrap();
                batch.append_sequences(&own).unwrap();
                (sequences, seen) = ([sequences, vec![sequence]].concat(), [seen, vec![prompt]].concat());
                assert_eq!(batch.lengths(), seen);
                for lengths in [vec![1; seen.len()], (0..seen.len()).map(|i| 2 - i % 2).collect()] {
                    let xs = next(&all, &sequences, &seen, &lengths);
                    check(&step(&layer, &xs, &mask, &mut batch, &lengths).unwrap(), &sequences, &seen, &lengths);
                    seen.iter_mut().zip(&lengths).for_each(|(seen, len)| *seen += len);
                }
                // The cache of the prompt is one of its own, whatever the batch does.
                assert_eq!(own.lengths(), [prompt]);
                let xs = next(&all, &[sequence], &[prompt], &[2]);
                check(&step(&layer, &xs, &mask, &mut own, &[2]).unwrap(), &[sequence], &[prompt], &[2]);
            }
            // Sequence 1 is finished; its row takes sequence 3, while the others wait.
            batch.truncate_sequences(&[seen[0], 0, seen[2]]).unwrap();
            (sequences[1], seen[1]) = (3, 0);
            for lengths in [[0, 6, 0], [1, 1, 1], [0, 3, 2], [1, 1, 1]] {
                let xs = next(&all, &sequences, &seen, &lengths);
                check(&step(&layer, &xs, &mask, &mut batch, &lengths).unwrap(), &sequences, &seen, &lengths);
                seen.iter_mut().zip(&lengths).for_each(|(seen, len)| *seen += len);
            }
            assert_eq!(batch.lengths(), seen);
        }
    }
}

#[test]
fn caches_that_do_not_belong_together_are_not_joined() {
    let mut random = Random::new(121);
    let [layer, other] = [1, 2].map(|seed| random_layer(&configs()[0], 0.4, &mut Random::new(seed)));
    let narrow = random_layer(&configs()[1], 0.4, &mut random);
    let xs = random.tensor(&[2, 3, 24], DType::F32);
    let filled = |layer: &MultiHeadAttention, mut cache: KvCache| {
        layer.step(&xs, &mut cache).unwrap();
        cache
    };
    let mut batch = filled(&layer, KvCache::fixed(8));
    let mut refuse = |cache: KvCache, parts: &[&str]| {
        says(batch.append_sequences(&cache), parts);
        assert_eq!(batch.lengths(), [3, 3]);
    };
    refuse(filled(&layer, KvCache::growing()), &["a cache to append is Growing", "Fixed(8)"]);
    refuse(filled(&layer, KvCache::fixed(9)), &["a cache to append is Fixed(9)", "Fixed(8)"]);
    refuse(filled(&other, KvCache::fixed(8)), &["one of another layer", "the layer of the batch"]);
    refuse(filled(&narrow, KvCache::fixed(8)), &["2 key-value heads", "as in the cache", "4 key-value heads"]);
    // A cache without sequences adds none, and one without tokens has no layer.
    batch.append_sequences(&KvCache::fixed(8)).unwrap();
    assert_eq!(batch.lengths(), [3, 3]);
    let mut emptied = filled(&other, KvCache::fixed(8));
    emptied.truncate(0).unwrap();
    batch.append_sequences(&emptied).unwrap();
    assert_eq!(batch.lengths(), [3, 3, 0, 0]);
    emptied.append_sequences(&filled(&layer, KvCache::fixed(8))).unwrap();
    assert_eq!(emptied.lengths(), [0, 0, 3, 3]);
    let xs = random.tensor(&[4, 2, 24], DType::F32);
    layer.step(&xs, &mut batch).unwrap();
    layer.step(&xs, &mut emptied).unwrap();
    says(other.step(&xs, &mut emptied), &["one of another layer"]);
}

/// Nothing is computed from padding: not a number there stays where it is.
#[test]
fn padding_is_not_computed() {
    let mut random = Random::new(122);
    for config in configs() {
        let layer = random_layer(&config, 0.4, &mut random);
        let tokens = random.tensor(&[1, 5, 24], DType::F32);
        let nan = Tensor::full(f32::NAN, (1, 5, 24), &CPU).unwrap();
        let xs = Tensor::cat(&[&nan, &tokens, &nan], 0).unwrap();
        let mut cache = KvCache::growing();
        let got = step(&layer, &xs, &AttentionMask::full(), &mut cache, &[0, 5, 0]).unwrap();
        assert!(numbers(&got).iter().all(|number| number.is_finite()));
        let want = layer.attend(&tokens, &tokens, &tokens, AttentionMask::full()).unwrap();
        assert_eq!(max_diff(&got.narrow(0, 1, 1).unwrap(), &want), 0.0);
        assert_eq!(cache.lengths(), [0, 5, 0]);
    }
}

/// A tree of drafts runs in one call, and the accepted path continues.
#[test]
fn the_accepted_path_of_a_tree_of_drafts_stays() {
    let mut random = Random::new(123);
    // The parent of each of six drafts; nodes 1, 4, 5 are a path.
    let parents = [None, None, Some(0), Some(0), Some(1), Some(4)];
    let path = [1, 4, 5];
    let depth = |node: usize| std::iter::successors(parents[node], |&parent| parents[parent]).count();
    let layer = random_layer(&configs()[1].clone().with_mask(AttentionMask::full()), 0.4, &mut random);
    let causal = AttentionMask::causal();
    let (prompts, drafts) = (random.tensor(&[2, 5, 24], DType::F32), random.tensor(&[2, 6, 24], DType::F32));
    let rest = random.tensor(&[2, 2, 24], DType::F32);
    for new in [KvCache::growing, || KvCache::fixed(13), || KvCache::streaming(13)] {
        let mut cache = new();
        step(&layer, &prompts, &causal, &mut cache, &[5, 5]).unwrap();
        // A node sees the prompt, its ancestors and itself.
        let sees = |node: usize, column: usize| {
            let mut ancestors = std::iter::successors(Some(node), |&node| parents[node]);
            column < 5 || ancestors.any(|node| node + 5 == column)
        };
        let pattern = (0..6).flat_map(|node| (0..11).map(move |column| u8::from(sees(node, column))));
        let pattern = Tensor::from_iter(pattern, &CPU).unwrap().reshape((6, 11)).unwrap();
        let positions = Tensor::from_iter((0..6).map(|node| 5 + depth(node) as u32), &CPU).unwrap();
        let inputs = AttentionInputs::self_attention(&drafts, AttentionMask::keep_pattern(&pattern).unwrap());
        let options = AttentionOptions::default().with_positions(&positions);
        let tree = layer.attend_with(&inputs.with_cache(&mut cache), &options).unwrap().output;

        let chosen: Vec<usize> = (0..5).chain(path.map(|node| 5 + node)).collect();
        cache.select_tokens(0, &chosen).unwrap();
        cache.truncate_sequences(&[8, 5]).unwrap();
        assert_eq!(cache.lengths(), [8, 5]);
        let got = step(&layer, &rest, &causal, &mut cache, &[2, 2]).unwrap();
        let accepted = Tensor::cat(&path.map(|node| drafts.narrow(0, 0, 1).unwrap().narrow(1, node, 1).unwrap()), 1);
        for (row, accepted) in [(0, accepted.unwrap()), (1, drafts.narrow(0, 1, 1).unwrap().narrow(1, 0, 0).unwrap())] {
            let own = |tokens: &Tensor| tokens.narrow(0, row, 1).unwrap();
            let parts = [own(&prompts), accepted, own(&rest)];
            let all: Vec<&Tensor> = parts.iter().filter(|part| part.dims()[1] > 0).collect();
            let all = Tensor::cat(&all, 1).unwrap();
            let want = layer.attend(&all, &all, &all, &causal).unwrap();
            let s = all.dim(1).unwrap();
            assert_close("behind the path", &own(&got), &want.narrow(1, s - 2, 2).unwrap(), TOLERANCE);
            for (i, &node) in path.iter().enumerate().filter(|_| row == 0) {
                let got = tree.get(0).unwrap().narrow(0, node, 1).unwrap();
                assert_close("a node", &got, &want.get(0).unwrap().narrow(0, 5 + i, 1).unwrap(), TOLERANCE);
            }
        }
        says(cache.select_tokens(2, &[0]), &["a sequence to select is 2", "less than 2"]);
        says(cache.select_tokens(0, &[0, 10]), &["a token to select is 10", "0..10"]);
        for tokens in [&[3, 2][..], &[2, 2]] {
            says(cache.select_tokens(0, tokens), &["the list of tokens to select", "in increasing order"]);
        }
        assert_eq!(cache.lengths(), [10, 7]);
        cache.select_tokens(0, &[]).unwrap();
        assert_eq!(cache.lengths(), [0, 7]);
    }
    // What the next query sees has to be there.
    let layer = random_layer(&configs()[1], 0.4, &mut random);
    let mut cache = KvCache::rotating(WINDOW);
    step(&layer, &prompts, &window(), &mut cache, &[5, 3]).unwrap();
    says(cache.select_tokens(0, &[3, 4]), &["the length of sequence 0 in a rotating cache is 3", "at least 4"]);
    says(cache.select_tokens(0, &[0, 1, 2]), &["a token to select is 0", "1..5"]);
    cache.select_tokens(0, &[1, 2, 4]).unwrap();
    cache.select_tokens(1, &[0, 2]).unwrap();
    assert_eq!((cache.lengths(), cache.retained_range(0)), (vec![4, 2], Some(1..4)));
}

/// Gradients flow through what has joined a batch and through what was selected, and not into what was left out.
#[test]
fn joined_and_selected_tokens_keep_their_gradients() {
    let mut random = Random::new(124);
    let layer = random_layer(&configs()[0], 0.4, &mut random);
    let prompts = [4, 3].map(|s| Var::from_tensor(&random.tensor(&[1, s, 24], DType::F32)).unwrap());
    let token = random.tensor(&[2, 1, 24], DType::F32);
    let loss = |ys: &Tensor| ys.sqr().unwrap().sum_all().unwrap();
    for new in [KvCache::growing, || KvCache::fixed(9), || KvCache::streaming(9)] {
        let mut batch = new();
        for prompt in &prompts {
            let mut own = new();
            layer.step(prompt, &mut own).unwrap();
            batch.append_sequences(&own).unwrap();
        }
        batch.select_tokens(0, &[0, 2, 3]).unwrap();
        let got = loss(&layer.step(&token, &mut batch).unwrap()).backward().unwrap();
        for (row, prompt) in prompts.iter().enumerate() {
            let kept = match row {
                0 => Tensor::cat(&[prompt.narrow(1, 0, 1).unwrap(), prompt.narrow(1, 2, 2).unwrap()], 1).unwrap(),
                _ => prompt.as_tensor().clone(),
            };
            let all = Tensor::cat(&[&kept, &token.narrow(0, row, 1).unwrap()], 1).unwrap();
            let last = layer.attend(&all, &all, &all, AttentionMask::full()).unwrap().narrow(1, 3, 1).unwrap();
            let want = loss(&last).backward().unwrap();
            assert_close("gradient", got.get(prompt).unwrap(), want.get(prompt).unwrap(), 1e-5);
        }
    }
}

/// Keys and values of one's own, as attention that is composed on `attend_bshd` has them.
#[test]
fn keys_and_values_of_ones_own_are_cached() {
    let mut random = Random::new(125);
    let (b, s, h, h_kv, d, d_v) = (2, 11, 4, 2, 6, 5);
    let mut tensor = |h: usize, d: usize| random.tensor(&[b, s, h, d], DType::F32);
    let (q, k, v) = (tensor(h, d), tensor(h_kv, d), tensor(h_kv, d_v));
    let attend = |q: &Tensor, k: &Tensor, v: &Tensor, mask: &AttentionMask| {
        attend_bshd(q, k, v, &SdpaOptions::new(mask)).unwrap().output
    };
    for (new, mask) in kinds() {
        let mask = if new().capacity() == Some(WINDOW) { window() } else { mask.and(AttentionMask::causal()) };
        let want = attend(&q, &k, &v, &mask);
        let mut cache = new();
        for (start, len) in [(0, 3), (3, 1), (4, 6), (10, 1)] {
            let part = |all: &Tensor| all.narrow(1, start, len).unwrap();
            let columns = cache.mask_columns(&[len]);
            let (keys, values) = cache.append(&part(&k), &part(&v)).unwrap();
            assert_eq!((keys.dims(), values.dims()), (&[b, columns, h_kv, d][..], &[b, columns, h_kv, d_v][..]));
            let got = attend(&part(&q), &keys, &values, &mask);
            assert_close(&format!("{cache:?}"), &got, &part(&want), TOLERANCE);
        }
        assert_eq!((cache.len(), cache.retained_len()), (s, cache.capacity().unwrap_or(s).min(s)));

        // A layer has a cache of its own, and so has what is composed.
        let config = AttentionConfig::new(24, 4).with_num_key_value_heads(2).with_value_head_dim(5).with_mask(window());
        let layer = random_layer(&config, 0.4, &mut Random::new(1));
        let xs = Tensor::zeros((b, 1, 24), DType::F32, &CPU).unwrap();
        says(layer.step(&xs, &mut cache), &["the key-value cache is one with keys from `KvCache::append`"]);
        let mut of_layer = new();
        layer.step(&xs, &mut of_layer).unwrap();
        let one = |all: &Tensor| all.narrow(1, 0, 1).unwrap();
        says(of_layer.append(&one(&k), &one(&v)), &["the key-value cache is one with keys of a layer"]);
        assert_eq!(of_layer.lengths(), [1, 1]);
    }
    let mut cache = KvCache::fixed(20);
    cache.append(&k, &v).unwrap();
    let wide = v.to_dtype(DType::F64).unwrap();
    says(cache.append(&k.flatten(2, 3).unwrap(), &v), &["keys has shape [2, 11, 12]", "(b, s, h_kv, d)"]);
    says(cache.append(&k, &v.narrow(1, 0, 3).unwrap()), &["values has shape [2, 3, 2, 5]", "(2, 11, 2, d_v)"]);
    says(cache.append(&k, &wide), &["values has dtype f64", "f32"]);
    says(cache.append(&q, &q), &["4 key-value heads", "as in the cache", "2 key-value heads"]);
    assert!(matches!(cache.append(&k, &v), Err(Error::CacheFull { tokens: 22, capacity: 20 })));
    cache.truncate_sequences(&[3, 4]).unwrap();
    says(cache.append(&k.narrow(1, 0, 1).unwrap(), &v.narrow(1, 0, 1).unwrap()), &["[3, 4]", "equal ones"]);
    assert_eq!(cache.lengths(), [3, 4]);

    // Gradients reach keys of earlier calls.
    let [first, second] = [0, 5].map(|start| Var::from_tensor(&k.narrow(1, start, 5).unwrap()).unwrap());
    let mut cache = KvCache::growing();
    cache.append(&first, &v.narrow(1, 0, 5).unwrap()).unwrap();
    let (keys, values) = cache.append(&second, &v.narrow(1, 5, 5).unwrap()).unwrap();
    let loss = |ys: Tensor| ys.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let (queries, causal) = (q.narrow(1, 5, 5).unwrap(), AttentionMask::causal());
    let got = loss(attend(&queries, &keys, &values, &causal));
    let all = Tensor::cat(&[first.as_tensor(), second.as_tensor()], 1).unwrap();
    let want = loss(attend(&queries, &all, &v.narrow(1, 0, 10).unwrap(), &causal));
    for var in [&first, &second] {
        assert_close("gradient", got.get(var).unwrap(), want.get(var).unwrap(), 1e-5);
    }
}
