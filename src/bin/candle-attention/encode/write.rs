//! Embeddings in files of other programs.

use std::collections::HashMap;
use std::io::Write;

use candle_core::Tensor;

use super::super::shared::output::{Kind, NPY_MARK, Output};
use super::super::shared::{Result, print};

/// Writes embeddings `(texts, dimensions)`, and says so unless they go to standard output.
pub fn embeddings(output: &Output, embeddings: &Tensor, made: &str) -> Result<()> {
    if output.kind() == Kind::Npy {
        output.write(&npy(embeddings)?)?;
    } else {
        output.write_tensors(HashMap::from([("embeddings".to_string(), embeddings.clone())]))?;
    }
    if output.is_stdout() {
        return Ok(());
    }
    let mut out = print::stdout();
    writeln!(out, "{}: {made}", output.path().display())?;
    Ok(out.flush()?)
}

/// A matrix of f32 in NumPy's format
/// ([NEP 1](https://numpy.org/neps/nep-0001-npy-format.html), version 1.0, little endian, row-major).
fn npy(matrix: &Tensor) -> Result<Vec<u8>> {
    /// Data starts at a multiple of this many bytes.
    const ALIGNMENT: usize = 64;
    let (rows, columns) = matrix.dims2()?;
    let dictionary = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // After the magic string, two bytes of version and two of the length; it ends in a line break.
    let before = b"\x93NUMPY\x01\x00".len() + 2;
    let least = before + dictionary.len() + NPY_MARK + 1;
    let padding = least.next_multiple_of(ALIGNMENT) - least + NPY_MARK;
    let header = format!("{dictionary}{}\n", " ".repeat(padding));
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(matrix.flatten_all()?.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes));
    Ok(bytes)
}
