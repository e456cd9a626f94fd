#![no_main]

use candle_attention_fuzz::{report, start, targets};

libfuzzer_sys::fuzz_target!(init: start(), |bytes: &[u8]| report(targets::encoder, bytes));
