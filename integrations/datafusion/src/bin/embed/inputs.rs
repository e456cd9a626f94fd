//! The input files: found by patterns, and checked before any work.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use sha2::{Digest, Sha256};

use crate::failure::{Failure, Result};

/// An input file.
pub struct Input {
    pub path: PathBuf,
    pub rows: u64,
    /// SHA-256 of its content.
    pub sha256: String,
}

/// The files of the patterns, in the order of their paths, each once.
pub fn find(patterns: &[String]) -> Result<Vec<PathBuf>> {
    let mut found = BTreeSet::new();
    for pattern in patterns {
        let before = found.len();
        // A file of this very name is meant, whatever characters it has.
        if Path::new(pattern).is_file() {
            found.insert(absolute(Path::new(pattern))?);
            continue;
        }
        let paths = glob::glob(pattern).map_err(|e| Failure::new(format!("--input {pattern}: {e}")))?;
        for path in paths {
            let path = path.map_err(|e| Failure::at(e.path(), e.error()))?;
            if path.is_file() {
                found.insert(absolute(&path)?);
            }
        }
        if found.len() == before && !found.iter().any(|path| matches(pattern, path)) {
            return Err(Failure::new(format!("--input {pattern}: no such file")));
        }
    }
    Ok(found.into_iter().collect())
}

/// Whether a file that is already found belongs to a pattern too.
fn matches(pattern: &str, path: &Path) -> bool {
    let same = |other: PathBuf| absolute(&other).is_ok_and(|other| other == path);
    glob::glob(pattern).is_ok_and(|paths| paths.flatten().any(same))
}

fn absolute(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|e| Failure::at(path, e))
}

/// Opens a file, and checks that it has the column of texts and not the one of embeddings.
pub fn open(path: PathBuf, column: &str, output_column: &str) -> Result<Input> {
    let (schema, rows) = footer(&path)?;
    match schema.field_with_name(column).map(|field| field.data_type()) {
        Ok(found) if is_text(found) => {}
        Ok(found) => return Err(Failure::at(&path, format!("column `{column}` is of type {found}, expected text"))),
        Err(_) => {
            let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            return Err(Failure::at(&path, format!("no column `{column}`, expected one of {}", names.join(", "))));
        }
    }
    if schema.field_with_name(output_column).is_ok() {
        let reason = format!("has a column `{output_column}` already; name another one with --output-column");
        return Err(Failure::at(&path, reason));
    }
    let sha256 = sha256(&path)?;
    Ok(Input { path, rows, sha256 })
}

/// The schema and the number of rows of a Parquet file.
fn footer(path: &Path) -> Result<(SchemaRef, u64)> {
    let file = File::open(path).map_err(|e| Failure::at(path, e))?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| Failure::at(path, e))?;
    let rows = reader.metadata().file_metadata().num_rows();
    Ok((reader.schema().clone(), rows.try_into().map_err(|_| Failure::at(path, format!("has {rows} rows")))?))
}

fn is_text(found: &DataType) -> bool {
    match found {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// SHA-256 of the content of a file, as hexadecimal digits.
fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).map_err(|e| Failure::at(path, e))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).map_err(|e| Failure::at(path, e))? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            n => hash.update(&buffer[..n]),
        }
    }
}
