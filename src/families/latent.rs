//! Families with latent attention, and what their rows mean.

use serde_json::Value;

use crate::config::{AttentionConfig, LatentAttention};
use crate::error::{Error, Result};
use crate::families::family::{
    BASE, Causal, Family, LatentRow, LayerPositions, MaxKeys, Mechanism, Mrope, QueryFactor, ROTARY, RotaryRow, Scale,
    StepRow, Window, WindowLayers,
};
use crate::families::gated::SIGMOID_GATE;
use crate::families::layer::Layer;
use crate::families::rotary::{first_number, rope_type};
use crate::families::rotary_scaling::yarn_mscale;
use crate::io;
use crate::position::{Rotary, RotaryScaling, RotaryStyle};

/// DeepSeek's norms have an `eps` of their own, whatever `rms_norm_eps` states.
const ROW: LatentRow = LatentRow { eps: Some(1e-6), scaled: false, indexed: false, states_share: false };
const INDEXED: Mechanism = Mechanism::Latent(LatentRow { indexed: true, ..ROW });
const INTERLEAVED: RotaryRow = RotaryRow { interleaved: true, ..ROTARY };

#[rustfmt::skip]
const DEEPSEEK_V2: Family = Family { layouts: &["deepseek", "deepseek-lite"], causal: Causal::Always,
    positions: LayerPositions::Rotary(INTERLEAVED), scale: Scale::Mscale, qk_norm: None,
    mechanisms: &[Mechanism::Latent(ROW)], ..BASE };
/// A key says which elements form a pair.
const DEEPSEEK_V3: Family = Family { own_keys: &["rope_interleave"], ..DEEPSEEK_V2 };
const DEEPSEEK_V32: Family = Family { mechanisms: &[INDEXED], defaults: &[("index_topk", 2048.0)], ..DEEPSEEK_V2 };
#[rustfmt::skip]
const HY_V4: Family = Family { layouts: &["hy-v4"], positions: LayerPositions::Rotary(ROTARY),
    mechanisms: &[INDEXED, SIGMOID_GATE], ..DEEPSEEK_V32 };

#[rustfmt::skip]
pub(crate) const LATENT: &[Family] = &[
    Family { model_types: &["deepseek_v2"], ..DEEPSEEK_V2 },
    Family { model_types: &["deepseek_v3", "kimi_k2", "glm4_moe_lite", "youtu", "axk1"], ..DEEPSEEK_V3 },
    Family { model_types: &["sarvam_mla"], layouts: &["deepseek-lite"],
        own_keys: &["rope_interleave", "rope_type=deepseek_yarn"], ..DEEPSEEK_V3 },
    Family { model_types: &["deepseek_v32", "glm_moe_dsa"], ..DEEPSEEK_V32 },
    Family { model_types: &["hy_v4"], ..HY_V4 },
    Family { model_types: &["hy_v4_vl_text"],
        positions: LayerPositions::Rotary(RotaryRow { mrope: Some(Mrope::Alternating), ..INTERLEAVED }),
        mechanisms: &[Mechanism::Latent(LatentRow { eps: None, indexed: true, ..ROW }), SIGMOID_GATE],
        defaults: &[("index_topk", 2048.0), ("rms_norm_eps", 1e-5)], ..HY_V4 },
    Family { model_types: &["mistral4"],
        positions: LayerPositions::Rotary(RotaryRow { required_in_config: true, ..INTERLEAVED }),
        mechanisms: &[Mechanism::Latent(LatentRow { states_share: true, ..ROW })],
        steps: &[StepRow::QueryFactor(QueryFactor::RopeBeta)], ..DEEPSEEK_V3 },
    Family { model_types: &["minicpm3"], positions: LayerPositions::Rotary(ROTARY), ..DEEPSEEK_V2 },
    Family { model_types: &["longcat_flash"],
        positions: LayerPositions::Rotary(RotaryRow { theta: 10_000_000.0, ..INTERLEAVED }),
        mechanisms: &[Mechanism::Latent(LatentRow { scaled: true, ..ROW })], ..DEEPSEEK_V2 },
    // Nothing is rotated, whatever its files state. The other layers are Kimi delta attention, in another layout.
    Family { model_types: &["kimi_linear"], layouts: &["deepseek-lite", "deepseek"], ignored_keys: &["rope_theta"],
        positions: LayerPositions::FromWeights, scale: Scale::HeadDim, ..DEEPSEEK_V2 },
    Family { model_types: &["glm5_next_text"], positions: LayerPositions::FromWeights, scale: Scale::HeadDim,
        mechanisms: &[Mechanism::Latent(LatentRow { eps: None, indexed: true, ..ROW })],
        defaults: &[("index_topk", 2048.0), ("rms_norm_eps", 1e-5)], ..DEEPSEEK_V2 },
    // Its indexer chooses blocks of tokens.
    Family { model_types: &["deepseek_v4"], layouts: &["deepseek-v4", "deepseek-v4-saved", "multi-query"],
        causal: Causal::Always, window: Window { layers: WindowLayers::All { switch: false }, ..BASE.window },
        positions: LayerPositions::MainOrCompress, qk_norm: None,
        mechanisms: &[Mechanism::Latent(LatentRow { eps: None, ..ROW }),
            Mechanism::Indexer(MaxKeys::Compressed("index_topk"))],
        steps: &[StepRow::WeightlessQueryNorm],
        defaults: &[("sliding_window", 128.0), ("index_topk", 512.0), ("rms_norm_eps", 1e-6)], ..BASE },
    // The other layers are delta attention, in another layout.
    Family { model_types: &["bailing_hybrid"], layouts: &["ling"],
        positions: LayerPositions::Rotary(RotaryRow { theta: 6_000_000.0, ..INTERLEAVED }),
        mechanisms: &[Mechanism::Latent(ROW), SIGMOID_GATE], ..DEEPSEEK_V2 },
];

