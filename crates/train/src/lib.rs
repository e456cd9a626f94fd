//! Training of a small sentence encoder from plain text: its own vocabulary, then distillation from a teacher; written
//! in Hugging Face layout.
//!
//! [`Trainer`] is the entry point. Random numbers come from the seed and the step, never from a generator's history,
//! and [`Trainer::save`] keeps the weights, the moments of their gradients and the step. So a run that is resumed on
//! the same machine goes on as if it had not stopped.

mod adamw;
mod config;
mod data;
mod loss;
mod measure;
mod run;
mod student;
mod teacher;
mod vocabulary;
mod write;

pub use config::TrainConfig;
pub use measure::{AGREEMENT_GROUP, Agreement, agreement};
pub use run::{Step, Trainer};
pub use teacher::Teacher;

/// Compiles the code block of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
