//! Launches: a kernel variant, the size of its grid, and its parameters.

mod attention;
mod kernel;
mod rowwise;
