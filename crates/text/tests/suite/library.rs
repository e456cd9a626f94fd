//! Texts with products by a library, which loops stand in for.

use candle_attention::ops::with_blas;
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device};

use crate::common::loops::{LOOPS, count_multiply_adds};
use crate::common::{assert_close, max_diff};
use crate::encoders::encoder;

/// Against transformers, padded and ragged: GELU, gates, norms before and after, experts, disentangled attention.
#[test]
fn encoders_give_the_same() {
    with_blas(Some(LOOPS), || {
        for name in
            ["roberta", "deberta", "modernbert", "eurobert", "gte", "nomic_moe", "gemma3_text", "t5_gated", "lfm2"]
        {
            encoder(name);
        }
    });
}

#[test]
fn texts_are_those_of_the_kernels_and_without_padding() {
    let long = "Ships that pass in the night, and speak each other in passing. ".repeat(20);
    let texts = ["A cat.", &long, "A kitten naps on the warm roof of a car.", "A tall tree."];
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 2e-3), (DType::BF16, 2e-2)] {
        let encode = |encoder: &SentenceEncoder, texts: &[&str]| {
            encoder.encode(texts, &EncodeOptions::default()).unwrap().to_dtype(DType::F32).unwrap()
        };
        let load = || SentenceEncoder::embedded(dtype, &Device::Cpu).unwrap();
        let (kernels, library) = (with_blas(None, load), with_blas(Some(LOOPS), load));
        let all = encode(&library, &texts);
        assert_close(&format!("{dtype:?}"), &all, &encode(&kernels, &texts), tolerance);
        let count = |texts: &[&[&str]]| {
            count_multiply_adds(|counted| {
                let encoder = with_blas(Some(counted), load);
                texts.iter().for_each(|texts| _ = encode(&encoder, texts));
            })
        };
        let alone: Vec<&[&str]> = texts.chunks(1).collect();
        let multiply_adds = count(&[&texts]);
        assert!(multiply_adds > 0 && multiply_adds == count(&alone), "{multiply_adds}");
        for (i, text) in alone.iter().enumerate() {
            assert_eq!(max_diff(&encode(&library, text), &all.narrow(0, i, 1).unwrap()), 0.0, "{text:?}");
        }
    }
}
