//! What the functions refuse.

use std::sync::Arc;

use candle_attention_datafusion::{Models, Source};
use candle_attention_text::QuantizationRanges;
use datafusion::datasource::MemTable;

use crate::common::{BAD_WORD, bad_model, batch, fixture, has, query_error, session, source, tiny};

#[tokio::test]
async fn wrong_arguments_are_named() {
    let ctx = session(1, 8192);
    tiny().register(&ctx);
    for (call, parts) in [
        ("embed()", vec!["embed"]),
        ("embed('a', 'tiny', 'float32', 'x', 'y')", vec!["has 5 arguments", "expected text"]),
        ("embed(1)", vec!["the text of `embed` is of type Int64, expected text"]),
        ("embed('a', 1)", vec!["the model of `embed` is of type Int64, expected text"]),
        ("embed('a', NULL)", vec!["the model of `embed` is NULL, expected a literal"]),
        ("embed(s, s)", vec!["the model of `embed` is computed, expected a literal"]),
        ("embed('a', 'large')", vec!["this process has no model named `large`; it has `tiny`"]),
        ("embed('a', 'tiny', 'int4')", vec!["the precision is `int4`, expected one of float32, float16, int8"]),
        ("embed('a', 'tiny', 'int8')", vec!["the precision of model `tiny` is int8", "has no ranges"]),
        ("embed('a', 'tiny', 'float32', 'ab')", vec!["another model named `tiny`", "the plan was made for ab"]),
        ("rerank('a', 'b')", vec!["has no reranker named `default`; it has none"]),
        ("similarity(embed('a'))", vec!["`similarity` has 1 arguments, expected two embeddings"]),
        ("similarity('a', 'b')", vec!["an embedding of `similarity` is of type Utf8, expected a list of floats"]),
        ("similarity(embed('a'), embed('a'), 'angle')", vec!["similarity function", "angle", "cosine"]),
        ("similarity([1.0], [1.0, 2.0])", vec!["have 1 and 2 numbers, expected"]),
        ("similarity([1.0, NULL], [1.0, 2.0])", vec!["has a null among its numbers"]),
        ("similarity(embed('a', 'tiny', 'binary'), embed('a'))", vec!["expected a list of floats"]),
    ] {
        has(&query_error(&ctx, &format!("SELECT {call} FROM (VALUES ('x')) AS v(s)")).await, &parts);
    }
}

#[tokio::test]
async fn a_text_that_cannot_be_encoded_is_named_with_its_row() {
    let folder = bad_model();
    let mut models = Models::new();
    models.add("bad", &source(folder.path())).unwrap();
    let ctx = session(1, 8192);
    models.register(&ctx);
    let mut rows: Vec<Option<String>> = crate::common::texts(50);
    rows[37] = Some(format!("the {BAD_WORD} sat"));
    let data = batch(0, &rows);
    let table = MemTable::try_new(data.schema(), vec![vec![data]]).unwrap();
    ctx.register_table("t", Arc::new(table)).unwrap();
    let error = query_error(&ctx, "SELECT embed(text) FROM t").await;
    has(&error, &["row 37 of a batch of 50 rows, `the bird sat`: what the model computes for it is NaN or infinite"]);
    let error = query_error(&ctx, &format!("SELECT embed('{BAD_WORD}')")).await;
    has(&error, &["row 0 of a batch of 1 rows, `bird`"]);
}

#[test]
fn models_that_cannot_be_added_are_named() {
    let mut models = tiny();
    let error = models.add("tiny", &Source::Embedded).unwrap_err().to_string();
    has(&error, &["the name of a model is `tiny`, expected a name that no other model has"]);
    let error = models.add("none", &Source::from("/no/such/folder")).unwrap_err().to_string();
    has(&error, &["model `none`", "/no/such/folder"]);
    let error = models.add_reranker("judge", &Source::Embedded).unwrap_err().to_string();
    has(&error, &["the source of reranker `judge` is `embedded`, expected a folder"]);
    let error = models.add_reranker("judge", &source(&fixture("no"))).unwrap_err().to_string();
    has(&error, &["model `judge`"]);
    let ranges = QuantizationRanges::new(vec![0.0], vec![1.0]).unwrap();
    let error = models.set_ranges("large", ranges).unwrap_err().to_string();
    has(&error, &["no model named `large`; it has `tiny`"]);
}

#[tokio::test]
async fn ranges_of_another_size_are_an_error_of_the_query() {
    let mut models = tiny();
    models.set_ranges("tiny", QuantizationRanges::new(vec![0.0; 3], vec![1.0; 3]).unwrap()).unwrap();
    let ctx = session(1, 8192);
    models.register(&ctx);
    let error = query_error(&ctx, "SELECT embed(s, 'tiny', 'int8') FROM (VALUES ('a'), ('b')) AS v(s)").await;
    has(&error, &["the number of features of the ranges is 3, expected 24"]);
}
