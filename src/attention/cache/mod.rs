//! Caches: the projected keys and values of tokens that later calls attend to.
//!
//! [`KvCache`] grows with a sequence, so that it can run in chunks; [`CrossCache`] holds another sequence, which stays
//! the same. Both hold tokens in the dtype of the layer: a half type costs half of the memory, and every chunking of a
//! sequence reads the same rounded keys. Keys are cached after their rotation, because rotating all of them at each
//! step would cost as much as the attention itself; where the rotation changes with the length of the sequence, a call
//! that would need other keys fails before it changes the cache. So does a call of another layer, or of the same one
//! after its weights have changed.
//!
//! A cache in int8 holds bytes, with the scale of each head among them, so that the same code moves tokens.
//! Tokens are rounded when they are added.

mod append;
mod cross;
#[cfg(test)]
mod fault_tests;
mod int8;
mod key_values;
mod kv_cache;
mod layer_id;
mod new_tokens;

pub(super) use append::Snapshot;
pub use cross::CrossCache;
pub use key_values::KeyValues;
pub use kv_cache::KvCache;
pub(super) use layer_id::Identity;
pub(super) use new_tokens::{NewTokens, TokenShape};
