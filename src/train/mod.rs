//! A small encoder from nothing: its own vocabulary, then masked words or a teacher to learn from, on lines of plain
//! text; written in Hugging Face layout.
//!
//! [`Trainer`] is the door. A run is what its [`TrainConfig`], its texts and its teacher say and nothing else: the same
//! run gives the same losses to the last bit, in one go or resumed from [`Trainer::save`] after a kill.

mod adamw;
mod batches;
mod config;
mod files;
mod loss;
mod measure;
mod run;
mod state;
mod student;
mod teacher;
mod text;
mod vocabulary;
mod write;

pub use config::{Kind, TrainConfig};
pub use measure::{Agreement, agreement};
pub use run::{Step, Trainer};
pub use teacher::Teacher;
pub use text::read_texts;
