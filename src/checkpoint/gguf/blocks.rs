//! The types of tensors in GGUF files, and what makes numbers of them.

use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::{Device, Tensor};
use safetensors::Dtype;

use crate::checkpoint::header::Entry;
use crate::checkpoint::shard::{Shard, zeros};
use crate::error::{Error, Result, cut};
use crate::ops::Quantization;

/// A type of tensors: blocks of a number of elements and a number of bytes.
#[derive(Debug)]
pub(crate) struct GgufType {
    pub name: &'static str,
    elements: u64,
    bytes: u64,
    read: Read,
}

/// The reader of a type.
#[derive(Debug, Clone, Copy)]
enum Read {
    /// Numbers, as in safetensors.
    Numbers(Dtype),
    /// candle's code for blocks.
    Blocks(GgmlDType),
    /// Nothing here does.
    Unsupported,
}

const fn numbers(name: &'static str, bytes: u64, dtype: Dtype) -> GgufType {
    GgufType { name, elements: 1, bytes, read: Read::Numbers(dtype) }
}

const fn blocks(name: &'static str, elements: u64, bytes: u64, kind: GgmlDType) -> GgufType {
    GgufType { name, elements, bytes, read: Read::Blocks(kind) }
}

const fn unsupported(name: &'static str, elements: u64, bytes: u64) -> GgufType {
    GgufType { name, elements, bytes, read: Read::Unsupported }
}

/// All types by their numbers, with the sizes of `GGML_QUANT_SIZES` in llama.cpp's `gguf-py/gguf/constants.py`.
#[rustfmt::skip]
static TYPES: &[(u32, GgufType)] = &[
    (0, numbers("F32", 4, Dtype::F32)), (1, numbers("F16", 2, Dtype::F16)),
    (2, blocks("Q4_0", 32, 18, GgmlDType::Q4_0)), (3, blocks("Q4_1", 32, 20, GgmlDType::Q4_1)),
    (6, blocks("Q5_0", 32, 22, GgmlDType::Q5_0)), (7, blocks("Q5_1", 32, 24, GgmlDType::Q5_1)),
    (8, blocks("Q8_0", 32, 34, GgmlDType::Q8_0)),
    (9, unsupported("Q8_1", 32, 40)), (10, unsupported("Q2_K", 256, 84)), (11, unsupported("Q3_K", 256, 110)),
    (12, blocks("Q4_K", 256, 144, GgmlDType::Q4K)), (13, blocks("Q5_K", 256, 176, GgmlDType::Q5K)),
    (14, blocks("Q6_K", 256, 210, GgmlDType::Q6K)),
    (15, unsupported("Q8_K", 256, 292)), (16, unsupported("IQ2_XXS", 256, 66)), (17, unsupported("IQ2_XS", 256, 74)),
    (18, unsupported("IQ3_XXS", 256, 98)), (19, unsupported("IQ1_S", 256, 50)), (20, unsupported("IQ4_NL", 32, 18)),
    (21, unsupported("IQ3_S", 256, 110)), (22, unsupported("IQ2_S", 256, 82)), (23, unsupported("IQ4_XS", 256, 136)),
    (24, numbers("I8", 1, Dtype::I8)), (25, numbers("I16", 2, Dtype::I16)), (26, numbers("I32", 4, Dtype::I32)),
    (27, numbers("I64", 8, Dtype::I64)), (28, numbers("F64", 8, Dtype::F64)),
    (29, unsupported("IQ1_M", 256, 56)),
    (30, numbers("BF16", 2, Dtype::BF16)),
    (34, unsupported("TQ1_0", 256, 54)), (35, unsupported("TQ2_0", 256, 66)), (39, unsupported("MXFP4", 32, 17)),
    (40, unsupported("NVFP4", 64, 36)), (41, unsupported("Q1_0", 128, 18)),
];

/// The type of a number in the file.
pub(super) fn type_of(number: u32) -> Option<&'static GgufType> {
    TYPES.iter().find(|(other, _)| *other == number).map(|(_, kind)| kind)
}

impl GgufType {
    /// The dtype in which a tensor of it is read.
    pub fn dtype(&self) -> Dtype {
        match self.read {
            Read::Numbers(dtype) => dtype,
            Read::Blocks(_) | Read::Unsupported => Dtype::F32,
        }
    }

    /// Whether its values are numbers that are stored as such.
    pub fn is_numbers(&self) -> bool {
        matches!(self.read, Read::Numbers(_))
    }

    /// The bytes of a tensor of this shape. Rows are whole blocks.
    pub fn bytes(&self, shape: &[usize]) -> std::result::Result<u64, String> {
        // Sizes whose product overflows are no shape, even if one of them is zero.
        let sizes = shape.iter().map(|size| *size.max(&1) as u64);
        let count = sizes.chain([self.bytes]).try_fold(1, u64::checked_mul);
        let Some(count) = count.filter(|_| shape.iter().all(|size| isize::try_from(*size).is_ok())) else {
            return Err(format!("shape {shape:?} is larger than any memory"));
        };
        let row = shape.last().copied().unwrap_or(1) as u64;
        if !row.is_multiple_of(self.elements) {
            let (name, elements) = (self.name, self.elements);
            return Err(format!("{name} {shape:?} has rows of {row}, expected a multiple of {elements}"));
        }
        Ok(if shape.contains(&0) { 0 } else { count / self.elements })
    }

