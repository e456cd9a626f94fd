//! Embeddings in files of other programs.

use std::collections::HashMap;
use std::io::Write;

use candle_attention_text::{Precision, QuantizedEmbeddings, QuantizedValues};
use candle_core::{Device, Tensor};

use super::super::shared::output::{Kind, Output};
use super::super::shared::{Result, fail, print};

/// Whether the file has numbers of the precision.
pub fn check(output: &Output, precision: Precision) -> Result<()> {
    let is_signed = matches!(precision, Precision::Int8 | Precision::Binary);
    if is_signed && output.kind != Kind::Npy {
        fail(&output.path, format!("{precision} needs signed bytes, which only .npy files get"))
    } else {
        Ok(())
    }
}

/// Writes embeddings `(texts, dimensions)`, and says so unless they go to standard output.
pub fn embeddings(output: &Output, embeddings: &QuantizedEmbeddings, made: &str) -> Result<()> {
    if output.kind == Kind::Npy {
        output.write(&npy(embeddings)?)?;
    } else {
        let tensor = match embeddings.values() {
            QuantizedValues::Float32(values) => Tensor::from_slice(values, embeddings.dims(), &Device::Cpu)?,
            QuantizedValues::Uint8(values) => Tensor::from_slice(values, embeddings.dims(), &Device::Cpu)?,
            _ => return fail(&output.path, "numbers of a type that safetensors files do not get"),
        };
        output.write_tensors(HashMap::from([("embeddings".to_string(), tensor)]))?;
    }
    if output.is_stdout() {
        return Ok(());
    }
    let mut out = print::stdout();
    writeln!(out, "{}: {made}", print::plain(output.path.display()))?;
    Ok(out.flush()?)
}

/// A matrix in NumPy's format
/// ([NEP 1](https://numpy.org/neps/nep-0001-npy-format.html), version 1.0, little endian, row-major).
fn npy(matrix: &QuantizedEmbeddings) -> Result<Vec<u8>> {
    /// Data starts at a multiple of this many bytes.
    const ALIGNMENT: usize = 64;
    let (rows, columns) = matrix.dims();
    let (dtype, data): (&str, Vec<u8>) = match matrix.values() {
        QuantizedValues::Float32(values) => ("<f4", values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        QuantizedValues::Int8(values) => ("|i1", values.iter().map(|x| *x as u8).collect()),
        QuantizedValues::Uint8(values) => ("|u1", values.clone()),
        _ => return Err("numbers of a type that this program does not write".into()),
    };
    let dictionary = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // After the magic string, two bytes of version and two of the length; it ends in a line break.
    let before = b"\x93NUMPY\x01\x00".len() + 2;
    let least = before + dictionary.len() + 1;
    let padding = least.next_multiple_of(ALIGNMENT) - least;
    let header = format!("{dictionary}{}\n", " ".repeat(padding));
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(data);
    Ok(bytes)
}
