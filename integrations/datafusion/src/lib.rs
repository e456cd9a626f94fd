//! Text embeddings of [candle-attention](candle_attention) as SQL functions of
//! [DataFusion](https://datafusion.apache.org), in one process and on a Ballista cluster.
//!
//! | Function | Result |
//! |---|---|
//! | `embed(text [, model [, precision]])` | the embedding of a text with the model's default prompt, as `encode` of sentence-transformers |
//! | `embed_query(…)`, `embed_document(…)` | the same with the model's prompt, route and task for queries or documents |
//! | `similarity(a, b [, function])` | how similar two embeddings are: `cosine`, `dot`, `euclidean`, `manhattan` |
//! | `rerank(query, text [, model])` | the score of a pair of texts by a cross-encoder |
//!
//! ```
//! use candle_attention_datafusion::register;
//! use datafusion::prelude::SessionContext;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ctx = SessionContext::new();
//! register(&ctx, "embedded")?; // or a folder, or a hub id
//! let sql = "SELECT text, similarity(embed_document(text), embed_query('Who sleeps?')) AS score
//!            FROM (VALUES ('A cat sleeps.'), ('Stocks fell.')) AS t(text) ORDER BY score DESC";
//! assert_eq!(ctx.sql(sql).await?.collect().await?[0].num_rows(), 2);
//! # Ok(())
//! # }
//! ```
//!
//! # Models
//!
//! [`Models`] holds several by name. Each is loaded once in a process, however many partitions a query has, and the first
//! one is used where a call names none. The model, the precision and the function of a call are literals.
//!
//! A plan carries the fingerprint of its model as a fourth argument, which the optimizer adds. A node of a cluster that
//! has another model under the same name returns an error, never other numbers.
//!
//! # Threads
//!
//! DataFusion runs a thread per partition, and the encoder has a pool of threads of its own, one per core. One record
//! batch at a time is encoded, by all threads of the pool, while the threads of other partitions wait; so no more threads
//! run than there are cores. `RAYON_NUM_THREADS` sets the size of the pool.
//!
//! # Results
//!
//! The embedding of a text is the same, bit for bit, whatever the batch, the partition or the node. So `int8` and `uint8`,
//! whose steps depend on ranges, need ranges that were given with the model ([`Models::set_ranges`]).

mod arguments;
mod arrays;
#[cfg(feature = "cluster")]
pub mod cluster;
mod embed;
mod encoding;
mod error;
mod model;
mod models;
mod precision;
pub mod program;
mod rerank;
mod setup;
mod similarity;
mod source;

pub use embed::Role;
pub use encoding::{EncodingTotals, encoding_totals};
pub use error::{Error, Result};
pub use model::Model;
pub use models::{Models, register};
pub use precision::{EmbeddingPrecision, read_ranges};
pub use setup::{Setup, interrupted};
pub use source::{NamedSource, Source};
