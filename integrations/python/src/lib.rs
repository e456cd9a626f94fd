//! `candle_attention._native`: the text encoders of candle-attention as Python classes.
//!
//! The classes here are thin. What `sentence_transformers` calls its arguments, their defaults and checks is in the Python
//! files beside this module.

mod arrays;
mod cross_encoder;
mod errors;
mod folder;
mod inputs;
mod maps;
mod options;
mod sentence_encoder;
mod similarity;
mod threads;

/// The text encoders of candle-attention.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::cross_encoder::CrossEncoder;
    #[pymodule_export]
    use super::folder::locate;
    #[pymodule_export]
    use super::sentence_encoder::SentenceEncoder;
    #[pymodule_export]
    use super::similarity::{quantize, similarity, similarity_pairwise};
    #[pymodule_export]
    use super::threads::{get_num_threads, set_num_threads};
}
