//! Attention over q, k and v by every backend.

use std::collections::BTreeMap;

use candle_attention::sdpa::{SdpaOptions, attend_bshd, plan_for};
use candle_attention::{AttentionMask, Backend, Error};
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

use crate::cases::{self, Case, DTYPES};
use crate::common::Random;
use crate::common::naive::{self, Score};
use crate::inputs::{Layout, qkv, sinks};
use crate::judge::{Verdict, What, largest};
use crate::masks::{Extent, Kind, Sees};

/// Cases whose references are computed together, on all cores.
const AT_ONCE: usize = 64;

impl Case {
    fn mask(&self, device: &Device) -> (AttentionMask, Sees) {
        let sizes = self.sizes;
        let extent = Extent { b: sizes.b, h: sizes.h, s_q: sizes.s_q, s_kv: sizes.s_kv };
        let cpu = Device::Cpu;
        let device = if self.mask_on_device { device } else { &cpu };
        let strided = self.layout != Layout::Contiguous;
        let place = |mask: Tensor| {
            let mask = mask.to_device(device).unwrap();
            // Every second element of a tensor twice as large.
            let strided_mask =
                || Tensor::stack(&[&mask, &mask], mask.rank()).unwrap().narrow(mask.rank(), 1, 1).unwrap();
            if strided { strided_mask().squeeze(mask.rank()).unwrap() } else { mask }
        };
        self.mask.make(extent, self.dtype, &mut Random::new(self.number as u64), &place)
    }

    /// The expected output in f64 on the CPU, and the largest value.
    fn reference(&self) -> (Tensor, f64) {
        let cpu = Device::Cpu;
        let [q, k, v] = qkv(self, &cpu);
        let (_, sees) = self.mask(&cpu);
        let s_kv = self.sizes.s_kv;
        let sees = |b, h, i, j| if j < s_kv { sees(b, h, i, j) } else { Some(0.0) };
        let scale = self.score.scale().unwrap_or((self.sizes.d as f64).powf(-0.5));
        let sinks = sinks(self, &cpu);
        let score = Score::Bent { scale, cap: self.score.softcap(), sinks: sinks.as_ref() };
        (naive::attend(&q, &k, &v, &score, &sees).0, largest(&v))
    }

    fn run(
        &self,
        device: &Device,
        (want, scale): &(Tensor, f64),
        verdict: &mut Verdict,
    ) -> Result<Vec<Backend>, Error> {
        let [q, k, v] = qkv(self, device);
        let (mask, _) = self.mask(device);
        let sinks = sinks(self, device);
        let mut options = SdpaOptions::new(&mask);
        options.scale = self.score.scale();
        options.appended_keys = self.sizes.appended;
        options.softcap = self.score.softcap();
        options.sinks = sinks.as_ref();
        let plan = plan_for(&q, &k, &v, &options)?;
        let chosen = attend_bshd(&q, &k, &v, &options)?.output;
        let mut ran = Vec::new();
        for backend in plan.rejected.iter().map(|rejected| rejected.backend).chain([plan.backend]) {
            options.backend = Some(backend);
            let name = format!("{self:?} by {backend}");
            if plan_for(&q, &k, &v, &options).is_err() {
                if attend_bshd(&q, &k, &v, &options).is_ok() {
                    verdict.wrong(format!("{name}: rejected by the plan, but it runs"));
                }
                continue;
            }
            let output = attend_bshd(&q, &k, &v, &options)?.output;
            verdict.compare(&name, What::Attention, self.dtype, &output, want, *scale);
            if backend == plan.backend {
                verdict.same(&format!("{name}, chosen and forced"), &chosen, &output);
            }
            ran.push(backend);
        }
        Ok(ran)
    }
}

/// Every pair of properties of a call, on every backend that supports it.
pub fn every_pair_of_properties(device: &Device) {
    let cases = cases::all();
    let (mut verdict, mut runs) = (Verdict::default(), BTreeMap::<String, usize>::new());
    for cases in cases.chunks(AT_ONCE) {
        let references: Vec<_> = cases.par_iter().map(Case::reference).collect();
        for (case, reference) in cases.iter().zip(&references) {
            match case.run(device, reference, &mut verdict) {
                Ok(ran) => ran.iter().for_each(|backend| *runs.entry(backend.to_string()).or_default() += 1),
                Err(error) => verdict.wrong(format!("{case:?}: {error}")),
            }
        }
    }
    println!("{} cases: {runs:?}", cases.len());
    verdict.end(device);
    // A backend that ran no case would not have been tested.
    assert!(runs.len() > 1 && runs["eager"] == cases.len(), "{runs:?}");
}

/// What only the eager backend supports: additive scoring and returned attention weights.
pub fn additive_scoring_and_attention_weights(device: &Device) {
    let (b, h, h_kv, s_q, s_kv, d, d_v) = (2, 4, 2, 7, 9, 24, 16);
    let mut verdict = Verdict::default();
    for (number, kind) in Kind::ALL.into_iter().filter(|kind| !kind.needs_self_attention()).enumerate() {
        let mut random = Random::new(900 + number as u64);
        let dtype = DTYPES[number % DTYPES.len()];
        let mut on_device = |dims: &[usize]| random.tensor(dims, dtype).to_device(device).unwrap();
        let [q, k, v] = [[b, s_q, h, d], [b, s_kv, h_kv, d], [b, s_kv, h_kv, d_v]].map(|dims| on_device(&dims));
        let w = on_device(&[h, d]);
        let place = |mask: Tensor| mask.to_device(device).unwrap();
        let (mask, sees) = kind.make(Extent { b, h, s_q, s_kv }, dtype, &mut random, &place);
        let home = |t: &Tensor| t.to_device(&Device::Cpu).unwrap();
        let w_home = home(&w);
        for (w, score) in [(None, Score::Dot(0.3)), (Some(&w), Score::Additive(&w_home, 0.3))] {
            let (want, want_weights) = naive::attend(&home(&q), &home(&k), &home(&v), &score, &sees);
            let options = SdpaOptions::new(&mask).with_scale(0.3).with_additive(w).with_return_attention_weights(true);
            let got = attend_bshd(&q, &k, &v, &options).unwrap();
            let name = format!("{kind:?} in {dtype:?}, additive: {}", w.is_some());
            verdict.compare(&name, What::Attention, dtype, &got.output, &want, largest(&v));
            verdict.compare(&name, What::Attention, dtype, &got.attention_weights.unwrap(), &want_weights, 1.0);
        }
    }
    verdict.end(device);
}

/// A call without keys gives zeros; a call without queries or sequences gives an empty output.
pub fn empty_calls(device: &Device) {
    let mask = AttentionMask::full();
    for (b, s_q, s_kv) in [(2, 3, 0), (2, 0, 3), (0, 3, 3)] {
        // candle cannot fill an empty tensor on an NVIDIA GPU, and cannot move one to an Apple GPU.
        let from = if device.is_metal() { device } else { &Device::Cpu };
        let zeros = |s: usize| Tensor::zeros((b, s, 2, 32), DType::F32, from).unwrap().to_device(device).unwrap();
        let got = attend_bshd(&zeros(s_q), &zeros(s_kv), &zeros(s_kv), &SdpaOptions::new(&mask)).unwrap().output;
        assert_eq!((got.dims(), largest(&got)), (&[b, s_q, 2, 32][..], 0.0));
    }
}
