//! Models by name: a local folder, or the id of a model on the Hugging Face hub.
//!
//! Only `download` talks to the network, and only it is behind the feature `hub`: the client brings TLS, and a program
//! that ships its model does not need it. Names are resolved here in any build, so that a hub id in a build without the
//! client is an error that names the missing feature.
//!
//! The client is this room's own, on top of a general HTTP library. hf-hub 1.0 joins what a hub sends (`ETag`, commit)
//! to paths unchecked, stores error pages as files, takes a branch for unchanged while its first file is, waits for
//! ever, and removes and makes links that others read; and it brings 180 crates where this needs 25.

#[cfg(feature = "hub")]
mod cache;
#[cfg(feature = "hub")]
mod client;
#[cfg(feature = "hub")]
mod content;
#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod endpoint;
#[cfg(feature = "hub")]
mod environment;
#[cfg(feature = "hub")]
mod fault;
#[cfg(feature = "hub")]
mod fetcher;
mod locate;
mod model_id;
#[cfg(feature = "hub")]
mod names;
#[cfg(feature = "hub")]
mod options;
#[cfg(feature = "hub")]
mod progress;

#[cfg(feature = "hub")]
pub use download::download;
#[cfg(feature = "hub")]
pub(crate) use download::snapshot;
pub use locate::locate_model;
#[cfg(feature = "hub")]
pub use options::HubOptions;
