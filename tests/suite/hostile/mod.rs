//! Input that lies or is out of proportion: one error, and nothing else.

mod absurd_numbers;
mod claimed_sizes;
mod error_messages;
mod files_that_lie;
mod headers;
mod impossible_views;