    /// Checks that the tensor `name` of this type can be read.
    pub fn check(&self, name: &str) -> Result<()> {
        let Read::Unsupported = self.read else { return Ok(()) };
        let read =
            TYPES.iter().filter(|(_, kind)| !matches!(kind.read, Read::Unsupported) && !kind.name.starts_with('I'));
        let names: Vec<&str> = read.map(|(_, kind)| kind.name).collect();
        let found = format!("has the GGUF type {}", self.name);
        Err(Error::tensor(name, found, format!("one of {}", names.join(", "))))
    }
}

/// How a GGUF file holds a tensor.
#[derive(Debug, Clone)]
pub(crate) struct GgufTensor {
    pub kind: &'static GgufType,
    /// The shape in the file.
    pub shape: Box<[usize]>,
    /// The change that brings it into the form of Hugging Face.
    pub change: Option<Change>,
}

impl GgufTensor {
    /// The format in which a loader packs the tensor without a further rounding: rows are whole blocks, whatever their
    /// order.
    pub fn packed_format(&self) -> Option<Quantization> {
        match self.kind.read {
            Read::Blocks(GgmlDType::Q8_0) => Some(Quantization::Q8_0),
            Read::Blocks(GgmlDType::Q4_0) => Some(Quantization::Q4_0),
            _ => None,
        }
    }
}

/// A change of a tensor by llama.cpp's converter, to be undone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Change {
    /// The rows of each of so many heads stand in the order of llama.cpp's rotation, which turns neighbours, not
    /// halves.
    HeadRows(usize),
    /// A norm has the 1 added that its model adds to its weight.
    PlusOne,
}

impl Change {
    /// The tensor as Hugging Face has it.
    fn undo(self, tensor: Tensor) -> Result<Tensor> {
        let shape = tensor.dims().to_vec();
        Ok(match self {
            Self::HeadRows(heads) => {
                let half = shape[0] / heads / 2;
                tensor.reshape((heads, half, 2, ()))?.transpose(1, 2)?.contiguous()?.reshape(shape)?
            }
            Self::PlusOne => (tensor - 1.0)?,
        })
    }
}

/// Reads the tensor `name` as Hugging Face has it: numbers of [`dtype`](GgufType::dtype).
pub(crate) fn read(shard: &Shard, name: &str, entry: &Entry, stored: &GgufTensor, device: &Device) -> Result<Tensor> {
    stored.kind.check(name)?;
    let tensor = match stored.kind.read {
        Read::Numbers(_) => {
            let plain = Entry { shape: stored.shape.clone(), gguf: None, ..entry.clone() };
            crate::checkpoint::shard::read_tensor(shard, name, &plain, &Device::Cpu)?
        }
        _ => {
            let count = stored.shape.iter().product::<usize>();
            let mut all: Vec<f32> = zeros(shard.path(), count as u64, &format!("tensor `{}`", cut(name)))?;
            each_part(shard, name, entry, stored, |at, values| {
                if let Some(wrong) = values.iter().position(|value| !value.is_finite()) {
                    let (kind, block) = (stored.kind.name, (at + wrong) as u64 / stored.kind.elements);
                    let found = format!("has NaN or an infinity in block {block} of type {kind}");
                    return Err(Error::tensor(name, found, "finite scales"));
                }
                all[at..at + values.len()].copy_from_slice(values);
                Ok(true)
            })?;
            Tensor::from_vec(all, &*stored.shape, &Device::Cpu)?
        }
    };
    let tensor = match stored.change {
        Some(change) => change.undo(tensor)?,
        None => tensor,
    };
    Ok(tensor.to_device(device)?)
}

/// Whether a tensor of blocks holds NaN or infinities.
pub(crate) fn hold_non_finite(shard: &Shard, name: &str, entry: &Entry, stored: &GgufTensor) -> Result<bool> {
    stored.kind.check(name)?;
    let mut found = false;
    each_part(shard, name, entry, stored, |_, values| {
        found = values.iter().any(|value| !value.is_finite());
        Ok(!found)
    })?;
    Ok(found)
}

/// Calls `on_part` with the start of a part of a tensor of blocks and its values, part after part, until it returns
/// false.
fn each_part(
    shard: &Shard,
    name: &str,
    entry: &Entry,
    stored: &GgufTensor,
    mut on_part: impl FnMut(usize, &[f32]) -> Result<bool>,
) -> Result<()> {
    /// Blocks that are held at a time: up to 2^18 numbers.
    const PART: u64 = 1 << 10;
    let Read::Blocks(kind) = stored.kind.read else { return Ok(()) };
    let (elements, bytes) = (stored.kind.elements as usize, stored.kind.bytes);
    // Words, because candle takes the bytes for blocks, which are aligned to 2 or 4 bytes.
    let mut words = vec![0u64; (PART * bytes).min(entry.bytes()).div_ceil(8) as usize];
    let (mut from, mut at) = (0, 0);
    while from < entry.bytes() {
        let length = (PART * bytes).min(entry.bytes() - from);
        let raw = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut words)[..length as usize];
        shard.read_part(name, entry, from, raw)?;
        let count = raw.len() / bytes as usize * elements;
        let part = qtensor_from_ggml(kind, raw, vec![count], &Device::Cpu)?.dequantize(&Device::Cpu)?;
        if !on_part(at, &part.to_vec1::<f32>()?)? {
            return Ok(());
        }
        from += length;
        at += count;
    }
    Ok(())
}
