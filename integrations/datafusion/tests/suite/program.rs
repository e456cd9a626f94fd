//! The program `embed` in one process.

use std::path::Path;

use datafusion::arrow::array::Array;
use datafusion::arrow::datatypes::DataType;
use tempfile::TempDir;

use crate::common::{BAD_WORD, bad_model, batch, bits, fixture, has, names, query, read_parquet, session, texts};
use crate::common::{tiny, write_files, write_parquet};
use crate::processes::{embed, failed, finish, first_file, interrupt, spawn, succeeded};

/// A folder with `in/`, which has `files` files of `rows` rows.
fn folder(files: usize, rows: usize) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("in")).unwrap();
    write_files(&folder.path().join("in"), files, rows);
    folder
}

fn tiny_source() -> String {
    format!("tiny={}", fixture("tiny-bert").display())
}

/// Runs `embed` from `in/` to `out/`.
fn run(folder: &Path, args: &[&str]) -> std::process::Output {
    embed(&folder.join("in"), &folder.join("out"), args)
}

#[tokio::test]
async fn files_get_a_column_and_are_kept_when_run_again() {
    let folder = folder(3, 50);
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    let source = tiny_source();
    let args = ["--model", source.as_str(), "--batch-rows", "16"];
    let first = run(folder.path(), &args);
    let stdout = succeeded(&first);
    has(&stdout, &["texts: 128, seconds: ", ", encoder seconds: ", ", files: 3, kept: 0"]);
    has(&String::from_utf8_lossy(&first.stderr), &["1 of 3 files, ", "3 of 3 files, 150 of 150 rows, "]);
    assert_eq!(names(&output), ["0.parquet", "1.parquet", "2.parquet"]);

    let ctx = session(1, 8192);
    tiny().register(&ctx);
    let options = datafusion::prelude::ParquetReadOptions::default();
    ctx.register_parquet("t", input.to_str().unwrap(), options).await.unwrap();
    let want = bits(query(&ctx, "SELECT embed(text) FROM t ORDER BY id").await.column(0));
    for i in 0..3 {
        let (before, after) =
            (read_parquet(&input.join(format!("{i}.parquet"))), read_parquet(&output.join(format!("{i}.parquet"))));
        assert_eq!(after.project(&[0, 1]).unwrap().columns(), before.columns());
        assert_eq!(&after.schema().fields()[..2], &before.schema().fields()[..]);
        assert_eq!(after.schema().field(2).name(), "embedding");
        assert_eq!(bits(after.column(2)), want[i * 50..(i + 1) * 50]);
    }

    let made = |name: &str| std::fs::metadata(output.join(name)).unwrap().modified().unwrap();
    let times = [made("0.parquet"), made("2.parquet")];
    std::fs::remove_file(output.join("1.parquet")).unwrap();
    has(&succeeded(&run(folder.path(), &args)), &["texts: 43, ", "files: 1, kept: 2"]);
    assert_eq!([made("0.parquet"), made("2.parquet")], times);
    has(&succeeded(&run(folder.path(), &args)), &["texts: 0, ", "files: 0, kept: 3"]);
}

#[test]
fn files_of_another_origin_are_refused() {
    let folder = folder(1, 20);
    let output = folder.path().join("out");
    let source = tiny_source();
    succeeded(&run(folder.path(), &["--model", &source]));
    let other = "was made of another input, with another model or other settings; --overwrite makes it again";
    for args in [vec!["--model", "tiny=embedded"], vec!["--model", &source, "--precision", "binary"]] {
        has(&failed(&run(folder.path(), &args)), &["0.parquet: ", other]);
    }
    write_parquet(&folder.path().join("in/0.parquet"), &batch(7, &texts(9)));
    has(&failed(&run(folder.path(), &["--model", &source])), &[other]);
    has(&succeeded(&run(folder.path(), &["--model", &source, "--overwrite"])), &["files: 1"]);
    assert_eq!(read_parquet(&output.join("0.parquet")).num_rows(), 9);

    // What another program wrote is never replaced, whatever it is.
    write_parquet(&output.join("0.parquet"), &batch(0, &texts(3)));
    has(&failed(&run(folder.path(), &["--model", &source, "--overwrite"])), &["this program did not write it"]);
    std::fs::write(output.join("0.parquet"), "text").unwrap();
    has(&failed(&run(folder.path(), &["--model", &source, "--overwrite"])), &["this program did not write it"]);
    assert_eq!(std::fs::read(output.join("0.parquet")).unwrap(), b"text");
    assert_eq!(names(&output), ["0.parquet"]);
}

