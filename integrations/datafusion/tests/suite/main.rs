//! Tests of the functions, the programs and the cluster. One program, because each would link the whole query engine.

mod arguments;
mod common;
mod errors;
mod functions;
mod processes;
mod program;
mod threads;

#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "cluster")]
mod servers;
#[cfg(feature = "cluster")]
mod standalone;
