//! Errors at every step of a call with a cache: the cache is as before, and the call can be made again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use candle_nn::{VarBuilder, VarMap};

use super::kv_cache::{KvCache, Sequence};
use crate::attention::{AttentionInputs, AttentionOptions, MultiHeadAttention};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::mask::{AttentionMask, AttnShape, DenseMask, MaskCall, MaskTerm};
use crate::position::Rotary;
use crate::sdpa::Backend;

/// A mask that hides nothing, and fails at the step whose number is in it.
#[derive(Debug)]
struct Failing(Arc<AtomicUsize>);

impl Failing {
    fn step(&self) -> Result<()> {
        // At 0 no step fails any more.
        let step = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if step == Ok(1) { Err(Error::value("the step", "a fault", "none")) } else { Ok(()) }
    }
}

impl MaskTerm for Failing {
    fn check(&self, _: AttnShape) -> Result<()> {
        self.step()
    }

    fn dense(&self, call: &MaskCall, _: DType, device: &Device) -> Result<DenseMask> {
        self.step()?;
        Ok(DenseMask::keep(Tensor::ones((1, 1, 1, call.shape.s_kv), DType::U8, device)?))
    }

    fn describe(&self) -> String {
        "failing".to_string()
    }
}

fn layer() -> MultiHeadAttention {
    let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
    let config = AttentionConfig::new(8, 2).with_position(Rotary::default());
    MultiHeadAttention::new(&config, vb).unwrap().frozen().unwrap()
}

fn tokens(b: usize, s: usize) -> Tensor {
    let elements = (0..b * s * 8).map(|i| (i as f32 * 0.37).sin());
    Tensor::from_iter(elements, &Device::Cpu).unwrap().reshape((b, s, 8)).unwrap()
}

/// The bits of what a cache holds of each sequence, and what it knows about it.
fn contents(cache: &KvCache) -> (Vec<Sequence>, Vec<u32>) {
    let mut bits = Vec::new();
    for buffer in cache.buffers.iter().flatten() {
        for (i, sequence) in cache.sequences.iter().enumerate() {
            let retained = buffer.narrow(0, i, 1).unwrap().narrow(1, cache.first, sequence.retained).unwrap();
            bits.extend(retained.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits));
        }
    }
    (cache.sequences.clone(), bits)
}

#[test]
fn an_error_at_any_step_leaves_the_cache_as_before() {
    let layer = layer();
    let caches: [fn() -> KvCache; 4] =
        [KvCache::growing, || KvCache::fixed(9), || KvCache::streaming(4), || KvCache::streaming(70)];
    let mut faults = 0;
    for (new, backend) in caches.into_iter().flat_map(|new| [(new, None), (new, Some(Backend::Eager))]) {
        let options = AttentionOptions::default().with_backend(backend);
        // An empty cache, one of equal and one of unequal sequences.
        for lengths in [None, Some([3, 3]), Some([3, 1])] {
            for next in [[2, 2], [1, 2], [0, 2]] {
                let filled = || {
                    let mut cache = new();
                    if let Some(lengths) = lengths {
                        let xs = tokens(2, 3);
                        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
                        layer.attend_with(&inputs.with_cache_lengths(&mut cache, &lengths), &options).unwrap();
                    }
                    cache
                };
                let (xs, left) = (tokens(2, 2), Arc::new(AtomicUsize::new(0)));
                let mask = AttentionMask::causal().and(AttentionMask::from_term(Failing(left.clone())));
                let inputs = AttentionInputs::self_attention(&xs, &mask);
                let output = |cache: &mut KvCache| {
                    let attended = layer.attend_with(&inputs.with_cache_lengths(cache, &next), &options)?;
                    Ok::<_, Error>(attended.output.flatten_all()?.to_vec1::<f32>()?)
                };
                let mut untouched = filled();
                let want = output(&mut untouched).unwrap();
                let (mut cache, mut step) = (filled(), 1);
                let before = contents(&cache);
                loop {
                    left.store(step, Ordering::Relaxed);
                    match output(&mut cache) {
                        Err(error) => assert!(error.to_string().contains("a fault"), "{error}"),
                        Ok(got) => {
                            assert_eq!(got, want);
                            assert_eq!(contents(&cache), contents(&untouched));
                            break;
                        }
                    }
                    assert_eq!(contents(&cache), before, "{cache:?}, {lengths:?}, {next:?}, step {step}");
                    (step, faults) = (step + 1, faults + 1);
                }
                assert!(step > 2, "an error after the tokens were added");
            }
        }
    }
    assert!(faults > 100);
}

#[test]
fn another_batch_is_an_error() {
    let layer = layer();
    let (mut cache, options) = (KvCache::growing(), AttentionOptions::default());
    let xs = tokens(2, 3);
    let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
    layer.attend_with(&inputs.with_cache_lengths(&mut cache, &[3, 1]), &options).unwrap();
    let before = contents(&cache);
    for b in [1, 3, 64] {
        let xs = tokens(b, 1);
        let inputs = AttentionInputs::self_attention(&xs, AttentionMask::causal());
        let error = layer.attend_with(&inputs.with_cache(&mut cache), &options).unwrap_err();
        assert!(error.to_string().contains("a batch of 2"), "{b}");
        assert_eq!(contents(&cache), before);
    }
}
