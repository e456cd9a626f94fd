//! What holds for a layer of any configuration: every way to run it gives the same numbers.

use std::collections::HashMap;

use candle_attention::checkpoint::{Checkpoint, detect, layouts};
use candle_attention::{
    AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Backend, KvCache, MultiHeadAttention, Position,
    Quantization,
};
use candle_core::{DType, Device, Module, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use super::{Random, assert_close, assert_within, attend_ragged, numbers};

const CPU: Device = Device::Cpu;

/// A configuration of self-attention whose layers are compared. Its own mask is that of every run; caches are run if it
/// is causal.
pub struct Everywhere {
    config: AttentionConfig,
    layout: &'static str,
    tokens: usize,
    caches: bool,
    prunes: bool,
    has_types: bool,
}

impl Everywhere {
    /// Layers of this configuration over sequences of up to 9 tokens, in this crate's own layout.
    pub fn new(config: AttentionConfig) -> Self {
        let caches = !config.mask.is_full();
        Self { config, layout: "candle-attention", tokens: 9, caches, prunes: true, has_types: false }
    }

    /// Written in this layout.
    pub fn in_layout(self, layout: &'static str) -> Self {
        Self { layout, ..self }
    }

    /// Sequences of up to this many tokens.
    pub fn with_tokens(self, tokens: usize) -> Self {
        Self { tokens, ..self }
    }

    /// A call with a cache is an error.
    pub fn without_cache(self) -> Self {
        Self { caches: false, ..self }
    }

    /// Heads cannot be removed: an error.
    pub fn without_pruning(self) -> Self {
        Self { prunes: false, ..self }
    }

    /// Every call gives its tokens types.
    pub fn with_token_types(self) -> Self {
        Self { has_types: true, ..self }
    }

    /// The output of a call over `xs` `(b, s, size)`.
    fn attend(
        &self,
        layer: &MultiHeadAttention,
        xs: &Tensor,
        mask: &AttentionMask,
        options: AttentionOptions,
    ) -> candle_attention::Result<Tensor> {
        let inputs = AttentionInputs::self_attention(xs, mask);
        let s = xs.dim(1)?;
        let types = Tensor::from_iter((0..s as u32).map(|i| i * i % 3), &CPU)?.reshape((1, s))?;
        let options = if self.has_types { options.with_token_types(&types) } else { options };
        Ok(layer.attend_with(&inputs, &options)?.output)
    }

    /// The same without a mask and options.
    fn forward(&self, layer: &MultiHeadAttention, xs: &Tensor) -> Tensor {
        if !self.has_types {
            return layer.forward(xs).unwrap();
        }
        self.attend(layer, xs, &AttentionMask::full(), AttentionOptions::default()).unwrap()
    }

    /// Compares all ways to run a layer with random weights.
    pub fn check(&self, seed: u64) {
        let mut random = Random::new(seed);
        let map = self.variables(&mut random);
        let learning = self.layer(&map, DType::F64);
        let xs = random.tensor(&[3, self.tokens, self.config.resolved_query_size()], DType::F64);
        let want = self.forward(&learning, &xs);
        let fixed = self.fixed(&map, DType::F32);
        let xs32 = xs.to_dtype(DType::F32).unwrap();
        assert_close("f32, fused", &self.forward(&fixed, &xs32), &want, 1e-5);
        let eager = AttentionOptions::default().with_backend(Backend::Eager);
        let full = AttentionMask::full();
        assert_close("f32, eager", &self.attend(&fixed, &xs32, &full, eager).unwrap(), &want, 1e-5);
        let frozen = self.layer(&map, DType::F64).frozen().unwrap();
        assert_close("frozen", &self.forward(&frozen, &xs), &want, 1e-9);
        fixed.plan(&AttentionInputs::self_attention(&xs32, full), &AttentionOptions::default()).unwrap();
        // Far from exact, but not another formula.
        for (dtype, tolerance) in [(DType::F16, 0.02), (DType::BF16, 0.1)] {
            let half = self.forward(&self.fixed(&map, dtype), &xs.to_dtype(dtype).unwrap());
            assert_eq!(half.dtype(), dtype);
            assert_close(&format!("{dtype:?}"), &half, &want, tolerance);
        }
        self.batches(&fixed, &xs32, 1e-5);
        self.caches(&fixed, &xs32, &want, 1e-5);
        Quantization::ALL.into_iter().for_each(|format| self.quantized(format, &fixed, &xs32));
        self.gradients(&map, &learning, &xs, &mut random);
        self.writing(&map, &xs32, &fixed);
        self.pruning(&fixed, &xs32, 1e-5);
    }

    /// Random variables, which are small enough for a softmax that is not one key's.
    fn variables(&self, random: &mut Random) -> VarMap {
        let map = VarMap::new();
        MultiHeadAttention::new(&self.config, VarBuilder::from_varmap(&map, DType::F64, &CPU)).unwrap();
        let mut data = map.data().lock().unwrap();
        let mut names: Vec<String> = data.keys().cloned().collect();
        names.sort();
        for name in names {
            let dims = data[&name].dims().to_vec();
            // Around 1 for norms.
            let center = if name.contains("norm") && name.ends_with("weight") { 1.0 } else { 0.0 };
            let value = random.tensor(&dims, DType::F64).affine(0.5, center).unwrap();
            data.insert(name, Var::from_tensor(&value).unwrap());
        }
        drop(data);
        map
    }

    fn layer(&self, map: &VarMap, dtype: DType) -> MultiHeadAttention {
        MultiHeadAttention::new(&self.config, VarBuilder::from_varmap(map, dtype, &CPU)).unwrap()
    }

    /// The same weights as tensors that are no variables.
    fn fixed(&self, map: &VarMap, dtype: DType) -> MultiHeadAttention {
        let data = map.data().lock().unwrap();
        let tensors: HashMap<String, Tensor> =
            data.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor().to_dtype(dtype).unwrap())).collect();
        MultiHeadAttention::load(&self.config, VarBuilder::from_tensors(tensors, dtype, &CPU)).unwrap()
    }

    /// A sequence gives the same alone, padded and in a ragged batch: there with the same bits.
    fn batches(&self, layer: &MultiHeadAttention, xs: &Tensor, tolerance: f64) {
        let lengths = [self.tokens, 1, self.tokens / 2];
        let part = |i: usize| xs.narrow(0, i, 1).unwrap().narrow(1, 0, lengths[i]).unwrap().contiguous().unwrap();
        if matches!(
            self.config.position,
            Position::Rotary2d(_) | Position::RelativeBias2d(_) | Position::RelativeKey2d(_)
        ) {
            return; // These count tokens.
        }
        let alone: Vec<Tensor> = (0..3).map(|i| self.forward(layer, &part(i)).squeeze(0).unwrap()).collect();
        let mask = AttentionMask::padding(&lengths);
        let padded = self.attend(layer, xs, &mask, AttentionOptions::default()).unwrap();
        if self.has_types {
            for (i, alone) in alone.iter().enumerate() {
                let of_padded = padded.get(i).unwrap().narrow(0, 0, lengths[i]).unwrap();
                assert_close("padded, with types", &of_padded, alone, tolerance);
            }
            return; // A ragged batch has no types.
        }
        let rows: Vec<Tensor> = (0..3).map(|i| part(i).squeeze(0).unwrap()).collect();
        let ragged = attend_ragged(layer, &Tensor::cat(&rows, 0).unwrap(), &lengths, &AttentionMask::full()).unwrap();
        let mut start = 0;
        for (i, alone) in alone.iter().enumerate() {
            let of_padded = padded.get(i).unwrap().narrow(0, 0, lengths[i]).unwrap();
            assert_close("padded", &of_padded, alone, tolerance);
            assert_close("ragged", &ragged.narrow(0, start, lengths[i]).unwrap(), alone, tolerance);
            let rows = [part(i).squeeze(0).unwrap()];
            let only = attend_ragged(layer, &rows[0], &lengths[i..=i], &AttentionMask::full()).unwrap();
            assert_eq!(
                numbers(&ragged.narrow(0, start, lengths[i]).unwrap()),
                numbers(&only),
                "a ragged batch changes no bit of a sequence"
            );
            start += lengths[i];
        }
    }

    /// Chunks in a cache are one run.
    fn caches(&self, layer: &MultiHeadAttention, xs: &Tensor, want: &Tensor, tolerance: f64) {
        let chunk = |start: usize, count: usize| xs.narrow(1, start, count).unwrap();
        if !self.caches {
            let causal = AttentionInputs::self_attention(xs, AttentionMask::causal());
            let mut cache = KvCache::growing();
            let result = layer.attend_with(&causal.with_cache(&mut cache), &AttentionOptions::default());
            assert!(result.is_err() || self.config.mask.is_full(), "a call with a cache has to be an error");
            return;
        }
        for sizes in [vec![1; self.tokens], vec![3, 1, 2, self.tokens - 6], vec![self.tokens - 1, 1]] {
            let (mut cache, mut start, mut outputs) = (KvCache::growing(), 0, Vec::new());
            for size in &sizes {
                outputs.push(layer.step(&chunk(start, *size), &mut cache).unwrap());
                start += size;
            }
            assert_eq!(cache.len(), self.tokens);
            let all = Tensor::cat(&outputs, 1).unwrap();
            assert_close(&format!("a cache in chunks of {sizes:?}"), &all, want, tolerance);
        }
    }

    /// A layer in few bits is the layer of its rounded weights, on every way to run it.
    fn quantized(&self, format: Quantization, layer: &MultiHeadAttention, xs: &Tensor) {
        // Integers of neighboring values differ where routes differ in the last bit of a float.
        const STEP: f64 = 0.08;
        let rounded = layer.quantized(format).unwrap();
        let exact = MultiHeadAttention::from_weights(&self.config, rounded.weights().unwrap()).unwrap();
        let again = exact.quantized(format).unwrap();
        let ys = self.forward(&rounded, xs);
        assert_eq!(numbers(&self.forward(&again, xs)), numbers(&ys), "{format}: rounded twice");
        assert_eq!(numbers(&self.forward(&rounded.frozen().unwrap(), xs)), numbers(&ys));
        let inputs = AttentionInputs::self_attention(xs, AttentionMask::full());
        let plan = rounded.plan(&inputs, &AttentionOptions::default()).unwrap();
        assert_eq!(plan.quantization, rounded.quantization());
        let Some(found) = rounded.quantization() else {
            assert!(format != Quantization::Int8, "any width can be int8");
            assert_eq!(numbers(&self.forward(&layer.frozen().unwrap(), xs)), numbers(&ys), "the format does not fit");
            return;
        };
        assert_eq!(found, format);
        assert!(format!("{rounded:?} {plan}").matches(&format.to_string()).count() == 2);
        let want = self.forward(&exact, xs);
        assert_close(&format!("{format}"), &ys, &want, STEP);
        let eager = AttentionOptions::default().with_backend(Backend::Eager);
        let eager = self.attend(&rounded, xs, &AttentionMask::full(), eager).unwrap();
        assert_close("eager", &eager, &ys, STEP);
        let input = Var::from_tensor(xs).unwrap();
        assert_close("with a gradient", &self.forward(&rounded, &input), &want, 1e-5);
        self.batches(&rounded, xs, STEP);
        self.caches(&rounded, xs, &ys, STEP);
        self.pruning(&rounded, xs, STEP);
    }

    /// Analytic gradients of every parameter and of the input are finite differences.
    fn gradients(&self, map: &VarMap, layer: &MultiHeadAttention, xs: &Tensor, random: &mut Random) {
        let input = Var::from_tensor(xs).unwrap();
        let factors = random.tensor(self.forward(layer, xs).dims(), DType::F64);
        let loss =
            |layer: &MultiHeadAttention, xs: &Tensor| (self.forward(layer, xs) * &factors).unwrap().sum_all().unwrap();
        let gradients = loss(layer, input.as_tensor()).backward().unwrap();
        let mut variables: Vec<(String, Var)> =
            map.data().lock().unwrap().iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        variables.sort_by(|a, b| a.0.cmp(&b.0));
        variables.push(("the input".to_string(), input.clone()));
        for (name, var) in variables {
            let gradient = gradients.get(&var).unwrap_or_else(|| panic!("`{name}` gets no gradient"));
            let (gradient, value) = (numbers(gradient), numbers(&var));
            for _ in 0..3 {
                let i = ((random.uniform() * value.len() as f64) as usize).min(value.len() - 1);
                let at = |step: f64| {
                    let mut moved = value.clone();
                    moved[i] += step;
                    var.set(&Tensor::from_vec(moved, var.dims(), &CPU).unwrap()).unwrap();
                    // Made again: a layer may hold what it computed from its weights.
                    let result = loss(&self.layer(map, DType::F64), input.as_tensor()).to_scalar::<f64>().unwrap();
                    var.set(&Tensor::from_vec(value.clone(), var.dims(), &CPU).unwrap()).unwrap();
                    result
                };
                let want = (at(1e-5) - at(-1e-5)) / 2e-5;
                let off = (gradient[i] - want).abs();
                assert!(off <= 1e-5 * want.abs().max(1.0), "gradient {i} of {name}: {} and {want}", gradient[i]);
            }
        }
    }

    /// Written in a layout and read again, the layer has the same bits.
    fn writing(&self, map: &VarMap, xs: &Tensor, fixed: &MultiHeadAttention) {
        let layout = layouts().find(|layout| layout.name() == self.layout).unwrap();
        let layer = self.fixed(map, DType::F32);
        let tensors = layer.weights().unwrap().to_layout(layer.config(), layout).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("layer.safetensors");
        let tensors: HashMap<String, Tensor> =
            tensors.into_iter().map(|(name, tensor)| (format!("some.layer.{name}"), tensor)).collect();
        candle_core::safetensors::save(&tensors, &file).unwrap();
        let source = Checkpoint::open(&file).unwrap();
        let source = source.at("some.layer", DType::F32, &CPU);
        assert_eq!(detect(&source).unwrap().name(), self.layout);
        let read = MultiHeadAttention::load(&self.config, source).unwrap();
        assert_within("read again", &self.forward(&read, xs), &self.forward(fixed, xs), 0.0);
    }

    /// A layer without a head is the layer with a factor of 0 for it.
    fn pruning(&self, layer: &MultiHeadAttention, xs: &Tensor, tolerance: f64) {
        let heads = self.config.num_attention_heads;
        let pruned = layer.prune_heads(&[heads - 1]);
        if !self.prunes {
            assert!(pruned.is_err(), "pruning has to be an error");
            return;
        }
        let factors: Vec<f32> = (0..heads).map(|head| f32::from(u8::from(head + 1 != heads))).collect();
        let factors = Tensor::new(factors, &CPU).unwrap();
        let options = AttentionOptions::default().with_head_mask(&factors);
        let masked = self.attend(layer, xs, &AttentionMask::full(), options).unwrap();
        assert_close("without its last head", &self.forward(&pruned.unwrap(), xs), &masked, tolerance);
    }
}
