//! MLX's affine quantization, of linear layers and embeddings: `mlx.nn.quantize`.
//!
//! `weight (out, in · bits / 32)` u32, `scales` and `biases` `(out, in / group_size)`: `weight = scales · q + biases`.
//! Integers follow one another from the lowest bits up and may cross words. Bits and group size are in `quantization`
//! of `config.json`; a module may have its own ones there, under its name.

use safetensors::Dtype;

use super::module::{Checked, FLOATS, Fault, Module};
use super::unpack::unpack_rows;
use super::{Codes, Format, Plan, Settings};
use crate::ensure;
use crate::error::Result;

pub(super) const MLX: Format = Format {
    name: "MLX affine",
    tensors: &["weight", "scales", "biases"],
    fits: |module| module.dtype("weight") == Some(Dtype::U32) && module.has("scales"),
    plan: Some(|module, settings| {
        let name = module.full_name("weight");
        if let Some(mode) = settings.value(module.name, "mode").filter(|mode| *mode != "affine") {
            return Err(Fault::new(name, format!("is quantized by MLX in mode {mode}"), "mode affine"));
        }
        // MLX's other modes have scales of 8 bits and no biases.
        if module.dtype("scales") == Some(Dtype::U8) {
            let found = "is quantized by MLX in floating point (mxfp8, mxfp4 or nvfp4)";
            return Err(Fault::new(name, found, "mode affine"));
        }
        affine_plan(module, settings, "biases", &[2, 3, 4, 5, 6, 8])
    }),
    read: Some(|module, plan| read_affine(module, plan, "biases")),
};

/// The method `metal` of transformers: the same with the biases in `qbiases`.
pub(super) const METAL: Format = Format {
    name: "metal",
    tensors: &["weight", "scales", "qbiases"],
    fits: |module| module.dtype("weight") == Some(Dtype::U32) && module.has("qbiases"),
    plan: Some(|module, settings| affine_plan(module, settings, "qbiases", &[2, 4, 8])),
    read: Some(|module, plan| read_affine(module, plan, "qbiases")),
};

/// The sizes of a module with affine groups whose smallest values are in the tensor `biases`.
fn affine_plan(module: &Module, settings: &Settings, biases: &str, allowed: &[usize]) -> Checked<Plan> {
    let name = module.full_name("weight");
    let bits = settings.number(module.name, "bits", &name)?;
    let group = settings.number(module.name, "group_size", &name)?;
    ensure!(allowed.contains(&bits), settings.fault(&name, &format!("{bits} `bits`"), &format!("one of {allowed:?}")));
    let [rows, words] = module.matrix("weight")?;
    let columns = words * 32 / bits;
    if columns * bits != words * 32 || !columns.is_multiple_of(group) {
        let expected = format!("rows of whole groups of {group} numbers of {bits} bits in words of 32");
        return Err(module.wrong_shape("weight", expected));
    }
    for part in ["scales", biases] {
        module.check_dtype(part, &FLOATS[..3])?;
        if module.matrix(part)? != [rows, columns / group] {
            let expected =
                format!("{:?}: {rows} rows of {columns} numbers of {bits} bits, a {group}th", [rows, columns / group]);
            return Err(module.wrong_shape(part, expected));
        }
    }
    Ok(Plan { shape: [rows, columns], bits, block: [1, group], zero_offset: 0 })
}

fn read_affine(module: &Module, plan: &Plan, biases: &str) -> Result<Codes> {
    let mut values = module.zeros(plan.shape)?;
    unpack_rows(&module.read("weight")?, plan.bits, plan.shape[1], &mut values);
    let (scales, biases) = (module.floats("scales")?, Some(module.floats(biases)?));
    Ok(Codes { values, scales, zeros: None, biases, groups: None })
}
