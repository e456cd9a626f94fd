//! Models, tables and files for tests.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_attention::candle_core::safetensors::{load, save};
use candle_attention::candle_core::{Device, Tensor};
use candle_attention_datafusion::{Models, Source};
use datafusion::arrow::array::types::Float32Type;
use datafusion::arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use tempfile::TempDir;

/// A word that the model of [`bad_model`] cannot encode.
pub const BAD_WORD: &str = "bird";

/// A file of the tests of candle-attention.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

pub fn source(path: &Path) -> Source {
    Source::from(path.to_str().unwrap())
}

/// The tiny model, named `tiny`.
pub fn tiny() -> Models {
    let mut models = Models::new();
    models.add("tiny", &source(&fixture("tiny-bert"))).unwrap();
    models
}

/// A copy of the tiny model in which the vector of [`BAD_WORD`] is infinite.
pub fn bad_model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixture("tiny-bert"), folder.path());
    let tokenizer: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.path().join("tokenizer.json")).unwrap()).unwrap();
    let id = tokenizer["model"]["vocab"][BAD_WORD].as_u64().unwrap() as usize;
    let path = folder.path().join("model.safetensors");
    let mut tensors = load(&path, &Device::Cpu).unwrap();
    let words = tensors.get_mut("embeddings.word_embeddings.weight").unwrap();
    let mut rows: Vec<Vec<f32>> = words.to_vec2().unwrap();
    rows[id].fill(f32::INFINITY);
    *words = Tensor::new(rows, &Device::Cpu).unwrap();
    save(&tensors, &path).unwrap();
    folder
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).unwrap();
        }
    }
}

/// A session of `partitions` with batches of `rows`.
pub fn session(partitions: usize, rows: usize) -> SessionContext {
    SessionContext::new_with_config(SessionConfig::new().with_target_partitions(partitions).with_batch_size(rows))
}

/// `n` texts of different lengths, the third of every seven null.
pub fn texts(n: usize) -> Vec<Option<String>> {
    let words = ["the cat sat", "hello world", "a dog", "read more text", "this model", "on the mat, and so on"];
    let text = |i: usize| (i % 7 != 2).then(|| format!("{} {i} {}", words[i % 6], words[i / 6 % 6].repeat(i % 5)));
    (0..n).map(text).collect()
}

/// A batch of `id` and `text`.
pub fn batch(first: usize, texts: &[Option<String>]) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values((first..).take(texts.len()).map(|id| id as i64)));
    let column: ArrayRef = Arc::new(StringArray::from_iter(texts.iter().map(Option::as_deref)));
    let fields = vec![Field::new("id", DataType::Int64, false), Field::new("text", DataType::Utf8, true)];
    RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![ids, column]).unwrap()
}

/// Writes a batch as a Parquet file.
pub fn write_parquet(path: &Path, batch: &RecordBatch) {
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// `files` files `0.parquet`, … in `folder` with `rows` rows each.
pub fn write_files(folder: &Path, files: usize, rows: usize) {
    let texts = texts(files * rows);
    for i in 0..files {
        let part = batch(i * rows, &texts[i * rows..(i + 1) * rows]);
        write_parquet(&folder.join(format!("{i}.parquet")), &part);
    }
}

/// The content of a Parquet file.
pub fn read_parquet(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(std::fs::File::open(path).unwrap()).unwrap();
    let schema = reader.schema().clone();
    let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

/// The result of a query as one batch.
pub async fn query(ctx: &SessionContext, sql: &str) -> RecordBatch {
    let frame = ctx.sql(sql).await.unwrap();
    let schema = Arc::new(frame.schema().as_arrow().clone());
    concat_batches(&schema, &frame.collect().await.unwrap()).unwrap()
}

/// The error of a query.
pub async fn query_error(ctx: &SessionContext, sql: &str) -> String {
    match ctx.sql(sql).await {
        Err(error) => error.to_string(),
        Ok(frame) => frame.collect().await.unwrap_err().to_string(),
    }
}

/// The bits of the embeddings of a column, `None` for null.
pub fn bits(column: &ArrayRef) -> Vec<Option<Vec<u32>>> {
    let row = |row: Option<ArrayRef>| {
        let numbers = row?;
        Some(numbers.as_primitive::<Float32Type>().values().iter().map(|x| x.to_bits()).collect())
    };
    column.as_fixed_size_list().iter().map(row).collect()
}

/// The names in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Asserts that a message has all parts.
pub fn has(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}