impl Layer<'_> {
    /// The rotary parameters that the configuration states for a layer with or without keys of blocks, and whether it
    /// does so by the names `main` and `compress`.
    fn kind_of_rotation(&self, has_blocks: bool) -> Result<(Option<&Value>, bool)> {
        const KINDS: [&str; 2] = ["main", "compress"];
        let (stated, _) = self.stated_rotation(&INTERLEAVED)?;
        let sets = KINDS.map(|kind| stated.and_then(|stated| stated.get(kind)).filter(|set| set.is_object()));
        match sets {
            [Some(_), Some(_)] => Ok((sets[usize::from(has_blocks)], true)),
            // Layers without such keys are not scaled.
            [None, None] => Ok((stated.filter(|_| has_blocks), false)),
            _ => {
                Err(Error::config("rope_parameters", stated.unwrap_or(&Value::Null), "a set for `main` and `compress`"))
            }
        }
    }

    /// The rotation of the last `rope` elements of heads.
    pub(super) fn main_or_compress(&self, rope: usize, has_blocks: bool) -> Result<Rotary> {
        let beside = if has_blocks { ("compress_rope_theta", 160_000.0) } else { ("rope_theta", 10_000.0) };
        let (set, by_kind) = self.kind_of_rotation(has_blocks)?;
        let theta = match set.filter(|_| by_kind) {
            Some(set) => first_number(&["rope_theta"], |key| set.get(key))?,
            None => Some(self.float(beside.0)?.unwrap_or(beside.1)),
        };
        let theta =
            theta.ok_or_else(|| Error::config("rope_theta", "none", "a number in each set of `rope_parameters`"))?;
        let mut scaling = set.map_or(Ok(RotaryScaling::None), |set| self.rotary_scaling(set, true))?;
        if let (RotaryScaling::Yarn { attention_factor, .. }, Some(set)) = (&mut scaling, set)
            && set.get("attention_factor").is_none()
            && !by_kind
        {
            *attention_factor = Some(1.0);
        }
        let rotary = Rotary::default().with_dim(rope).with_style(RotaryStyle::Interleaved).with_theta(theta);
        Ok(rotary.with_scaling(scaling))
    }

    /// How many of the last elements of a head of `head_dim` are rotated.
    fn rotated_share(&self, head_dim: usize, has_blocks: bool) -> Result<usize> {
        const KEY: &str = "partial_rotary_factor";
        let beside = (self.float(KEY)?, self.number("qk_rope_head_dim")?);
        let share = match (self.kind_of_rotation(has_blocks)?, beside) {
            ((Some(set), true), _) => first_number(&[KEY], |key| set.get(key))?.unwrap_or(1.0),
            (_, (Some(share), _)) => share,
            (_, (None, Some(rope))) => return Ok(rope),
            _ => 0.125,
        };
        Ok((share * head_dim as f64) as usize)
    }

    /// Adds to `latent`, which has the sizes of the weights, what the family does.
    ///
    /// # Errors
    /// The configuration states other sizes.
    pub(super) fn latent(
        &self,
        row: &LatentRow,
        mut latent: LatentAttention,
        config: &AttentionConfig,
    ) -> Result<LatentAttention> {
        if latent.multi_query {
            self.section.note(&["rope_theta"]);
            let d = latent.head_dim();
            let rope = self.rotated_share(d, config.key_compression().is_some())?;
            let nope = d.checked_sub(rope).filter(|nope| *nope > 0);
            let allowed = || format!("less than {d}, as the weights under `{}` have heads", self.prefix);
            let nope = nope.ok_or_else(|| Error::config("qk_rope_head_dim", rope, allowed()))?;
            let whole = LatentAttention::new_multi_query(nope, rope);
            latent = LatentAttention { q_lora_rank: latent.q_lora_rank, ..whole };
        }
        let stated = [
            ("q_lora_rank", latent.q_lora_rank.unwrap_or(0)),
            ("kv_lora_rank", latent.kv_lora_rank),
            ("qk_nope_head_dim", latent.qk_nope_head_dim),
            ("qk_rope_head_dim", latent.qk_rope_head_dim),
            ("v_head_dim", latent.v_head_dim),
        ];
        // Without heads no shape shows the size of one.
        for (key, found) in stated.into_iter().filter(|_| config.num_attention_heads > 0) {
            if let Some(stated) = self.number(key)?.filter(|stated| *stated != found) {
                let allowed = format!("{found}, as the weights under `{}` have it", self.prefix);
                return Err(Error::config(key, stated, allowed));
            }
        }
        let stated = || self.float("rms_norm_eps")?.ok_or_else(|| Error::config("rms_norm_eps", "none", "a number"));
        latent.eps = row.eps.map_or_else(stated, Ok)?;
        if row.scaled {
            let scale = |rank: usize| (config.hidden_size as f64 / rank as f64).sqrt();
            for (key, factor, rank) in [
                ("mla_scale_q_lora", &mut latent.q_lora_scale, latent.q_lora_rank),
                ("mla_scale_kv_lora", &mut latent.kv_lora_scale, Some(latent.kv_lora_rank)),
            ] {
                if self.flag(key)? == Some(false) {
                    return Err(Error::config(key, false, "true or absent: the family scales its latents"));
                }
                *factor = rank.map_or(1.0, scale);
            }
        }
        if row.indexed {
            const KEY: &str = "index_topk";
            let none = || Error::config(KEY, "none", "a number of keys");
            latent.index_topk = Some(self.number(KEY)?.ok_or_else(none)?);
            // GLM-5.3-Flash chooses whole blocks of keys, and the last keys beside them.
            const TAIL: &str = "index_kpool_always_select_tail";
            if self.flag(TAIL)? == Some(false) {
                let allowed = "true: without it a query does not see all keys of a short text";
                return Err(Error::config(TAIL, false, allowed));
            }
        }
        Ok(latent)
    }

    /// The factor that `mscale_all_dim` of the rotation states, if it does.
    pub(super) fn mscale(&self) -> Result<Option<f64>> {
        let LayerPositions::Rotary(row) = self.family.positions else { return Ok(None) };
        let (Some(stated), _) = self.stated_rotation(&row)? else { return Ok(None) };
        let is_scaled = rope_type(stated)? != "default";
        let float = |key: &str| io::stated(stated.get(key), key, "a number", Value::as_f64);
        let Some(all) = float("mscale_all_dim")?.filter(|all| *all != 0.0 && is_scaled) else { return Ok(None) };
        let factor =
            float("factor")?.ok_or_else(|| Error::config("factor", "none", "a number, beside mscale_all_dim"))?;
        Ok(Some(yarn_mscale(all, factor)))
    }

    /// Whether `share` of a whole query head is the `rope` elements that are rotated, and the family states it so.
    pub(super) fn is_share_of_latent(&self, share: f64, rope: usize) -> bool {
        let states = self.family.latent().is_some_and(|row| row.states_share);
        let size = |key: &str| self.number(key).ok().flatten();
        let both = size("qk_nope_head_dim").zip(size("qk_rope_head_dim")).map(|(nope, rope)| nope + rope);
        states && size("head_dim").or(both).is_some_and(|head| (share * head as f64) as usize == rope)
    }
}
