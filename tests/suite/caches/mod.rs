//! Key-value caches.

mod batches;
mod cached_rotation;
mod chosen;
mod chunks;
mod cross_cache;
mod edits;
mod int8;
mod int8_decoder;
mod layers;
mod programs;
