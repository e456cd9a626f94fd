//! Key-value caches.

mod batches;
mod cached_rotation;
mod chunks;
mod cross_cache;
mod edits;
mod layers;
mod programs;
