//! Models whose modules are in many folders: routers and static embeddings.

use candle_attention_text::{EncodeOptions, SentenceEncoder, fingerprint};
use candle_core::{DType, Device};

use super::server::{Hub, ID};
use crate::common::{numbers, says};
use crate::models::modules_folder as folder;

#[test]
fn all_files_of_the_modules_are_brought() {
    for name in ["chain", "router", "router_late", "static", "model2vec"] {
        let folder = folder(name);
        let hub = Hub::from_folder(folder.path());
        let brought = SentenceEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu).unwrap();
        let disk = SentenceEncoder::from_folder(folder.path(), DType::F32, &Device::Cpu).unwrap();
        for encode in [SentenceEncoder::encode_query, SentenceEncoder::encode_document] {
            let of = |encoder| numbers(&encode(encoder, &["a cat", "hello"], &EncodeOptions::default()).unwrap());
            assert_eq!(of(&brought), of(&disk), "{name}");
        }
        let cached = candle_attention_text::download(ID, &hub.options()).unwrap();
        assert_eq!(fingerprint(cached).unwrap(), fingerprint(folder.path()).unwrap(), "{name}");
    }
}

#[test]
fn a_module_without_weights_is_an_error() {
    for (name, file) in [("chain", "3_LayerNorm/model.safetensors"), ("router", "query_1_Dense/model.safetensors")] {
        let hub = Hub::from_folder(folder(name).path());
        hub.remove(file);
        let result = SentenceEncoder::from_hub(ID, &hub.options(), DType::F32, &Device::Cpu);
        says(result, &["the repository holds no", file]);
    }
}
