//! Queries compared with tables of relative positions, and gated biases: every way to run such a layer against a loop
//! in f64.

use candle_attention::position::{GatedRelativeBias, Position, RelativeKey, RelativeKey2d, RelativeSinusoids};
use candle_attention::{AttentionConfig, AttentionMask};

use crate::common::everywhere::Everywhere;

#[test]
fn relative_positions_are_the_same_everywhere() {
    let config = AttentionConfig::new(12, 4);
    let grouped = config.clone().with_num_key_value_heads(2).with_head_dim(5);
    let windowed = AttentionMask::window(Some(3), Some(1));
    let sinusoids = grouped.clone().with_position(RelativeSinusoids::default());
    Everywhere::new(sinusoids.clone()).without_cache().check(1);
    Everywhere::new(sinusoids.with_mask(windowed.clone())).without_cache().with_tokens(70).check(2);
    let keys = grouped.with_position(RelativeKey::new(4, 2)).with_mask(windowed);
    Everywhere::new(keys).without_cache().check(3);
    Everywhere::new(config.clone().with_position(RelativeKey::new(0, 20))).without_cache().check(4);
    let grid = Position::from(RelativeKey2d::new([3, 4]));
    Everywhere::new(config.clone().with_position(grid)).without_cache().with_tokens(12).check(5);
    let gated = config.with_position(GatedRelativeBias::new(8, 6));
    Everywhere::new(gated).without_cache().with_tokens(12).check(6);
}
