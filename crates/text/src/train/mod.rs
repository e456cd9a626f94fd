//! Training of a small sentence encoder from plain text: its own vocabulary, then distillation from a teacher or masked
//! language modeling; written in Hugging Face layout.
//!
//! [`Trainer`] is the entry point. A run is a function of its [`TrainConfig`], its texts and its teacher alone: random
//! numbers come from the seed and the step, never from a generator's history, so a run resumed from [`Trainer::save`]
//! after a kill gives the same losses, bit for bit, as one that was never interrupted.
//!
//! This holds on one machine with one build of the program, for any number of threads. Another processor, another
//! version of candle or another instruction set of the kernels (`CANDLE_ATTENTION_ISA`) may round sums otherwise. A run
//! resumes there as well, from the same weights, and differs from then on in the last bits; the saved file names the
//! instructions that wrote it in its metadata, as `instructions`.

mod adamw;
mod config;
mod data;
mod loss;
mod measure;
mod run;
mod state;
mod student;
mod teacher;
mod validate;
mod vocabulary;
mod write;

pub use config::{StudentKind, TrainConfig};
pub use data::read_texts;
pub use measure::{Agreement, agreement};
pub use run::{Step, Trainer};
pub use teacher::Teacher;
