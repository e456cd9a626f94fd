//! Vision families, and those of a text and a vision tower.

use crate::families::family::{BASE, Causal, Family, LayerPositions};

pub(crate) const VISION: &[Family] = &[
    // The name under which timm's checkpoints are read. Their own config.json states no family, and nothing of attention.
    Family { model_types: &["timm"], reads: &["use_rot_pos_emb"], ..BASE },
    Family { model_types: &["vit", "dinov2"], ..BASE },
    Family { model_types: &["dinov3_vit"], positions: LayerPositions::DinoRotary, ..BASE },
    Family { model_types: &["beit", "data2vec-vision"], ..BASE },
    Family { model_types: &["swin"], stages: true, ..BASE },
    Family { model_types: &["swinv2"], unsupported: Some("cosine attention with a computed position bias"), ..BASE },
    Family { model_types: &["clip_text_model"], causal: Causal::Always, ..BASE },
    // The sections of both towers are in one file; a file for one tower may lack the nested section.
    Family {
        model_types: &["clip", "clip_vision_model", "clipseg", "clipseg_text_model"],
        causal: Causal::TextTower,
        ..BASE
    },
    Family { model_types: &["siglip", "siglip_text_model", "siglip_vision_model"], ..BASE },
];
