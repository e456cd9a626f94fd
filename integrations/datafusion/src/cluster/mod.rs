//! The functions on a [Ballista](https://datafusion.apache.org/ballista/) cluster: a scheduler, executors, clients.
//!
//! Functions travel by their name in a plan, so every node has its own [`Models`](crate::Models), with the same names and
//! the same files. A plan has the fingerprints of its models; a node that lacks one, or has another under its name,
//! returns an error that names the node and the model.
//!
//! Executors ask the scheduler for work (Ballista's pull-staged policy), so an executor needs one open port, for results.
//! What they read must be at the same path on every node.

mod client;
mod executor;
mod scheduler;

pub use client::{Submitted, connect, standalone};
pub use executor::{ExecutorOptions, run_executor};
pub use scheduler::{SchedulerOptions, run_scheduler};
