//! What the functions compute, against candle-attention itself.

use std::sync::Arc;

use candle_attention_datafusion::{EmbeddingPrecision, Models, Source, register};
use candle_attention_text::{EncodeOptions, Precision, QuantizationRanges, QuantizedValues, quantize_embeddings};
use datafusion::arrow::array::types::{Float16Type, Float32Type, Int8Type, UInt8Type};
use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use crate::common::{batch, bits, fixture, query, session, source, texts, tiny};

/// A session with the table `t` of `n` texts in `partitions` partitions, and batches of `rows`.
fn with_texts(models: &Models, n: usize, partitions: usize, rows: usize) -> SessionContext {
    let (ctx, texts) = (session(partitions, rows), texts(n));
    let batches: Vec<RecordBatch> = (0..n).step_by(rows).map(|i| batch(i, &texts[i..n.min(i + rows)])).collect();
    let schema = batches[0].schema();
    let mut parts: Vec<Vec<RecordBatch>> = vec![Vec::new(); partitions];
    batches.into_iter().enumerate().for_each(|(i, batch)| parts[i % partitions].push(batch));
    ctx.register_table("t", Arc::new(MemTable::try_new(schema, parts).unwrap())).unwrap();
    models.register(&ctx);
    ctx
}

/// What the encoder gives for the texts, in bits.
fn expected(models: &Models, n: usize) -> Vec<Option<Vec<u32>>> {
    let encoder = models.model(None).unwrap().model();
    let one = |text: Option<String>| {
        let embedding = encoder.encode(&[text?.as_str()], &EncodeOptions::default()).unwrap();
        Some(embedding.flatten_all().unwrap().to_vec1::<f32>().unwrap().into_iter().map(f32::to_bits).collect())
    };
    texts(n).into_iter().map(one).collect()
}

#[tokio::test]
async fn embeddings_are_those_of_the_encoder_whatever_the_batches() {
    let models = tiny();
    let want = expected(&models, 100);
    for (partitions, rows) in [(1, 1), (1, 8192), (3, 7), (4, 33)] {
        let ctx = with_texts(&models, 100, partitions, rows);
        let got = query(&ctx, "SELECT id, embed(text) AS e FROM t ORDER BY id").await;
        assert_eq!(bits(got.column(1)), want, "{partitions} partitions, batches of {rows}");
        assert_eq!(got.column(1).data_type(), &EmbeddingPrecision::Float32.data_type(24));
    }
}

#[tokio::test]
async fn every_type_of_text_is_read() {
    let ctx = with_texts(&tiny(), 20, 1, 8192);
    let want = bits(query(&ctx, "SELECT embed(text) FROM t ORDER BY id").await.column(0));
    for kind in ["LargeUtf8", "Utf8View", "Dictionary(Int32, Utf8)"] {
        let got = query(&ctx, &format!("SELECT embed(arrow_cast(text, '{kind}')) FROM t ORDER BY id")).await;
        assert_eq!(bits(got.column(0)), want, "{kind}");
    }
    let nothing = query(&ctx, "SELECT embed(NULL), embed(text) FROM t WHERE false").await;
    assert_eq!(nothing.num_rows(), 0);
    assert!(query(&ctx, "SELECT embed(NULL)").await.column(0).is_null(0));
}

#[tokio::test]
async fn queries_and_documents_have_their_prompts() {
    let models = prompted();
    let ctx = session(1, 8192);
    models.register(&ctx);
    let encoder = models.model(None).unwrap().model();
    let options = EncodeOptions::default();
    let text = ["the cat sat"];
    let embedded = |tensor: candle_attention::candle_core::Tensor| {
        let numbers = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        vec![Some(numbers.into_iter().map(f32::to_bits).collect::<Vec<u32>>())]
    };
    let sql = "SELECT embed(s), embed_query(s), embed_document(s) FROM (VALUES ('the cat sat')) AS v(s)";
    let got = query(&ctx, sql).await;
    assert_eq!(bits(got.column(0)), embedded(encoder.encode(&text, &options).unwrap()));
    assert_eq!(bits(got.column(1)), embedded(encoder.encode_query(&text, &options).unwrap()));
    assert_eq!(bits(got.column(2)), embedded(encoder.encode_document(&text, &options).unwrap()));
    assert_ne!(bits(got.column(1)), bits(got.column(2)));
}

