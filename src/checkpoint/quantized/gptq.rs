//! GPTQ, as AutoGPTQ and GPTQModel write it.
//!
//! `qweight (in · bits / 32, out)`, each word with following inputs from the lowest bits up; `scales (groups, out)`;
//! `qzeros (groups, out · bits / 32)`; `g_idx (in)`, the group of each input. `weight = scales · (q - zero)`, where
//! format `gptq` stores zero points less one and `gptq_v2` as they are; `checkpoint_format` of `config.json` says
//! which, `gptq` if it is absent.

use safetensors::Dtype;

use super::module::{FLOATS, Fault, Module};
use super::unpack::{transpose, unpack_rows};
use super::{Codes, Format, Plan};
use crate::ensure;
use crate::error::Result;

/// The bits that are read.
const BITS: [usize; 2] = [4, 8];

/// Words are stored as signed ones; their bits are what counts.
pub(super) const WORDS: [Dtype; 2] = [Dtype::I32, Dtype::U32];

pub(super) const GPTQ: Format = Format {
    name: "GPTQ",
    tensors: &["qweight", "qzeros", "scales", "g_idx"],
    // AWQ packs outputs, so its `qweight` has fewer columns than there are scales.
    fits: |module| {
        let last = |part| module.shape(part).ok()?.last().copied();
        module.has("qweight") && (last("qweight") == last("scales") || module.has("g_idx"))
    },
    plan: Some(|module, settings| {
        let [words, rows] = module.matrix("qweight")?;
        let [groups, found] = module.matrix("scales")?;
        let [zero_groups, zero_words] = module.matrix("qzeros")?;
        module.check_dtype("qweight", &WORDS)?;
        module.check_dtype("qzeros", &WORDS)?;
        module.check_dtype("scales", &FLOATS[..3])?;
        let name = module.full_name("qweight");
        let Some(bits) = BITS.into_iter().find(|bits| zero_words * 32 == rows * bits) else {
            return Err(module.wrong_shape("qzeros", format!("{rows} numbers of 4 or 8 bits, packed in 32")));
        };
        let columns = words * 32 / bits;
        if found != rows || zero_groups != groups || groups == 0 {
            return Err(module.wrong_shape("scales", format!("[{zero_groups}, {rows}], as `qzeros` and `qweight`")));
        }
        let stated = settings.value(module.name, "group_size").and_then(serde_json::Value::as_u64);
        let stated = stated.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0 && *n <= columns);
        let group = stated.unwrap_or(columns.div_ceil(groups));
        if columns.div_ceil(group.max(1)) != groups {
            return Err(module.wrong_shape("scales", format!("groups of {group} of {columns} numbers of {bits} bits")));
        }
        if module.has("g_idx") && module.shape("g_idx")? != [columns] {
            return Err(module.wrong_shape("g_idx", format!("[{columns}], the inputs")));
        }
        ensure!(settings.are_known(), settings.fault(&name, "", "one, which says how zero points are stored"));
        settings.check_text(module.name, "quant_method", "gptq", &name)?;
        let zero_offset = match settings.value(module.name, "checkpoint_format").map(|value| value.as_str()) {
            None | Some(Some("gptq")) => 1,
            Some(Some("gptq_v2")) => 0,
            Some(other) => {
                let found = format!("the `checkpoint_format` {}", other.unwrap_or("that is not a text"));
                return Err(settings.fault(&name, &found, "gptq or gptq_v2"));
            }
        };
        Ok(Plan { shape: [rows, columns], bits, block: [1, group.max(1)], zero_offset })
    }),
    read: Some(read),
};

fn read(module: &Module, plan: &Plan) -> Result<Codes> {
    let ([rows, columns], [_, groups]) = (plan.shape, plan.grid());
    let words = columns * plan.bits / 32;
    let packed = transpose(&module.read::<u32>("qweight")?, [words, rows]);
    let mut values = module.zeros(plan.shape)?;
    unpack_rows(&packed, plan.bits, columns, &mut values);
    let mut zeros = vec![0.0; groups * rows];
    unpack_rows(&module.read("qzeros")?, plan.bits, rows, &mut zeros);
    // Zero less one is the largest number of these bits.
    let wrap = (1 << plan.bits) as f32;
    zeros.iter_mut().for_each(|zero| *zero = (*zero + plan.zero_offset as f32) % wrap);
    let scales = transpose(&module.floats("scales")?, [groups, rows]);
    let order = module.has("g_idx").then(|| module.integers("g_idx")).transpose()?;
    let order = order.map(|order| group_of_each(module, "g_idx", &order, groups)).transpose()?;
    Ok(Codes { values, scales, zeros: Some(transpose(&zeros, [groups, rows])), biases: None, groups: order })
}

/// The group of each input, checked.
pub(super) fn group_of_each(module: &Module, part: &str, order: &[i64], groups: usize) -> Result<Vec<usize>> {
    let group = |(i, group): (usize, &i64)| {
        let known = usize::try_from(*group).ok().filter(|group| *group < groups);
        known.ok_or_else(|| {
            Fault::new(module.full_name(part), format!("has {group} at {i}"), format!("a group below {groups}")).into()
        })
    };
    order.iter().enumerate().map(group).collect()
}
