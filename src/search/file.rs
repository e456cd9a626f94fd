//! An index in a safetensors file: `keys` (n, 16), hashes of the texts, and `embeddings` (n, size) in f16.

use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use half::f16;
use safetensors::{Dtype, SafeTensors};

use crate::error::{Error, Result};
use crate::io::write_atomic;
use crate::search::index::{Index, Key};

/// What the metadata says in every index; the number is that of this format.
const FORMAT: (&str, &str) = ("format", "candle-attention search index 1");
const MODEL: &str = "model";
const KEYS: &str = "keys";
const EMBEDDINGS: &str = "embeddings";

impl Index<'_> {
    /// Takes over the vectors that a file has for texts of this index, and gives their number.
    ///
    /// # Errors
    /// No such file; a file that is damaged, or of another model. Then nothing is taken over.
    pub fn reuse(&mut self, path: impl AsRef<Path>) -> Result<usize> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let (rows, vectors) = self.read(&bytes).map_err(|reason| Error::file(path, reason))?;
        let count = rows.len();
        self.rows.extend(rows);
        self.vectors.extend(vectors);
        Ok(count)
    }

    fn read(&self, bytes: &[u8]) -> std::result::Result<(Vec<usize>, Vec<f16>), String> {
        let damaged = |e: safetensors::SafeTensorError| format!("not a whole safetensors file: {e}");
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let said = |key: &str| header.metadata().as_ref()?.get(key).map(String::as_str);
        if said(FORMAT.0) != Some(FORMAT.1) {
            return Err("not a search index".to_string());
        }
        if said(MODEL) != Some(&self.model) {
            return Err("made with another model, dtype or prompt".to_string());
        }
        let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
        let keys = tensor(&file, KEYS, Dtype::U8, size_of::<Key>())?;
        let stored = tensor(&file, EMBEDDINGS, Dtype::F16, self.size)?;
        let (keys, rest) = keys.as_chunks::<{ size_of::<Key>() }>();
        let width = self.size * size_of::<f16>();
        if !rest.is_empty() || keys.len() * width != stored.len() {
            return Err(format!("`{KEYS}` and `{EMBEDDINGS}` differ in length"));
        }
        let places: HashMap<&Key, usize> = keys.iter().zip(0..).collect();
        let missing = self.missing();
        let (mut rows, mut vectors) = (Vec::new(), Vec::with_capacity(missing.len().min(keys.len()) * self.size));
        for text in missing {
            let Some(&place) = places.get(&self.key(text)) else { continue };
            let row =
                stored[place * width..][..width].as_chunks::<2>().0.iter().map(|&bytes| f16::from_le_bytes(bytes));
            vectors.extend(row);
            let length: f32 = vectors[rows.len() * self.size..].iter().map(|x| x.to_f32().powi(2)).sum();
            // NaN is none of them.
            if length != 0.0 && (length - 1.0).abs().total_cmp(&0.01).is_gt() {
                return Err(format!("row {place} of `{EMBEDDINGS}` is not of length 1"));
            }
            rows.push(text);
        }
        Ok((rows, vectors))
    }

    /// Writes the vectors that there are to a file, which is replaced as a whole: whenever the process is killed, the old
    /// or the new one is there.
    ///
    /// # Errors
    /// Those of [`check_place`]; a file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        check_place(path)?;
        write_atomic(path, |part| {
            let file = std::fs::File::create(part).map_err(|e| Error::io(part, e))?;
            self.write(file).map_err(|e| Error::io(part, e))
        })
    }

    /// Number by number: a copy of all vectors would double the memory, and what `safetensors` writes is its owner's alone.
    fn write(&self, file: std::fs::File) -> std::io::Result<()> {
        let (count, columns) = (self.rows.len(), size_of::<Key>());
        let (start, middle) = (0, self.vectors.len() * size_of::<f16>());
        let header = serde_json::json!({
            "__metadata__": { FORMAT.0: FORMAT.1, MODEL: self.model },
            EMBEDDINGS: { "dtype": "F16", "shape": [count, self.size], "data_offsets": [start, middle] },
            KEYS: { "dtype": "U8", "shape": [count, columns], "data_offsets": [middle, middle + count * columns] },
        });
        let mut header = header.to_string();
        // Tensors begin at a multiple of 8 bytes.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        let mut file = BufWriter::with_capacity(1 << 20, file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        self.vectors.iter().try_for_each(|number| file.write_all(&number.to_le_bytes()))?;
        self.rows.iter().try_for_each(|&text| file.write_all(&self.key(text)))?;
        file.flush()
    }
}

fn tensor<'a>(
    file: &SafeTensors<'a>,
    name: &str,
    dtype: Dtype,
    columns: usize,
) -> std::result::Result<&'a [u8], String> {
    let tensor = file.tensor(name).map_err(|e| e.to_string())?;
    match tensor.shape() {
        [_, found] if *found == columns && tensor.dtype() == dtype => Ok(tensor.data()),
        found => Err(format!("`{name}` is {} {found:?}, expected {dtype} of {columns} columns", tensor.dtype())),
    }
}

/// Whether an index may be written to `path`: its folder is there, and it is neither a folder nor a safetensors file that
/// holds something else, such as the weights of a model.
///
/// # Errors
/// If not.
pub fn check_place(path: impl AsRef<Path>) -> Result<()> {
    let path = path.as_ref();
    if path.is_dir() {
        return Err(Error::file(path, "is a folder, expected a file to write"));
    }
    if path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
        return Err(Error::file(path, "its folder does not exist"));
    }
    let other = crate::checkpoint::Checkpoint::open(path).map(|file| file.metadata().clone());
    match other {
        Ok(said) if said.get(FORMAT.0).is_none_or(|format| format != FORMAT.1) => {
            Err(Error::file(path, "holds other tensors, which would be lost"))
        }
        _ => Ok(()),
    }
}