/// The tiny model with a prompt for queries.
fn prompted() -> Models {
    let folder = crate::common::bad_model();
    let path = folder.path().join("config_sentence_transformers.json");
    let config = std::fs::read_to_string(&path).unwrap().replace(r#""query": """#, r#""query": "read this text ""#);
    std::fs::write(path, config).unwrap();
    let mut models = Models::new();
    models.add("prompted", &source(folder.path())).unwrap();
    models
}

#[tokio::test]
async fn precisions_are_those_of_the_crate() {
    let (mut models, size) = (tiny(), 24);
    let ranges = QuantizationRanges::new(vec![-0.4; size], vec![0.5; size]).unwrap();
    models.set_ranges("tiny", ranges.clone()).unwrap();
    let ctx = with_texts(&models, 40, 2, 7);
    let texts = texts(40);
    let given: Vec<&str> = texts.iter().flatten().map(String::as_str).collect();
    let embeddings = models.model(None).unwrap().model().encode(&given, &EncodeOptions::default()).unwrap();
    let sql = |name: &str| format!("SELECT embed(text, 'tiny', '{name}') FROM t WHERE text IS NOT NULL ORDER BY id");
    for (name, precision) in [
        ("int8", Precision::Int8),
        ("uint8", Precision::Uint8),
        ("binary", Precision::Binary),
        ("ubinary", Precision::Ubinary),
    ] {
        let got = query(&ctx, &sql(name)).await;
        let numbers = got.column(0).as_fixed_size_list().values();
        let got = match numbers.data_type() {
            DataType::Int8 => QuantizedValues::Int8(numbers.as_primitive::<Int8Type>().values().to_vec()),
            _ => QuantizedValues::Uint8(numbers.as_primitive::<UInt8Type>().values().to_vec()),
        };
        assert_eq!(got, quantize_embeddings(&embeddings, precision, Some(&ranges)).unwrap().into_values(), "{name}");
    }
    let halves = query(&ctx, &sql("float16")).await;
    let halves = halves.column(0).as_fixed_size_list().values().as_primitive::<Float16Type>().values().to_vec();
    let full: Vec<f32> = embeddings.flatten_all().unwrap().to_vec1().unwrap();
    assert_eq!(halves, full.into_iter().map(half::f16::from_f32).collect::<Vec<_>>());
}

#[tokio::test]
async fn similarity_is_that_of_the_crate() {
    let ctx = session(1, 8192);
    let table = "(VALUES ([1.0, 0.0], [3.0, 4.0]), ([1.0, 1.0], [1.0, 1.0]), (NULL, [1.0, 1.0])) AS v(a, b)";
    tiny().register(&ctx);
    for (function, want) in
        [("cosine", [0.6, 1.0]), ("dot", [3.0, 2.0]), ("euclidean", [-(20f32.sqrt()), 0.0]), ("manhattan", [-6.0, 0.0])]
    {
        let got = query(&ctx, &format!("SELECT similarity(a, b, '{function}') FROM {table}")).await;
        let got = got.column(0).as_primitive::<Float32Type>();
        assert!(got.is_null(2) && got.len() == 3);
        for (got, want) in got.values().iter().zip(want) {
            assert!((got - want).abs() < 1e-6, "{function}: {got}, expected {want}");
        }
    }
    let itself =
        query(&ctx, "SELECT similarity(embed(s), embed('a cat')) FROM (VALUES ('a cat'), ('a dog')) AS v(s)").await;
    let itself = itself.column(0).as_primitive::<Float32Type>();
    assert!((itself.value(0) - 1.0).abs() < 1e-6 && itself.value(1) < 0.999, "{itself:?}");
}

#[tokio::test]
async fn scores_of_pairs_are_those_of_the_cross_encoder() {
    let mut models = tiny();
    models.add_reranker("judge", &source(&fixture("rerankers/qwen3"))).unwrap();
    let ctx = with_texts(&models, 12, 2, 5);
    let got = query(&ctx, "SELECT rerank('a cat?', text), text FROM t ORDER BY id").await;
    let got = got.column(0).as_primitive::<Float32Type>();
    let judge = models.reranker(Some("judge")).unwrap().model();
    for (i, text) in texts(12).into_iter().enumerate() {
        let want = text.map(|text| judge.scores(&[("a cat?", text.as_str())], &EncodeOptions::default()).unwrap()[0]);
        assert_eq!(got.iter().nth(i).unwrap(), want, "row {i}");
    }
}

#[tokio::test]
async fn one_call_registers_a_model() {
    for source in ["embedded", fixture("tiny-bert").to_str().unwrap()] {
        let ctx = SessionContext::new();
        register(&ctx, source).unwrap();
        let size = if source == "embedded" { 128 } else { 24 };
        let got = query(&ctx, "SELECT embed('a cat'), embed('a cat', 'default')").await;
        assert_eq!(got.column(0).data_type(), &EmbeddingPrecision::Float32.data_type(size));
        assert_eq!(got.column(0), got.column(1));
    }
}

#[tokio::test]
async fn models_are_told_apart_by_their_names_and_loaded_once() {
    let mut models = tiny();
    models.add("again", &source(&fixture("tiny-bert"))).unwrap();
    models.add("embedded", &Source::Embedded).unwrap();
    let model = |name: &str| models.model(Some(name)).unwrap().model().clone();
    assert!(Arc::ptr_eq(&model("tiny"), &model("again")));
    let ctx = session(1, 8192);
    models.register(&ctx);
    let got = query(&ctx, "SELECT embed('a cat', 'again'), embed('a cat', 'embedded')").await;
    assert_eq!(bits(got.column(0))[0].as_ref().unwrap().len(), 24);
    assert_eq!(bits(got.column(1))[0].as_ref().unwrap().len(), 128);
}

#[tokio::test]
async fn a_plan_has_the_fingerprint_and_column_names_stay() {
    let models = tiny();
    let ctx = with_texts(&models, 3, 1, 8192);
    let frame = ctx.sql("SELECT embed(text) FROM t").await.unwrap();
    let plan = frame.clone().into_optimized_plan().unwrap();
    assert!(plan.display_indent().to_string().contains(models.model(None).unwrap().fingerprint()), "{plan}");
    assert_eq!(frame.schema().field(0).name(), "embed(t.text)");
    let batches = frame.collect().await.unwrap();
    assert_eq!(batches[0].schema().field(0).name(), "embed(t.text)");
    let view = cast(batches[0].column(0), &DataType::new_list(DataType::Float32, true)).unwrap();
    assert_eq!(view.len(), 3);
}
