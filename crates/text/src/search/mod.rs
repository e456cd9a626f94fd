//! Semantic search over texts: exact nearest neighbors by the cosine similarity of their embeddings.
//!
//! An [`Index`] holds one vector per text. Its file is a cache keyed by the content of the texts, for any number of
//! indexes of one model: the vectors of texts that it has are loaded, and only the other texts are embedded. Search
//! compares the query with every vector. An approximate index was rejected: for the number of lines a file has, memory
//! bandwidth answers in milliseconds, and exact results need no tuning and no tests of recall. [`Vectors`] are the same
//! without texts and files.
//!
//! ```no_run
//! use candle_attention_text::{EncodeOptions, SentenceEncoder, fingerprint};
//! use candle_attention_text::search::Index;
//! use candle_core::{DType, Device};
//! let text = std::fs::read_to_string("notes.txt")?;
//! let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
//! let encoder = SentenceEncoder::from_folder("all-MiniLM-L6-v2", DType::F32, &Device::Cpu)?;
//!
//! let mut index = Index::new(&lines, encoder.embedding_size(), fingerprint("all-MiniLM-L6-v2")?)?;
//! index.load_cached("notes.index").ok(); // from an earlier run, if there was one
//! index.embed(&encoder, &EncodeOptions::default(), |_| Ok(()))?;
//! index.save("notes.index")?;
//!
//! let query = encoder.encode(&["When is the rent due?"], &EncodeOptions::default())?;
//! for hit in index.search(&query.get(0)?.to_vec1()?, 10)? {
//!     println!("{:.3} {}", hit.score, lines[hit.index]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod index;
mod vectors;

pub use index::Index;
pub use vectors::Vectors;
