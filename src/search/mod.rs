//! Semantic search over texts: the nearest by the cosine of their embeddings, every text compared.
//!
//! An [`Index`] holds one vector a text. Saved, it is a cache: what it knew of texts that are still there is taken over,
//! and only the others are embedded.
//!
//! ```no_run
//! use candle_attention::encoder::{EncodeOptions, SentenceEncoder, fingerprint};
//! use candle_attention::search::{Index, Lines};
//! use candle_core::{DType, Device};
//! let text = std::fs::read_to_string("notes.txt")?;
//! let lines = Lines::new(&text);
//! let encoder = SentenceEncoder::from_folder("all-MiniLM-L6-v2", DType::F32, &Device::Cpu)?;
//!
//! let mut index = Index::new(&lines.texts, encoder.embedding_size(), fingerprint("all-MiniLM-L6-v2")?)?;
//! index.reuse("notes.safetensors").ok(); // what an earlier run embedded, if it did
//! index.embed(&encoder, &EncodeOptions::default(), |_| Ok(()))?;
//! index.save("notes.safetensors")?;
//!
//! let query = encoder.encode(&["When is the rent due?"], &EncodeOptions::default())?;
//! for hit in index.search(&query.get(0)?.to_vec1()?, 10)? {
//!     println!("{:.3} line {}: {}", hit.score, lines.numbers[hit.index][0], lines.texts[hit.index]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod index;
mod lines;
mod nearest;

pub use file::check_place;
pub use index::Index;
pub use lines::Lines;
