//! FP8 in blocks, the method `fp8` of transformers: DeepSeek, Qwen's `-FP8`, GLM.
//!
//! `weight (out, in)` in E4M3, `weight_scale_inv (⌈out / rows⌉, ⌈in / columns⌉)`, by which it is multiplied, or one for
//! all. `weight_block_size` of `config.json` has rows and columns, by default 128 and 128.

use safetensors::Dtype;
use serde_json::Value;

use super::module::{Checked, FLOATS, Fault, Module};
use super::unpack::float8_values;
use super::{Codes, Format, Plan};
use crate::error::Result;

/// The formats of 8 bits that are read.
pub(super) const FLOAT8_DTYPES: [Dtype; 2] = [Dtype::F8_E4M3, Dtype::F8_E5M2];

pub(super) const BLOCKS: Format = Format {
    name: "FP8",
    tensors: &["weight", SCALES[0], SCALES[1], "activation_scale", "input_scale"],
    fits: |module| {
        let is_float8 = module.dtype("weight").is_some_and(|dtype| FLOAT8_DTYPES.contains(&dtype));
        module.has(SCALES[0]) || module.has(SCALES[1]) && is_float8
    },
    plan: Some(|module, settings| {
        module.check_dtype("weight", &FLOAT8_DTYPES)?;
        let shape = module.matrix("weight")?;
        let scales = name_of_scales(module);
        if SCALES.iter().all(|name| module.has(name)) {
            let found = format!("stands beside `{scales}`");
            return Err(Fault::new(module.full_name(SCALES[1]), found, "one table of scales"));
        }
        let block = match module.shape(scales)? {
            [] | [1] => shape,
            _ => block_size(module, settings.value(module.name, "weight_block_size"))?,
        };
        scaled(module, scales, shape, block)
    }),
    read: Some(|module, plan| read_float8(module, plan, name_of_scales(module))),
};

/// The names of the table of scales: the usual one, and that of DeepSeek V4's own files.
const SCALES: [&str; 2] = ["weight_scale_inv", "scale"];

/// The one of these names that the module has.
fn name_of_scales(module: &Module) -> &'static str {
    if module.has(SCALES[0]) { SCALES[0] } else { SCALES[1] }
}

/// The rows and columns of a block: what `config.json` states, or 128 and 128.
pub(super) fn block_size(module: &Module, stated: Option<&Value>) -> Checked<[usize; 2]> {
    let Some(value) = stated else { return Ok([128, 128]) };
    let sizes = value.as_array().into_iter().flatten().map(|size| size.as_u64().and_then(|n| usize::try_from(n).ok()));
    match sizes.collect::<Option<Vec<usize>>>().as_deref() {
        Some(&[rows, columns]) if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => {
            let found = format!("has blocks of {value} in the `quantization_config` of config.json");
            Err(Fault::new(module.full_name("weight"), found, "two positive numbers"))
        }
    }
}

/// The plan of a weight of 8 bits with a table of scales, whose shape is checked.
pub(super) fn scaled(module: &Module, part: &str, shape: [usize; 2], block: [usize; 2]) -> Checked<Plan> {
    let block = [block[0].max(1), block[1].max(1)];
    let plan = Plan { shape, bits: 8, block, zero_offset: 0 };
    module.check_dtype(part, &FLOATS)?;
    let found = module.shape(part)?;
    let [rows, columns] = plan.grid();
    // A column or a single number may lack its last dimensions.
    match *found {
        [height, width] if [height, width] == [rows, columns] => Ok(plan),
        [height] if height == rows && columns == 1 => Ok(plan),
        [] if rows == 1 && columns == 1 => Ok(plan),
        _ => {
            let expected = format!("{:?}: a scale for each block {block:?} of a weight {shape:?}", plan.grid());
            Err(module.wrong_shape(part, expected))
        }
    }
}

pub(super) fn read_float8(module: &Module, plan: &Plan, scales: &str) -> Result<Codes> {
    let table = float8_values(module.dtype("weight").unwrap_or(FLOAT8_DTYPES[0]));
    let bytes: Vec<u8> = module.read("weight")?;
    let mut values = module.zeros(plan.shape)?;
    values.iter_mut().zip(&bytes).for_each(|(value, byte)| *value = table[usize::from(*byte)]);
    Ok(Codes { values, scales: module.floats(scales)?, zeros: None, biases: None, groups: None })
}
