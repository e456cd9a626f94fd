//! What holds for every layer, for the layer as it is usually configured.

use candle_attention::position::{Alibi, Rotary, T5RelativeBias};
use candle_attention::{AttentionConfig, AttentionMask, HeadNorm, NormKind, NormOver};

use crate::common::everywhere::Everywhere;

#[test]
fn an_encoder_and_decoders_give_the_same_everywhere() {
    let config = AttentionConfig::new(12, 4).with_num_key_value_heads(2);
    let norm = HeadNorm::new(NormKind::Rms, NormOver::Head, 1e-6);
    Everywhere::new(config.clone()).check(1);
    let decoder = config.clone().with_mask(AttentionMask::causal()).with_position(Rotary::default());
    Everywhere::new(decoder.clone().with_head_dim(4).with_qk_norm(norm)).check(2);
    let windowed = config.clone().with_mask(AttentionMask::window(Some(3), Some(0)));
    Everywhere::new(windowed.with_position(Alibi::default()).with_head_dim(5).with_value_head_dim(2)).check(3);
    Everywhere::new(config.with_position(T5RelativeBias::new(8, 12, true)).with_softcap(2.0)).check(4);
}
