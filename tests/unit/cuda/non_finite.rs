//! NaN and infinities in keys and values on the emulator: a query that does not see them gives the same bits as without
//! them, in whole and in partial key tiles, and where keys are split over several blocks.

use candle_attention_kernels::{Distances, Element, Mask, MaskStructure};
use half::{bf16, f16};

use super::attention::{Emulator, GPUS};
use crate::kernels::cuda::Gpu;
use crate::support::Random;
use crate::support::hidden::check;
use crate::support::masks::MaskTensors;
use crate::support::reference::{Sizes, qkv};

fn check_masks<T: Element>(gpu: Gpu, (s_q, s_kv): (usize, usize), spoiled: &[usize]) {
    let (mut random, mut emulator) = (Random(17), Emulator::new());
    let sizes = Sizes { b: 2, s_q, s_kv, appended: 1, h: 4, h_kv: 2, d: 24, d_v: 9 };
    let tensors = MaskTensors::new(&mut random, sizes);
    let [q, k, v] = qkv::<T>(&mut random, sizes);
    let mut masks = tensors.masks();
    let slopes = vec![Distances { slopes: vec![0.5, 0.25, 0.1, 0.0], symmetric: false }];
    masks.extend([
        Mask::default(),
        MaskStructure { right: Some(0), ..MaskStructure::default() }.into(),
        MaskStructure { right: Some(0), distances: slopes, ..MaskStructure::default() }.into(),
    ]);
    for mask in &masks {
        check(sizes, mask, [&q, &k, &v], spoiled, &format!("{gpu:?}"), |call| emulator.run(&call, gpu));
    }
}

#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_kernels_do_not_let_a_hidden_key_influence_a_query() {
    check_masks::<f32>(GPUS[0], (5, 7), &[6]);
    check_masks::<f32>(GPUS[3], (70, 90), &[1, 40, 89]);
    check_masks::<f16>(GPUS[1], (70, 90), &[1, 40, 89]);
    check_masks::<bf16>(GPUS[2], (35, 20), &[1, 10, 19]);
}

/// Few queries over many keys, and a block for every few tiles of keys.
#[test]
#[ignore = "needs a C++ compiler"]
fn emulated_split_keys_do_not_let_a_hidden_key_influence_a_query() {
    let gpu = Gpu { multiprocessors: 132, ..GPUS[0] };
    check_masks::<f32>(gpu, (3, 600), &[0, 300, 599]);
    check_masks::<bf16>(gpu, (3, 600), &[0, 300, 599]);
}