#[test]
fn a_text_that_cannot_be_encoded_is_named_with_file_and_row() {
    let folder = folder(2, 20);
    let model = bad_model();
    let mut rows = texts(60);
    rows[43] = Some(format!("the {BAD_WORD} sat \"here\""));
    write_parquet(&folder.path().join("in/bad.parquet"), &batch(0, &rows));
    let source = format!("bad={}", model.path().display());
    let line = failed(&run(folder.path(), &["--model", &source, "--batch-rows", "16", "--jobs", "1"]));
    has(
        &line,
        &["in/bad.parquet: row 43, column `text`, `the bird sat \\\"here\\\"`: what the model computes for it is NaN"],
    );
    // The files before it are finished, and nothing else is there.
    assert_eq!(names(&folder.path().join("out")), ["0.parquet", "1.parquet"]);
}

#[test]
fn mistakes_are_one_line() {
    let folder = folder(1, 5);
    let input = folder.path().join("in");
    for (args, parts) in [
        (vec!["--output-column", "id"], vec!["0.parquet: has a column `id` already"]),
        (vec!["--model", "/no/such/model"], vec!["model `default`: ", "/no/such/model"]),
        (vec!["--precision", "int8"], vec!["the precision of model `default` is int8", "has no ranges"]),
        (vec!["--ranges", "no.json"], vec!["no.json: "]),
        (vec!["--input", "/no/*.parquet"], vec!["--input /no/*.parquet: no such file"]),
        (vec!["--input", "[a"], vec!["--input [a: "]),
    ] {
        has(&failed(&run(folder.path(), &args)), &parts);
    }
    std::fs::write(input.join("x.parquet"), "not Parquet").unwrap();
    has(&failed(&run(folder.path(), &[])), &["x.parquet: "]);
    std::fs::remove_file(input.join("x.parquet")).unwrap();
    let numbers = batch(0, &texts(3)).project(&[0]).unwrap();
    let renamed = datafusion::arrow::array::RecordBatch::try_from_iter([("text", numbers.column(0).clone())]).unwrap();
    write_parquet(&input.join("x.parquet"), &renamed);
    has(&failed(&run(folder.path(), &[])), &["x.parquet: column `text` is of type Int64, expected text"]);
    write_parquet(&input.join("x.parquet"), &numbers);
    has(&failed(&run(folder.path(), &[])), &["x.parquet: no column `text`, expected one of id"]);
    std::fs::create_dir(input.join("more")).unwrap();
    std::fs::rename(input.join("x.parquet"), input.join("more/0.parquet")).unwrap();
    let more = input.join("more/*.parquet");
    has(
        &failed(&run(folder.path(), &["--input", more.to_str().unwrap()])),
        &["has the name of", "the same output file"],
    );
    assert!(!folder.path().join("out").exists());
}

#[test]
fn an_interrupt_leaves_finished_files_and_the_next_run_goes_on() {
    let folder = folder(4, 2_500);
    let (input, output) = (folder.path().join("in"), folder.path().join("out"));
    let args = ["--model", "embedded", "--jobs", "1", "--batch-rows", "128"];
    let mut child = spawn(&input, &output, &args);
    let lines = first_file(&mut child);
    interrupt(&child);
    let (code, _) = finish(child);
    let lines: Vec<String> = lines.iter().collect();
    assert_eq!(code, 130, "{lines:?}");
    has(lines.last().unwrap(), &["embed: interrupted; the same command goes on"]);
    let finished = names(&output);
    assert!((1..4).contains(&finished.len()) && finished.iter().all(|name| name.ends_with(".parquet")), "{finished:?}");
    assert_eq!(read_parquet(&output.join(&finished[0])).num_rows(), 2_500);
    has(&succeeded(&embed(&input, &output, &args)), &[&format!("kept: {}", finished.len())]);
    assert_eq!(names(&output).len(), 4);
}

#[test]
fn precisions_and_types_of_text_are_kept_in_the_file() {
    let folder = folder(1, 12);
    let path = folder.path().join("in/0.parquet");
    let before = read_parquet(&path);
    let large = datafusion::arrow::compute::cast(before.column(1), &DataType::LargeUtf8).unwrap();
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let words = datafusion::arrow::compute::cast(before.column(1), &dictionary).unwrap();
    let columns = [("text", large), ("words", words)];
    write_parquet(&path, &datafusion::arrow::array::RecordBatch::try_from_iter(columns).unwrap());
    let source = tiny_source();
    succeeded(&run(folder.path(), &["--model", &source, "--precision", "ubinary", "--output-column", "bits"]));
    let after = read_parquet(&folder.path().join("out/0.parquet"));
    let types: Vec<DataType> = after.schema().fields().iter().map(|field| field.data_type().clone()).collect();
    assert_eq!(types[0], DataType::LargeUtf8);
    assert_eq!(types[1], dictionary);
    assert_eq!(types[2].to_string(), "FixedSizeList(3 x UInt8)", "{types:?}");
    assert_eq!(after.column(2).null_count(), 2);
}
