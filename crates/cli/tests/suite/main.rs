//! Tests of the program `candle-attention`, run as a process.

mod attend_program;
mod attention_map;
mod bench_program;
mod cli;
#[allow(dead_code, unused_imports, reason = "the suites of all packages share it")]
#[path = "../../../../tests/common/mod.rs"]
mod common;
mod encode;
mod head_programs;
mod inspect_program;
#[allow(dead_code, reason = "two suites share it")]
#[path = "../../../../tests/common/models.rs"]
mod models;
mod pictures;
mod programs;
mod prune_program;
mod quantize_program;
mod retrieval_programs;
mod search;
mod search_questions;
mod train_arguments;
#[cfg(unix)]
mod train_process;
mod train_program;
