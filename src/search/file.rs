//! The file of an index, in safetensors format: `keys` `(n, 16)`, hashes of the texts, and `embeddings` `(n, size)` in f16.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use half::f16;
use safetensors::{Dtype, SafeTensors};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::io::write_atomic;
use crate::search::index::{Index, Key};

/// The metadata entry that identifies an index file, with the version of the format.
const FORMAT: (&str, &str) = ("format", "candle-attention search index 1");
const MODEL: &str = "model";
const KEYS: &str = "keys";
const EMBEDDINGS: &str = "embeddings";

impl Index<'_> {
    /// Loads the vectors that a file has for texts of this index, and returns their number.
    ///
    /// # Errors
    /// [`Error::Io`] for a missing file, [`Error::File`] for one that is damaged or belongs to another model. Then the index
    /// is unchanged.
    pub fn load_cached(&mut self, path: impl AsRef<Path>) -> Result<usize> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let (rows, vectors) = self.read(&bytes).map_err(|reason| Error::file(path, reason))?;
        let count = rows.len();
        self.rows.extend(rows);
        self.vectors.extend(vectors);
        Ok(count)
    }

    fn read(&self, bytes: &[u8]) -> std::result::Result<(Vec<usize>, Vec<f16>), String> {
        let damaged = |e: safetensors::SafeTensorError| format!("is not a complete safetensors file: {e}");
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let entry = |key: &str| header.metadata().as_ref()?.get(key).map(String::as_str);
        if entry(FORMAT.0) != Some(FORMAT.1) {
            return Err("is not a search index".to_string());
        }
        if entry(MODEL) != Some(&self.model) {
            return Err("was made with another model, dtype or prompt".to_string());
        }
        let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
        let keys = tensor(&file, KEYS, Dtype::U8, size_of::<Key>())?;
        let stored = tensor(&file, EMBEDDINGS, Dtype::F16, self.size)?;
        let (keys, rest) = keys.as_chunks::<{ size_of::<Key>() }>();
        let width = self.size * size_of::<f16>();
        if !rest.is_empty() || keys.len() * width != stored.len() {
            return Err(format!("`{KEYS}` and `{EMBEDDINGS}` differ in length"));
        }
        let rows_by_key: HashMap<&Key, usize> = keys.iter().zip(0..).collect();
        let missing = self.missing();
        let (mut rows, mut vectors) = (Vec::new(), Vec::with_capacity(missing.len().min(keys.len()) * self.size));
        for text in missing {
            let Some(&row) = rows_by_key.get(&self.key(text)) else { continue };
            let vector =
                stored[row * width..][..width].as_chunks::<2>().0.iter().map(|&bytes| f16::from_le_bytes(bytes));
            vectors.extend(vector);
            let length: f32 = vectors[rows.len() * self.size..].iter().map(|x| x.to_f32().powi(2)).sum();
            // NaN fails the check too.
            if length != 0.0 && (length - 1.0).abs().total_cmp(&0.01).is_gt() {
                return Err(format!("row {row} of `{EMBEDDINGS}` is not of length 1"));
            }
            rows.push(text);
        }
        Ok((rows, vectors))
    }

    /// Writes all vectors to a file, atomically: after a kill, a full disk or a power failure the old file or the new one is
    /// there. Several processes may save to one file; the last one wins.
    ///
    /// # Errors
    /// The errors of [`check_writable`](Self::check_writable); [`Error::Io`] for a file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        Self::check_writable(path)?;
        write_atomic(path, |file| self.write(file).map_err(|e| Error::io(path, e)))
    }

    /// Checks that an index may be written to `path`: its folder exists, and there is no folder and no safetensors file with
    /// other content, such as the weights of a model, at `path`. Call it before long work.
    ///
    /// # Errors
    /// [`Error::File`] with the reason.
    pub fn check_writable(path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if path.is_dir() {
            return Err(Error::file(path, "is a folder, expected a file to write"));
        }
        if path.parent().is_some_and(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            return Err(Error::file(path, "its folder does not exist"));
        }
        let is_index =
            |metadata: &HashMap<String, String>| metadata.get(FORMAT.0).is_some_and(|format| format == FORMAT.1);
        match Checkpoint::open(path) {
            Ok(file) if !is_index(file.metadata()) => {
                Err(Error::file(path, "holds other tensors, which would be lost"))
            }
            _ => Ok(()),
        }
    }

    /// Writes the format directly: serializing by the safetensors crate would copy all vectors.
    fn write(&self, file: &mut dyn Write) -> std::io::Result<()> {
        let (count, columns) = (self.rows.len(), size_of::<Key>());
        let (start, middle) = (0, self.vectors.len() * size_of::<f16>());
        let header = serde_json::json!({
            "__metadata__": { FORMAT.0: FORMAT.1, MODEL: self.model },
            EMBEDDINGS: { "dtype": "F16", "shape": [count, self.size], "data_offsets": [start, middle] },
            KEYS: { "dtype": "U8", "shape": [count, columns], "data_offsets": [middle, middle + count * columns] },
        });
        let mut header = header.to_string();
        // The data starts at a multiple of 8 bytes.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        self.vectors.iter().try_for_each(|number| file.write_all(&number.to_le_bytes()))?;
        self.rows.iter().try_for_each(|&text| file.write_all(&self.key(text)))
    }
}

/// The bytes of a matrix, checked for dtype and number of columns.
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
