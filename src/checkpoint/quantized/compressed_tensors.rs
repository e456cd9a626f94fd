//! The formats of compressed-tensors, which vLLM writes: `int-quantized` and `float-quantized` with a number in each
//! byte of `weight`, and `pack-quantized` with several in each word of `weight_packed`.
//!
//! `weight_scale` is one number, `(out, 1)`, `(out, groups)`, or a table of blocks; `weight_zero_point` has its shape.
//! `weight = weight_scale · (q - weight_zero_point)` with signed `q`. Packed numbers are stored plus half their range,
//! zero points packed along the outputs, and `weight_shape` has the shape of the weight. `weight_g_idx` has the group
//! of each input, or -1 for all. Scales of activations belong to arithmetic in 8 bits, and are not needed.

use safetensors::Dtype;

use super::fp8::{FLOAT8_DTYPES, block_size, read_float8, scaled};
use super::gptq::{WORDS, group_of_each};
use super::module::{Checked, Fault, Module};
use super::unpack::{transpose, unpack_rows};
use super::{Codes, Format, Plan, Settings};
use crate::error::Result;

/// The bits of packed numbers that are read.
const BITS: [usize; 2] = [4, 8];

pub(super) const SCALE: &str = "weight_scale";
const ZERO: &str = "weight_zero_point";
const ORDER: &str = "weight_g_idx";

pub(super) const INT8: Format = Format {
    name: "compressed-tensors",
    tensors: &["weight", SCALE, ZERO, ORDER, "input_scale", "input_zero_point", "output_scale", "output_zero_point"],
    fits: |module| module.has(SCALE) && module.dtype("weight") == Some(Dtype::I8),
    plan: Some(|module, settings| {
        let plan = with_scales(module, settings, module.matrix("weight")?, 8)?;
        if module.has(ZERO) {
            module.check_dtype(ZERO, &[Dtype::I8])?;
            same_shape(module, ZERO, module.shape(SCALE)?)?;
        }
        Ok(plan)
    }),
    read: Some(|module, plan| {
        let bytes: Vec<i8> = module.read("weight")?;
        let mut values = module.zeros(plan.shape)?;
        values.iter_mut().zip(&bytes).for_each(|(value, byte)| *value = f32::from(*byte));
        let zeros = module.has(ZERO).then(|| module.read::<i8>(ZERO)).transpose()?;
        let zeros = zeros.map(|zeros| zeros.into_iter().map(f32::from).collect());
        with_order(module, plan, values, zeros)
    }),
};

/// Also what FBGEMM, ModelOpt and Quark write.
pub(super) const FLOAT8: Format = Format {
    name: "FP8",
    #[rustfmt::skip]
    tensors: &[
        "weight", SCALE, "input_scale", "input_scale_ub", "input_zero_point", "output_scale", "output_zero_point",
        "k_scale", "v_scale",
    ],
    fits: |module| module.has(SCALE) && module.dtype("weight").is_some_and(|dtype| FLOAT8_DTYPES.contains(&dtype)),
    plan: Some(|module, settings| with_scales(module, settings, module.matrix("weight")?, 8)),
    read: Some(|module, plan| read_float8(module, plan, SCALE)),
};

