//! The file of an index: a line that names the format and the model, and then a row for each text: its [`Key`], its
//! vector in f16, and a checksum of both.
//!
//! Rows are only ever added, so that many choices of texts share a file and saving costs what is new. A row that is cut
//! or damaged is as good as missing: nothing else is needed for a kill, a full disk or a power failure.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use candle_attention::io::open_regular;
use candle_attention::{Error, Result};
use half::f16;
use sha2::{Digest, Sha256};

use crate::hash::hex;
use crate::search::index::{Index, Key};

/// The start of a file of this version.
const VERSION: &str = "candle-attention search index 3 ";

/// The bytes from which a file begins anew if most of its rows are of other texts: 1 GiB.
const MAX_BYTES: u64 = 1 << 30;

const KEY: usize = size_of::<Key>();
/// Length of a checksum: the start of the SHA-256 hash of the key and the vector.
const CHECKSUM: usize = 8;

impl Index<'_> {
    /// Loads the vectors that a file has for texts of this index, and returns their number. Memory is taken for them
    /// alone, however large the file is. Damaged rows are passed over.
    ///
    /// # Errors
    /// [`Error::Io`] for a missing file, [`Error::File`] for one that is no regular file, no index, or one of another
    /// model. Then the index is unchanged.
    pub fn load_cached(&mut self, path: impl AsRef<Path>) -> Result<usize> {
        let path = path.as_ref();
        let mut wanted: HashMap<Key, usize> = self.missing().into_iter().map(|text| (self.key(text), text)).collect();
        let (mut rows, mut elements) = (Vec::new(), Vec::new());
        self.read(path, &open_regular(path)?.0, |key, vector| {
            rows.extend(wanted.remove(key).inspect(|_| elements.extend_from_slice(vector)));
        })?;
        let count = rows.len();
        self.rows.extend(rows);
        self.vectors.elements.extend(elements);
        Ok(count)
    }

    /// Calls `on_row` with the rows of a file that are whole, and returns where the last one ends.
    fn read(&self, path: &Path, file: &File, mut on_row: impl FnMut(&Key, &[f16])) -> Result<u64> {
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let (mut start, expected) = (Vec::new(), self.start());
        reader.by_ref().take(expected.len() as u64).read_to_end(&mut start).map_err(|e| Error::io(path, e))?;
        if start != expected.as_bytes() {
            return Err(Error::file(
                path,
                "is not a search index of this model, dtype, prompt and version of this crate",
            ));
        }
        let mut end = start.len() as u64;
        let mut row = vec![0; KEY + self.vectors.size * size_of::<f16>() + CHECKSUM];
        loop {
            match reader.read_exact(&mut row) {
                Ok(()) => end += row.len() as u64,
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(end),
                Err(e) => return Err(Error::io(path, e)),
            }
            let (content, stored) = row.split_at(row.len() - CHECKSUM);
            let Some((key, vector)) = content.split_first_chunk::<KEY>().filter(|_| checksum(content) == *stored)
            else {
                continue;
            };
            let vector: Vec<f16> = vector.as_chunks().0.iter().map(|&bytes| f16::from_le_bytes(bytes)).collect();
            let length: f32 = vector.iter().map(|x| x.to_f32().powi(2)).sum();
            // NaN fails the check too.
            if length == 0.0 || (length - 1.0).abs() <= 0.01 {
                on_row(key, &vector);
            }
        }
    }

    /// Adds the vectors that a file lacks to it; creates it where there is none, on Unix readable by its owner alone:
    /// vectors show much of their texts. Several processes may save to one file.
    ///
    /// # Errors
    /// [`Error::File`] for a file that is not regular, no index, or one of another model: its content would be lost;
    /// [`Error::Io`] for one that cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let io = |e| Error::io(path, e);
        let mut options = File::options();
        options.read(true).write(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = match options.clone().create_new(true).open(path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                open_regular(path)?;
                options.open(path).map_err(io)?
            }
            created => created.map_err(io)?,
        };
        // Not every file system has locks; rows that two processes write over each other have wrong checksums.
        let _ = file.lock();
        let length = file.metadata().map_err(io)?.len();
        if length == 0 {
            file.write_all(self.start().as_bytes()).map_err(io)?;
            file.rewind().map_err(io)?;
        }
        let mut known = HashSet::new();
        let mut end = self.read(path, &file, |key, _| _ = known.insert(*key))?;
        if length > MAX_BYTES && known.len() > 2 * self.len() {
            (end, _) = (self.start().len() as u64, known.clear());
        }
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(io)?;
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        for (&text, vector) in self.rows.iter().zip(self.vectors.elements.chunks_exact(self.vectors.size)) {
            let mut row = self.key(text).to_vec();
            if known.insert(self.key(text)) {
                row.extend(vector.iter().flat_map(|number| number.to_le_bytes()));
                row.extend(checksum(&row));
                writer.write_all(&row).map_err(io)?;
            }
        }
        writer.flush().map_err(io)
    }

    /// The first line of a file of this model.
    fn start(&self) -> String {
        format!("{VERSION}{} {}\n", hex(&Sha256::digest(&self.model)), self.vectors.size)
    }
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM] {
    let hash = Sha256::digest(content);
    std::array::from_fn(|i| hash[i])
}
