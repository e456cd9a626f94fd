//! The file and the row of a text that cannot be encoded.

use std::fs::File;

use candle_attention_datafusion::Error;
use datafusion::arrow::array::AsArray;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::DataFusionError;
use datafusion::parquet::arrow::ProjectionMask;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::failure::Failure;
use crate::job::{Job, Run};

/// What the message of a text that cannot be encoded has before the beginning of the text. An executor's error arrives as
/// text.
const BEFORE_TEXT: &str = " rows, `";

/// What messages of errors have that another attempt would have, too.
const FINAL: [&str; 4] =
    [" of a batch of ", " has no model named ", " has another model named ", "Error during planning"];

/// Whether another attempt would have the same error.
pub fn is_final(error: &DataFusionError) -> bool {
    let message = error.to_string();
    FINAL.iter().any(|part| message.contains(part))
}

/// The error of a query as the failure of a file, with the row if a text is the cause.
pub fn explain(run: &Run, job: &Job, error: &DataFusionError) -> Failure {
    let message = Error::find_in(error).map_or_else(|| inmost(&error.to_string()).to_string(), ToString::to_string);
    let located =
        if is_final(error) { message.split(BEFORE_TEXT).nth(1).and_then(|rest| row(run, job, rest)) } else { None };
    Failure::at(&job.input.path, located.unwrap_or(message))
}

/// The error of another node without what Ballista puts around it: that of an executor is in the `Debug` form of its error,
/// that of a scheduler in the message of a status.
fn inmost(message: &str) -> &str {
    if let Some((_, inside)) = message.rsplit_once("(External(") {
        return inside.trim_end().trim_end_matches(')');
    }
    let status = message.split_once("message: \"").and_then(|(_, rest)| Some(rest.rsplit_once("\", metadata:")?.0));
    let message = status.unwrap_or(message).trim_end();
    message.rsplit_once("External error: ").map_or(message, |(_, inside)| inside)
}

/// The row whose text cannot be encoded, with the reason, given the message from the beginning of the text on.
///
/// The query knows the row in a record batch only, and files have many of these.
fn row(run: &Run, job: &Job, message: &str) -> Option<String> {
    let file = File::open(&job.input.path).ok()?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).ok()?;
    let index = reader.schema().index_of(&job.origin.column).ok()?;
    let column = ProjectionMask::roots(reader.parquet_schema(), [index]);
    let mut before = 0;
    for batch in reader.with_projection(column).build().ok()? {
        let texts = cast(batch.ok()?.column(0), &DataType::LargeUtf8).ok()?;
        for (i, text) in texts.as_string::<i64>().iter().enumerate() {
            let Some(text) = text.filter(|text| message.starts_with(&Error::beginning(text))) else { continue };
            if let Err(Error::Row { text, reason, .. }) = run.models.check_text(run.role, Some(&run.model), text) {
                return Some(format!("row {}, column `{}`, `{text}`: {reason}", before + i, job.origin.column));
            }
        }
        before += texts.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ballista_puts_around_an_error_is_left_out() {
        let executor = "Job 7 failed: Task failed: DataFusionError(DataFusionError(External(no model `a`)))\n\n";
        assert_eq!(inmost(executor), "no model `a`");
        let scheduler = r#"Status { code: InvalidArgument, message: "DataFusion error: External error: no model `a`", metadata: {} }"#;
        assert_eq!(inmost(scheduler), "no model `a`");
        assert_eq!(inmost("another one\n"), "another one");
    }
}
