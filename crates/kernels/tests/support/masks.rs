//! Masks that every attention kernel is tested with.

use candle_attention_kernels::{Broadcast, Lengths, Mask, MaskStructure};

use super::Random;
use super::reference::Sizes;

/// The tensors of the masks.
pub struct MaskTensors {
    sizes: Sizes,
    keep: Vec<u8>,
    bias: Vec<f32>,
    ids: Vec<i64>,
}

impl MaskTensors {
    pub fn new(random: &mut Random, sizes: Sizes) -> Self {
        let Sizes { b, s_q, s_kv, h, .. } = sizes;
        let keep = (0..b * s_q * s_kv).map(|_| u8::from(random.next() > -0.3)).collect();
        let mut bias: Vec<f32> = random.values(h * s_kv);
        bias[1] = f32::MIN;
        bias[2] = f32::NEG_INFINITY;
        Self { sizes, keep, bias, ids: (0..b * s_q.max(s_kv)).map(|i| (i / 3 % 2) as i64).collect() }
    }

    /// One value per sequence, query and key.
    pub fn keep(&self) -> Broadcast<'_, u8> {
        Broadcast { data: &self.keep, strides: [self.sizes.s_q * self.sizes.s_kv, 0, self.sizes.s_kv, 1] }
    }

    /// A transposed view of the same values.
    pub fn keep_transposed(&self) -> Broadcast<'_, u8> {
        Broadcast { strides: [self.sizes.s_q * self.sizes.s_kv, 0, 1, self.sizes.s_q], ..self.keep() }
    }

    /// One value per head and key.
    pub fn bias(&self) -> Broadcast<'_, f32> {
        Broadcast { data: &self.bias, strides: [0, self.sizes.s_kv, 0, 1] }
    }

    pub fn ids(&self, s: usize, axis: usize) -> Broadcast<'_, i64> {
        let mut strides = [s, 0, 0, 0];
        strides[axis] = 1;
        Broadcast { data: &self.ids, strides }
    }

    /// Each kind of mask alone, for two sequences.
    pub fn masks(&self) -> Vec<Mask<'_>> {
        let Sizes { b, s_q, s_kv, .. } = self.sizes;
        let ends = |b: usize| (0..s_q).map(|i| (i * 5 + b) % (s_kv + 1)).collect();
        let (base, structured) = (Mask::default, MaskStructure::default);
        vec![
            MaskStructure { lengths: vec![Lengths::PerSequence(vec![0, s_kv - 1])], ..structured() }.into(),
            MaskStructure {
                lengths: vec![
                    Lengths::PerQuery((0..b).map(ends).collect()),
                    Lengths::PerSequence(vec![s_kv / 2, s_kv]),
                ],
                ..structured()
            }
            .into(),
            MaskStructure { right: Some(0), ..structured() }.into(),
            MaskStructure { left: Some(3), right: Some(2), ..structured() }.into(),
            MaskStructure { left: Some(usize::MAX), right: Some(usize::MAX), ..structured() }.into(),
            Mask { keep: vec![self.keep()], ..base() },
            Mask { bias: vec![self.bias()], ..base() },
            Mask { segments: vec![[self.ids(s_q, 2), self.ids(s_kv, 3)]], ..base() },
        ]
    }
}
