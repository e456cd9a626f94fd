//! Models by name: a local folder, or the id of a model on the Hugging Face hub.
//!
//! Only `download` talks to the network, and only it is behind the feature `hub`: the client brings about half of the
//! crates of a build, and a program that ships its model does not need it. Names are resolved here in any build, so that a
//! hub id in a build without the client is an error that names the missing feature.

#[cfg(feature = "hub")]
mod download;
mod locate;
mod model_id;

#[cfg(feature = "hub")]
pub use download::{HubOptions, download};
pub use locate::locate_model;
