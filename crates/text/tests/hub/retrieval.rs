//! Sparse and multi-vector models of a hub are those of their folders.

use candle_attention_text::{EncodeOptions, MultiVectorEncoder, SparseEncoder};
use candle_core::{DType, Device};

use super::{Hub, ID};
use crate::common::{fixture, max_diff};

const TEXTS: [&str; 2] = ["the cat sat", "who is the cat?"];

#[test]
fn sparse_models_are_brought_whole() {
    for name in ["splade", "inference_free", "plain"] {
        let folder = fixture(&format!("sparse/{name}"));
        let hub = Hub::from_folder(&folder);
        let brought = SparseEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu).unwrap();
        let disk = SparseEncoder::from_folder(&folder, DType::F32, &Device::Cpu).unwrap();
        for encode in [SparseEncoder::encode_query, SparseEncoder::encode_document] {
            let of = |encoder| encode(encoder, &TEXTS, &EncodeOptions::default()).unwrap();
            assert_eq!(of(&brought), of(&disk), "{name}");
        }
    }
}

#[test]
fn multi_vector_models_are_brought_whole() {
    for name in ["modern", "roberta", "pylate", "stanford"] {
        let folder = fixture(&format!("multi_vector/{name}"));
        let hub = Hub::from_folder(&folder);
        let brought = MultiVectorEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu).unwrap();
        let disk = MultiVectorEncoder::from_folder(&folder, DType::F32, &Device::Cpu).unwrap();
        for encode in [MultiVectorEncoder::encode_query, MultiVectorEncoder::encode_document] {
            let of = |encoder| encode(encoder, &TEXTS, &EncodeOptions::default()).unwrap();
            for (brought, disk) in of(&brought).iter().zip(&of(&disk)) {
                assert_eq!(max_diff(brought, disk), 0.0, "{name}");
            }
        }
    }
}
