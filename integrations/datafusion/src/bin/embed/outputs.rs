//! The output files: which are there already, and how one is written.

use std::fs::File;
use std::path::{Path, PathBuf};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::metadata::KeyValue;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::parquet::file::reader::{FileReader, SerializedFileReader};
use serde::{Deserialize, Serialize};
use tempfile::{TempDir, TempPath};

use crate::failure::{Failure, Result};

/// The key of [`Origin`] in the metadata of an output file.
const KEY: &str = "candle_attention_datafusion.embed";

/// The number of rows in a row group: 100 MB of embeddings of 384 numbers, which are in memory until it is written.
const ROW_GROUP_ROWS: usize = 65_536;

/// What an output file was made of. Two files with the same origin have the same content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub version: u32,
    pub input_sha256: String,
    pub column: String,
    pub output_column: String,
    pub function: String,
    /// Of the model, and of the ranges if they are used.
    pub fingerprint: String,
    pub precision: String,
}

/// What is at the place of an output file.
#[derive(Debug, PartialEq, Eq)]
pub enum Existing {
    Nothing,
    /// The file that would be made.
    Finished,
    /// A file of this program with another origin.
    Other,
}

/// What is at `path`, where a file of `origin` is to be.
pub fn existing(path: &Path, origin: &Origin) -> Result<Existing> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Existing::Nothing),
        Err(e) => return Err(Failure::at(path, e)),
        Ok(_) => {}
    }
    let foreign =
        || Failure::at(path, "is there, and this program did not write it; remove it, or name another --output");
    let file = File::open(path).map_err(|e| Failure::at(path, e))?;
    let reader = SerializedFileReader::new(file).map_err(|_| foreign())?;
    let entries = reader.metadata().file_metadata().key_value_metadata();
    let value = entries.into_iter().flatten().find(|entry| entry.key == KEY).and_then(|entry| entry.value.as_deref());
    let found: Origin = serde_json::from_str(value.ok_or_else(foreign)?).map_err(|_| foreign())?;
    Ok(if found == *origin { Existing::Finished } else { Existing::Other })
}

/// A file that is being written under another name.
pub struct Unfinished {
    path: PathBuf,
    writer: ArrowWriter<File>,
    schema: SchemaRef,
    pub rows: u64,
}

impl Unfinished {
    /// Begins a file in the folder of unfinished files.
    pub fn create(folder: &Path, number: usize, schema: SchemaRef) -> Result<Self> {
        let path = folder.join(format!("{number}.part"));
        let file = File::create(&path).map_err(|e| Failure::at(&path, e))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .build();
        let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(|e| Failure::at(&path, e))?;
        Ok(Self { path, writer, schema, rows: 0 })
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        // A batch of another node may have other metadata.
        let batch = RecordBatch::try_new(self.schema.clone(), batch.columns().to_vec());
        let batch = batch.map_err(|e| Failure::at(&self.path, e))?;
        self.rows += batch.num_rows() as u64;
        self.writer.write(&batch).map_err(|e| Failure::at(&self.path, e))
    }

    /// Ends the file and gives it its name. Only with `replace` is another file replaced.
    pub fn finish(mut self, to: &Path, origin: &Origin, replace: bool) -> Result<()> {
        let value = serde_json::to_string(origin).map_err(Failure::new)?;
        self.writer.append_key_value_metadata(KeyValue::new(KEY.to_string(), value));
        let file = self.writer.into_inner().map_err(|e| Failure::at(&self.path, e))?;
        file.sync_all().map_err(|e| Failure::at(&self.path, e))?;
        let path = TempPath::try_from_path(&self.path).map_err(|e| Failure::at(&self.path, e))?;
        let renamed = if replace { path.persist(to) } else { path.persist_noclobber(to) };
        renamed.map_err(|e| Failure::at(to, e.error))
    }
}

/// The folder of unfinished files, inside the output folder, which is made if it is not there. It is removed when dropped.
pub fn unfinished_folder(output: &Path) -> Result<TempDir> {
    std::fs::create_dir_all(output).map_err(|e| Failure::at(output, e))?;
    let folder = tempfile::Builder::new().prefix(".unfinished-").tempdir_in(output);
    folder.map_err(|e| Failure::at(output, e))
}
