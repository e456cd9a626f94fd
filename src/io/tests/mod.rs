//! Writers against a file system that fails, and the names and permissions of what they leave.

mod atomic;
mod faults;
mod writers;
