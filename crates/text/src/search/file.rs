//! The file of an index, in safetensors format: `keys` `(n, 16)`, hashes of the texts, `embeddings` `(n, size)` in f16,
//! and `checksums` `(n, 8)` of both, row by row, so that only the rows that are loaded need to be read.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;

use candle_attention::checkpoint::Checkpoint;
use candle_attention::io::{is_present, open_regular, write_atomic};
use candle_attention::{Error, Result};
use half::f16;
use safetensors::Dtype;
use sha2::{Digest, Sha256};

use crate::search::index::{Index, Key};

/// The metadata entry that identifies an index file, with the version of the format.
const FORMAT: (&str, &str) = ("format", "candle-attention search index 2");
/// What all versions of the format begin with.
const ANY_VERSION: &str = "candle-attention search index ";
const MODEL: &str = "model";
const KEYS: &str = "keys";
const EMBEDDINGS: &str = "embeddings";
const CHECKSUMS: &str = "checksums";

/// Checksum of a row: the start of the SHA-256 hash of its key and its vector.
type Checksum = [u8; 8];

/// The bytes at the start of a file that name its format.
const START: u64 = 4096;

/// The most rows that are read together.
const ROWS: usize = 1024;

impl Index<'_> {
    /// Loads the vectors that a file has for texts of this index, and returns their number.
    ///
    /// # Errors
    /// [`Error::Io`] for a missing file, [`Error::File`] for one that is damaged, belongs to another model or is no
    /// regular file. Then the index is unchanged.
    pub fn load_cached(&mut self, path: impl AsRef<Path>) -> Result<usize> {
        let path = path.as_ref();
        let (rows, vectors) = self.read(path)?;
        let count = rows.len();
        self.rows.extend(rows);
        self.vectors.elements.extend(vectors);
        Ok(count)
    }

    /// The texts that a file has vectors for, ascending, and these vectors. Memory is taken for them alone, however
    /// large the file is.
    fn read(&self, path: &Path) -> Result<(Vec<usize>, Vec<f16>)> {
        let wrong = |reason: String| Error::file(path, reason);
        let file = Checkpoint::open(path)?;
        let entry = |key: &str| file.metadata().get(key).map(String::as_str);
        match entry(FORMAT.0) {
            Some(format) if format == FORMAT.1 => {}
            Some(format) if format.starts_with(ANY_VERSION) => {
                return Err(wrong("is a search index of another version of this crate".to_string()));
            }
            _ => return Err(wrong("is not a search index".to_string())),
        }
        if entry(MODEL) != Some(&self.model) {
            return Err(wrong("was made with another model, dtype or prompt".to_string()));
        }
        let count = rows(&file, KEYS, Dtype::U8, size_of::<Key>()).map_err(wrong)?;
        let found = rows(&file, EMBEDDINGS, Dtype::F16, self.vectors.size).map_err(wrong)?;
        let checksums = rows(&file, CHECKSUMS, Dtype::U8, size_of::<Checksum>()).map_err(wrong)?;
        if count != found || count != checksums {
            let reason = format!("`{KEYS}` has {count} rows, `{EMBEDDINGS}` {found}, `{CHECKSUMS}` {checksums}");
            return Err(wrong(reason));
        }
        let pairs = self.find(&file)?;
        let mut vectors: Vec<f16> = Vec::with_capacity(pairs.len() * self.vectors.size);
        let width = self.vectors.size * size_of::<f16>();
        let (mut bytes, mut checksums) = (Vec::new(), Vec::new());
        // Rows that follow one another are read together.
        for run in pairs.chunk_by(|a, b| a.1 + 1 == b.1).flat_map(|run| run.chunks(ROWS)) {
            bytes.resize(run.len() * width, 0);
            file.read_bytes(EMBEDDINGS, (run[0].1 * width) as u64, &mut bytes)?;
            checksums.resize(run.len() * size_of::<Checksum>(), 0);
            let start = (run[0].1 * size_of::<Checksum>()) as u64;
            file.read_bytes(CHECKSUMS, start, &mut checksums)?;
            let stored = checksums.as_chunks::<{ size_of::<Checksum>() }>().0;
            for ((&(text, row), vector), stored) in run.iter().zip(bytes.chunks_exact(width)).zip(stored) {
                if checksum(&self.key(text), vector) != *stored {
                    return Err(wrong(format!("is damaged: row {row} does not match its checksum")));
                }
            }
            vectors.extend(bytes.as_chunks::<2>().0.iter().map(|&bytes| f16::from_le_bytes(bytes)));
        }
        for ((_, row), vector) in pairs.iter().zip(vectors.chunks_exact(self.vectors.size)) {
            let length: f32 = vector.iter().map(|x| x.to_f32().powi(2)).sum();
            // NaN fails the check too.
            if length != 0.0 && (length - 1.0).abs().total_cmp(&0.01).is_gt() {
                return Err(wrong(format!("row {row} of `{EMBEDDINGS}` is not of length 1")));
            }
        }
        Ok((pairs.into_iter().map(|(text, _)| text).collect(), vectors))
    }

    /// The texts without a vector whose keys are in a file, ascending, each with its row.
    fn find(&self, file: &Checkpoint) -> Result<Vec<(usize, usize)>> {
        let mut wanted: HashMap<Key, usize> = self.missing().into_iter().map(|text| (self.key(text), text)).collect();
        let (mut pairs, mut row) = (Vec::new(), 0);
        file.any_bytes(KEYS, |part| {
            for key in part.as_chunks::<{ size_of::<Key>() }>().0 {
                pairs.extend(wanted.remove(key).map(|text| (text, row)));
                row += 1;
            }
            wanted.is_empty()
        })?;
        pairs.sort_unstable();
        Ok(pairs)
    }

    /// Writes all vectors to a file, atomically: after a kill, a full disk or a power failure the old file or the new
    /// one is there. Several processes may save to one file; the last one wins.
    ///
    /// # Errors
    /// The errors of [`check_writable`](Self::check_writable); [`Error::Io`] for a file that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        Self::check_writable(path)?;
        write_atomic(path, |file| self.write(file).map_err(|e| Error::io(path, e)))
    }

    /// Checks that an index may be written to `path`: its folder exists, and at `path` is nothing, an empty file, or an
    /// index, also one that is damaged. Anything else, such as the weights of a model, would be lost. Call it before
    /// long work.
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
        if !is_present(path)? {
            return Ok(());
        }
        // Not by reading the index: a file that cannot be read may be a model that this version does not know.
        let mut start = Vec::new();
        open_regular(path)?.0.take(START).read_to_end(&mut start).map_err(|e| Error::io(path, e))?;
        let format = format!("{:?}:\"{ANY_VERSION}", FORMAT.0);
        let is_header = start.get(8..).is_some_and(|header| header.starts_with(b"{\"__metadata__\":{"));
        let is_index = is_header && start.windows(format.len()).any(|window| window == format.as_bytes());
        match start.is_empty() || is_index {
            true => Ok(()),
            false => Err(Error::file(path, "is not a search index, and its content would be lost")),
        }
    }

    /// Writes the format directly: serializing by the safetensors crate would copy all vectors.
    fn write(&self, file: &mut dyn Write) -> std::io::Result<()> {
        let (count, columns, sums) = (self.rows.len(), size_of::<Key>(), size_of::<Checksum>());
        let (start, middle) = (0, self.vectors.elements.len() * size_of::<f16>());
        let end = middle + count * columns;
        let header = serde_json::json!({
            "__metadata__": { FORMAT.0: FORMAT.1, MODEL: self.model },
            EMBEDDINGS: { "dtype": "F16", "shape": [count, self.vectors.size], "data_offsets": [start, middle] },
            KEYS: { "dtype": "U8", "shape": [count, columns], "data_offsets": [middle, end] },
            CHECKSUMS: { "dtype": "U8", "shape": [count, sums], "data_offsets": [end, end + count * sums] },
        });
        let mut header = header.to_string();
        // The data starts at a multiple of 8 bytes.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        self.vectors.elements.iter().try_for_each(|number| file.write_all(&number.to_le_bytes()))?;
        self.rows.iter().try_for_each(|&text| file.write_all(&self.key(text)))?;
        for (&text, vector) in self.rows.iter().zip(self.vectors.elements.chunks_exact(self.vectors.size)) {
            let bytes: Vec<u8> = vector.iter().flat_map(|number| number.to_le_bytes()).collect();
            file.write_all(&checksum(&self.key(text), &bytes))?;
        }
        Ok(())
    }
}

/// The checksum of a row; `vector` is its bytes in the file.
fn checksum(key: &Key, vector: &[u8]) -> Checksum {
    let hash = Sha256::new().chain_update(key).chain_update(vector).finalize();
    std::array::from_fn(|i| hash[i])
}

/// The number of rows of a matrix, whose dtype and number of columns are checked.
fn rows(file: &Checkpoint, name: &str, dtype: Dtype, columns: usize) -> std::result::Result<usize, String> {
    match file.tensor_info(name).map_err(|e| e.to_string())? {
        (of_file, &[rows, found]) if found == columns && of_file == dtype => Ok(rows),
        (of_file, found) => Err(format!("`{name}` is {of_file} {found:?}, expected {dtype} of {columns} columns")),
    }
}
