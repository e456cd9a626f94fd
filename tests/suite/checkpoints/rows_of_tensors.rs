//! Rows of a matrix that are read some at a time are those of the whole.

use candle_attention::Result;
use candle_attention::checkpoint::{Checkpoint, WeightSource};
use candle_core::{DType, Device, Tensor};
use half::f16;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::common::{Random, numbers, says};

const CPU: Device = Device::Cpu;

/// More than is held at a time, and no multiple of it.
const ROWS: usize = 2111;
const COLUMNS: usize = 160;
const SIZE: usize = ROWS * COLUMNS;

fn read(checkpoint: &Checkpoint, dtype: DType) -> Result<Vec<Tensor>> {
    let mut parts = Vec::new();
    checkpoint.at("", dtype, &CPU).get_rows("x.weight", [ROWS, COLUMNS], &mut |rows| {
        parts.push(rows);
        Ok(())
    })?;
    Ok(parts)
}

/// Whether the rows came in several parts.
fn came_in_parts(what: &str, checkpoint: &Checkpoint) -> bool {
    for dtype in [DType::F32, DType::BF16] {
        let parts = read(checkpoint, dtype).unwrap();
        let whole = checkpoint.at("", dtype, &CPU).get("x.weight", &[ROWS, COLUMNS]).unwrap();
        assert_eq!(parts.iter().map(|part| part.dtype()).collect::<Vec<_>>(), vec![dtype; parts.len()], "{what}");
        assert_eq!(numbers(&Tensor::cat(&parts, 0).unwrap()), numbers(&whole), "{what}");
    }
    read(checkpoint, DType::F32).unwrap().len() > 1
}

fn safetensors(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Checkpoint {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
    Checkpoint::from_bytes(safetensors::serialize(views, None).unwrap()).unwrap()
}

/// A file with one matrix in Q8_0, whose scales are `scale` of their row.
fn gguf(scale: impl Fn(usize) -> f16, quants: &[u8]) -> Checkpoint {
    const BLOCK: usize = 32;
    let text = |text: &[u8]| [&(text.len() as u64).to_le_bytes(), text].concat();
    let mut file = [b"GGUF", &3u32.to_le_bytes()[..], &1u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    file.extend([text(b"general.architecture"), 8u32.to_le_bytes().to_vec(), text(b"none")].concat());
    file.extend([text(b"x.weight"), 2u32.to_le_bytes().to_vec()].concat());
    file.extend([COLUMNS as u64, ROWS as u64].map(u64::to_le_bytes).concat());
    file.extend([&8u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat());
    file.resize(file.len().next_multiple_of(32), 0);
    for (index, block) in quants.chunks_exact(BLOCK).enumerate() {
        file.extend(scale(index / (COLUMNS / BLOCK)).to_le_bytes());
        file.extend(block);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    Checkpoint::from_bytes(file).unwrap()
}

#[test]
fn parts_are_the_whole_in_every_format() {
    let random = Random::new(34).tensor(&[SIZE], DType::F32).to_vec1::<f32>().unwrap();
    let bytes: Vec<u8> = random.iter().flat_map(|x| x.to_le_bytes()).collect();
    let halves: Vec<u8> = random.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    let quants: Vec<u8> = random.iter().map(|x| (x * 40.0) as i8 as u8).collect();
    let plain = |dtype, bytes| safetensors(&[("x.weight", dtype, &[ROWS, COLUMNS], bytes)]);
    assert!(came_in_parts("f32", &plain(Dtype::F32, &bytes)));
    assert!(came_in_parts("f16", &plain(Dtype::F16, &halves)));
    assert!(came_in_parts("Q8_0", &gguf(|row| f16::from_f32(1.0 + row as f32), &quants)));

    let scales: Vec<u8> = (0..ROWS).flat_map(|row| (1.0 + row as f32).to_le_bytes()).collect();
    let int8 = |groups: usize, scales: &[u8]| {
        let weight: (&str, Dtype, &[usize], &[u8]) = ("x.weight", Dtype::I8, &[ROWS, COLUMNS], &quants);
        safetensors(&[weight, ("x.weight_scale", Dtype::F32, &[ROWS, groups], scales)])
    };
    assert!(came_in_parts("int8 with a scale for each row", &int8(1, &scales)));
    // Other formats are read whole.
    assert!(!came_in_parts("int8 in groups", &int8(2, &[&scales[..], &scales].concat())));

    // An error states the place in the whole.
    let mut damaged = scales.clone();
    damaged[2000 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    says(read(&int8(1, &damaged), DType::F32), &["x.weight", "NaN", "[2000, 0]"]);
    let damaged = gguf(|row| if row == 2000 { f16::INFINITY } else { f16::ONE }, &quants);
    says(read(&damaged, DType::F32), &["x.weight", "block 10000"]);
    // And rows that are refused end the reading.
    let whole = plain(Dtype::F32, &bytes).at("", DType::F32, &CPU);
    says(whole.get_rows("x.weight", [COLUMNS, ROWS], &mut |_| Ok(())), &["x.weight", "[160, 2111]"]);
}
