//! AWQ, as AutoAWQ writes it in version `gemm`.
//!
//! `qweight (in, out / 8)`, each word with eight following outputs of 4 bits, in the order 0, 2, 4, 6, 1, 3, 5, 7 from
//! the lowest bits up; `qzeros (groups, out / 8)` alike; `scales (groups, out)`. `weight = scales · (q - zero)`.

use super::gptq::WORDS;
use super::module::{FLOATS, Module};
use super::unpack::transpose;
use super::{Codes, Format, Plan};
use crate::error::Result;

/// The output index of each 4-bit field of a word, lowest bits first.
const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

pub(super) const AWQ: Format = Format {
    name: "AWQ",
    tensors: &["qweight", "qzeros", "scales"],
    fits: |module| module.has("qweight"),
    plan: Some(|module, settings| {
        let [columns, words] = module.matrix("qweight")?;
        let [groups, rows] = module.matrix("scales")?;
        module.check_dtype("qweight", &WORDS)?;
        module.check_dtype("qzeros", &WORDS)?;
        module.check_dtype("scales", &FLOATS[..3])?;
        let name = module.full_name("qweight");
        settings.check_text(module.name, "quant_method", "awq", &name)?;
        settings.check_text(module.name, "version", "gemm", &name)?;
        if words * 8 != rows {
            let expected = format!("[{columns}, {}], four bits for each of the {rows} columns of `scales`", rows / 8);
            return Err(module.wrong_shape("qweight", expected));
        }
        if module.matrix("qzeros")? != [groups, words] {
            return Err(module.wrong_shape("qzeros", format!("{:?}", [groups, words])));
        }
        if groups == 0 || columns == 0 || !columns.is_multiple_of(groups) {
            let expected = format!("a number of rows that divides that of inputs, {columns}, and neither 0");
            return Err(module.wrong_shape("scales", expected));
        }
        Ok(Plan { shape: [rows, columns], bits: 4, block: [1, columns / groups], zero_offset: 0 })
    }),
    read: Some(read),
};

fn read(module: &Module, plan: &Plan) -> Result<Codes> {
    let ([rows, columns], [_, groups]) = (plan.shape, plan.grid());
    let mut values = module.zeros(plan.shape)?;
    unpack(&module.read::<u32>("qweight")?, [rows, columns], &mut values);
    let mut zeros = vec![0.0; rows * groups];
    unpack(&module.read::<u32>("qzeros")?, [rows, groups], &mut zeros);
    let scales = transpose(&module.floats("scales")?, [groups, rows]);
    Ok(Codes { values, scales, zeros: Some(zeros), biases: None, groups: None })
}

/// Unpacks `(columns, rows / 8)` words into `(rows, columns)` numbers.
fn unpack(words: &[u32], [rows, columns]: [usize; 2], into: &mut [f32]) {
    for (column, words) in words.chunks_exact((rows / 8).max(1)).enumerate() {
        for (word, first) in words.iter().zip((0..rows).step_by(8)) {
            for (i, row) in ORDER.iter().enumerate() {
                into[(first + row) * columns + column] = (word >> (4 * i) & 15) as f32;
            }
        }
    }
}
