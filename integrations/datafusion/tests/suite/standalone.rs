//! The functions on a cluster in this process.

use candle_attention_datafusion::{EmbeddingPrecision, cluster};
use datafusion::prelude::ParquetReadOptions;

use crate::common::{bits, has, query, query_error, session, tiny, write_files};

const SQL: &str = "SELECT id, embed(text), similarity(embed_document(text), embed_query('a cat')) FROM t ORDER BY id";

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_gives_the_bytes_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), 3, 40);
    let models = tiny();
    let here = session(2, 16);
    models.register(&here);
    let there = cluster::standalone(&models, 2).await.unwrap();
    let path = folder.path().to_str().unwrap();
    for ctx in [&here, &there] {
        ctx.register_parquet("t", path, ParquetReadOptions::default()).await.unwrap();
    }
    let (here, there) = (query(&here, SQL).await, query(&there, SQL).await);
    assert_eq!(here.num_rows(), 120);
    assert_eq!(here.column(0), there.column(0));
    assert_eq!(bits(here.column(1)), bits(there.column(1)));
    assert_eq!(here.column(2), there.column(2));
    assert_eq!(there.column(1).data_type(), &EmbeddingPrecision::Float32.data_type(24));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_refuses_what_one_process_refuses() {
    let folder = tempfile::tempdir().unwrap();
    write_files(folder.path(), 1, 5);
    let ctx = cluster::standalone(&tiny(), 1).await.unwrap();
    ctx.register_parquet("t", folder.path().to_str().unwrap(), ParquetReadOptions::default()).await.unwrap();
    let error = query_error(&ctx, "SELECT embed(text, 'large') FROM t").await;
    has(&error, &["no model named `large`; it has `tiny`"]);
}
