//! Families of detectors and segmenters, whose object queries and positions are added to inputs of queries and keys.

use crate::config::CallInput;
use crate::families::family::{BASE, Family, HeadsKey, Required};

/// Why attention to a few points of an image does not run.
const DEFORMABLE: &str = "values that are sampled at learned offsets (deformable attention)";

/// The note of layers with projections of positions.
const SIDE_BY_SIDE: &str = "in the decoder, inputs are side by side: queries and keys are of contents and positions; in \
    cross-attention queries are of contents, positions (in layers that project them, such as the first) and sines";

/// Position vectors in every layer.
const VECTORS: &[Required] = &[Required::new(CallInput::PositionVectors)];
/// The layouts of transformers, and of the authors.
const LAYOUTS: &[&str] = &["candle-attention", "bart", "torch"];

#[rustfmt::skip]
const DETR: Family = Family { layouts: LAYOUTS,
    own_keys: &["position_embedding_type=sine", "position_embedding_type=learned"], requires: VECTORS, qk_norm: None,
    ..BASE };

#[rustfmt::skip]
pub(crate) const DETECTORS: &[Family] = &[
    Family { model_types: &["detr", "table-transformer", "maskformer"], ..DETR },
    Family { model_types: &["conditional_detr", "dab-detr"],
        layouts: &["candle-attention", "bart", "torch", "dab-detr", "dab-detr-cross", "conditional-detr",
            "conditional-detr-cross"],
        requires: &[Required::below("encoder", CallInput::PositionVectors)], note: Some(SIDE_BY_SIDE), ..DETR },
    Family { model_types: &["deformable_detr"],
        unsupported_parts: &[("encoder", DEFORMABLE), ("encoder_attn", DEFORMABLE)], ..DETR },
    // The other attention of the decoder is deformable.
    Family { model_types: &["rt_detr", "rt_detr_v2", "d_fine", "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4",
            "lw_detr", "rf_detr"],
        unsupported_parts: &[("encoder_attn", DEFORMABLE), ("cross_attn", DEFORMABLE)], ..DETR },
    // Each query sees the pixels of its own mask.
    Family { model_types: &["mask2former", "oneformer"],
        unsupported_parts: &[("pixel_decoder", DEFORMABLE), ("pixel_level_module", DEFORMABLE)],
        requires: &[Required::new(CallInput::PositionVectors), Required::below("cross_attn", CallInput::Mask)],
        ..DETR },
    // A token of the text sees those of its own phrase, also in the text model.
    Family { model_types: &["grounding-dino", "mm-grounding-dino"], layouts: &["grounding-dino", "bert"],
        unsupported_parts: &[("encoder_attn", DEFORMABLE)],
        heads: &[HeadsKey { divisor: 2, ..HeadsKey::new(&["text_enhancer_layer"], "encoder_attention_heads") }],
        requires: &[Required::below("self_attn", CallInput::PositionVectors),
            Required::below("text_enhancer_layer", CallInput::Mask), Required::below("text_backbone", CallInput::Mask)],
        ..DETR },
    Family { model_types: &["sam3_detr_encoder", "sam3_lite_text_detr_encoder"],
        requires: &[Required::below("self_attn", CallInput::PositionVectors)], ..DETR },
    // The bias is that of the boxes of the queries.
    Family { model_types: &["sam3_detr_decoder", "sam3_lite_text_detr_decoder"],
        requires: &[Required::below("self_attn", CallInput::PositionVectors),
            Required::below("vision_cross_attn", CallInput::PositionVectors),
            Required::below("vision_cross_attn", CallInput::ScoreBias { scaled: false })], ..DETR },
    Family { model_types: &["sam3_geometry_encoder", "sam3_lite_text_geometry_encoder"],
        requires: &[Required::below("cross_attn", CallInput::PositionVectors)], ..DETR },
    Family { model_types: &["sam3_mask_decoder", "sam3_lite_text_mask_decoder"], requires: &[], ..DETR },
    // The queries of the first layer are position vectors themselves.
    Family { model_types: &["sam_mask_decoder", "sam_hq_mask_decoder", "sam2_mask_decoder", "sam2_video_mask_decoder",
            "edgetam_mask_decoder", "edgetam_video_mask_decoder", "sam3_tracker_mask_decoder",
            "sam3_tracker_video_mask_decoder"],
        requires: &[Required { from_layer: 1, ..Required::below("self_attn", CallInput::PositionVectors) },
            Required::below("cross_attn_token_to_image", CallInput::PositionVectors),
            Required::below("cross_attn_image_to_token", CallInput::PositionVectors),
            Required::below("final_attn_token_to_image", CallInput::PositionVectors)], ..DETR },
];