pub(super) const PACKED: Format = Format {
    name: "compressed-tensors",
    #[rustfmt::skip]
    tensors: &[
        "weight_packed", SCALE, "weight_shape", ZERO, ORDER, "input_scale", "input_zero_point", "output_scale",
        "output_zero_point",
    ],
    fits: |module| module.has("weight_packed"),
    plan: Some(|module, settings| {
        module.check_dtype("weight_packed", &WORDS)?;
        let [rows, words] = module.matrix("weight_packed")?;
        let shape = stated_shape(module)?;
        let bits =
            BITS.into_iter().find(|bits| (shape[1].checked_mul(*bits)).map(|all| all.div_ceil(32)) == Some(words));
        let (Some(bits), true) = (bits, shape[0] == rows) else {
            let expected =
                format!("{shape:?}, which is `weight_shape`, in numbers of 4 or 8 bits, packed in words of 32");
            return Err(module.wrong_shape("weight_packed", expected));
        };
        let plan = with_scales(module, settings, shape, bits)?;
        if module.has(ZERO) {
            let [_, groups] = plan.grid();
            let packed = [(rows * bits).div_ceil(32), groups];
            module.check_dtype(ZERO, &[Dtype::I32, Dtype::U32, Dtype::I8])?;
            let expected = if module.dtype(ZERO) == Some(Dtype::I8) { module.shape(SCALE)? } else { &packed };
            same_shape(module, ZERO, expected)?;
        }
        Ok(plan)
    }),
    read: Some(|module, plan| {
        let ([rows, columns], [_, groups]) = (plan.shape, plan.grid());
        let half = (1 << (plan.bits - 1)) as f32;
        let mut values = module.zeros(plan.shape)?;
        unpack_rows(&module.read("weight_packed")?, plan.bits, columns, &mut values);
        values.iter_mut().for_each(|value| *value -= half);
        let zeros = match module.dtype(ZERO) {
            None => None,
            Some(Dtype::I8) => Some(module.read::<i8>(ZERO)?.into_iter().map(f32::from).collect()),
            Some(_) => {
                let width = (rows * plan.bits).div_ceil(32);
                let words = transpose(&module.read::<u32>(ZERO)?, [width, groups]);
                let mut zeros = vec![0.0; groups * rows];
                unpack_rows(&words, plan.bits, rows, &mut zeros);
                zeros.iter_mut().for_each(|zero| *zero -= half);
                Some(transpose(&zeros, [groups, rows]))
            }
        };
        with_order(module, plan, values, zeros)
    }),
};

/// The plan of a weight with a table `weight_scale`.
fn with_scales(module: &Module, settings: &Settings, shape: [usize; 2], bits: usize) -> Checked<Plan> {
    let [rows, columns] = shape;
    let found = module.shape(SCALE)?;
    let block = match *found {
        [] | [1] | [1, 1] => shape,
        [height] if height == rows => [1, columns],
        [height, width] if height == rows && width > 0 && columns.is_multiple_of(width) => [1, columns / width],
        [_, _] => block_size(module, settings.block_structure())?,
        _ => return Err(module.wrong_shape(SCALE, format!("[{rows}, groups] for a weight {shape:?}"))),
    };
    if module.has(ORDER) && module.shape(ORDER)? != [columns] {
        return Err(module.wrong_shape(ORDER, format!("[{columns}], the inputs")));
    }
    Ok(Plan { bits, ..scaled(module, SCALE, shape, block)? })
}

fn same_shape(module: &Module, part: &str, expected: &[usize]) -> Checked<()> {
    if module.shape(part)? == expected { Ok(()) } else { Err(module.wrong_shape(part, format!("{expected:?}"))) }
}

/// The shape that `weight_shape` states.
fn stated_shape(module: &Module) -> Checked<[usize; 2]> {
    module.check_dtype("weight_shape", &[Dtype::I64, Dtype::I32])?;
    same_shape(module, "weight_shape", &[2])?;
    let name = || module.full_name("weight_shape");
    let sizes = module.integers("weight_shape");
    let sizes = sizes.map_err(|e| Fault::new(name(), format!("cannot be read ({e})"), "two sizes"))?;
    let shape: Option<Vec<usize>> = sizes.iter().map(|size| usize::try_from(*size).ok()).collect();
    let shape = shape.and_then(|shape| <[usize; 2]>::try_from(shape).ok());
    shape.ok_or_else(|| Fault::new(name(), format!("is {sizes:?}"), "two sizes"))
}

/// Adds scales and the groups of inputs.
fn with_order(module: &Module, plan: &Plan, values: Vec<f32>, zeros: Option<Vec<f32>>) -> Result<Codes> {
    let order = module.has(ORDER).then(|| module.integers(ORDER)).transpose()?;
    let order = order.filter(|order| order.iter().any(|group| *group != -1));
    let groups = order.map(|order| group_of_each(module, ORDER, &order, plan.grid()[1])).transpose()?;
    Ok(Codes { values, scales: module.floats(SCALE)?, zeros, biases: None, groups })
}
