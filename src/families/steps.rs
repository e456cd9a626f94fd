//! Steps between projection and scores of a layer, and where its keys and values come from, from its family's row and
//! the keys of its configuration.

use serde_json::Value;

use crate::config::{Factor, HeadNorm, KeyValueSource, NormKind, NormOver, Step, Steps};
use crate::error::{Error, Result};
use crate::families::family::{HeadSizes, QueryFactor, WeightlessNorm};
use crate::families::layer::Layer;
use crate::io::number;

impl Layer<'_> {
    /// The steps of the layer; `norms`: whether its checkpoint holds norms of queries and keys.
    pub(super) fn steps(&self, norms: bool, source: KeyValueSource, d: usize) -> Result<Steps> {
        let row = self.family.steps;
        let mut sides = [vec![Step::Rotate], vec![Step::Rotate], Vec::new()];
        let mut with_norms = |norm: HeadNorm, after: bool| {
            for side in &mut sides[..2] {
                side.insert(usize::from(after), Step::Norm(norm));
            }
        };
        if self.family.qk_norm.is_some() {
            // The checkpoint shows whether there are norms.
            self.section.note(&["use_qk_norm", "qk_layernorm"]);
        }
        if norms {
            with_norms(self.qk_norm()?, row.norm_after_rotation);
        }
        let weightless = match row.weightless_norm {
            WeightlessNorm::None | WeightlessNorm::Queries => false,
            WeightlessNorm::Always => true,
            WeightlessNorm::IfRotated => {
                self.flag("use_qk_norm")?.unwrap_or(true) && !self.position(d, &Default::default())?.is_none()
            }
        };
        let without_weight =
            || Ok::<_, Error>(HeadNorm::new(NormKind::Rms, NormOver::Head, self.norm_eps()?).with_weighted(false));
        if weightless {
            with_norms(without_weight()?, row.norm_after_rotation);
        }
        if row.weightless_norm == WeightlessNorm::Queries {
            sides[0].insert(0, Step::Norm(without_weight()?));
        }
        if let Some(factor) = self.query_factor(d)? {
            sides[0].push(Step::Factor(factor));
        }
        sides[1].extend(row.key_factor.map(|factor| Step::Factor(Factor::Constant(factor))));
        if row.value_norm {
            sides[2].push(Step::Norm(without_weight()?));
        }
        if let Some(key) = row.value_rotation
            && (key.is_empty() || self.flag(key)? == Some(true))
        {
            sides[2].push(Step::Rotate);
        }
        // Null is no factor.
        if let Some(factor) = row.value_factor.map(|key| self.float(key)).transpose()?.flatten() {
            sides[2].push(Step::Factor(Factor::Constant(factor)));
        }
        if let KeyValueSource::Shared { .. } = source {
            // They are those of the other layer.
            (sides[1], sides[2]) = (vec![Step::Rotate], Vec::new());
        }
        let [queries, keys, values] = sides;
        Ok(Steps::default().with_queries(queries).with_keys(keys).with_values(values))
    }

    fn query_factor(&self, d: usize) -> Result<Option<Factor>> {
        let required = |key: &'static str, value: Option<f64>| {
            value.ok_or_else(|| Error::config(key, "none", "a number: the family multiplies its queries by it"))
        };
        let counted = |key: &'static str, value: Option<usize>| {
            value.ok_or_else(|| Error::config(key, "none", "a number of tokens that share a factor"))
        };
        Ok(match self.family.steps.query_factor {
            QueryFactor::None => None,
            QueryFactor::Key(key) => Some(Factor::Constant(required(key, self.float(key)?)?)),
            QueryFactor::Beam if self.position(d, &Default::default())?.is_none() => {
                Some(Factor::PowerPosition { exponent: 0.1, length: 2048 })
            }
            QueryFactor::Beam => None,
            QueryFactor::Exp => Some(Factor::Exp { max: 100f64.ln() }),
            QueryFactor::Softplus => Some(Factor::Softplus { scale: std::f64::consts::LOG2_E / (d as f64).sqrt() }),
            QueryFactor::RopeBeta => {
                let stated = |key: &str| {
                    let sets = ["rope_parameters", "rope_scaling"].into_iter().filter_map(|key| self.section.get(key));
                    sets.filter_map(|set| set.get(key)).find(|value| !value.is_null())
                };
                let beta = required("llama_4_scaling_beta", stated("llama_4_scaling_beta").and_then(Value::as_f64))?;
                let key = "original_max_position_embeddings";
                let length = stated(key).and_then(Value::as_u64).and_then(|length| usize::try_from(length).ok());
                Some(Factor::LogPosition { beta, length: counted(key, length)?, offset: 0 })
            }
            QueryFactor::Llama4 => {
                // Files state a number for true, too.
                const KEY: &str = "attn_temperature_tuning";
                let off = match self.section.get(KEY) {
                    None => false,
                    Some(Value::Bool(tuned)) => !tuned,
                    Some(Value::Number(tuned)) => tuned.as_f64() == Some(0.0),
                    Some(other) => return Err(Error::config(KEY, other, "true or false")),
                };
                if off || !self.position(d, &Default::default())?.is_none() {
                    return Ok(None);
                }
                let beta = required("attn_scale", self.float("attn_scale")?)?;
                let length = counted("floor_scale", self.number("floor_scale")?)?;
                Some(Factor::LogPosition { beta, length, offset: 1 })
            }
        })
    }

    /// Where the layer has its keys and values from. `found`: by the tensors of its checkpoint.
    pub(crate) fn key_value_source(&self, found: KeyValueSource) -> Result<KeyValueSource> {
        let wrong = |expected: &str| {
            let what = format!("the projections of layer {}", self.index);
            let found = match found {
                KeyValueSource::Projections => "queries, keys and values",
                KeyValueSource::KeysAsValues => "queries and keys",
                KeyValueSource::Shared { .. } => "queries alone",
            };
            Err(Error::value(what, found, expected))
        };
        let as_values = match self.family.keys_as_values {
            None => false,
            Some(key) => key.is_empty() || self.flag(key)? == Some(true),
        };
        let shared = if self.family.shares_keys { self.number("num_kv_shared_layers")?.unwrap_or(0) } else { 0 };
        if self.family.drafts {
            return Ok(KeyValueSource::Shared { layer: None });
        }
        let first = match shared {
            0 => usize::MAX,
            _ => self.number("num_hidden_layers")?.unwrap_or(usize::MAX).saturating_sub(shared),
        };
        if self.index >= first {
            // Published files hold keys and values of these layers, too, which their model does not read.
            let windowed = self.has_window()?;
            let kind = |index: usize| Layer { index, ..*self }.has_window();
            for index in (0..first).rev() {
                if kind(index)? == windowed {
                    return Ok(KeyValueSource::Shared { layer: Some(index) });
                }
            }
            return wrong("those of a model with a layer of this kind before those that share its keys");
        }
        match (as_values && !self.has_window()?, found) {
            (true, KeyValueSource::KeysAsValues) | (false, KeyValueSource::Projections) => Ok(found),
            (true, _) => wrong("queries and keys: the values of this layer are its keys"),
            (false, _) => wrong("queries, keys and values"),
        }
    }

    /// The sizes that the key `per_layer_config` states for this layer, if the family reads it.
    pub(super) fn own_sizes(&self) -> Option<&Value> {
        let reads = self.family.head_sizes != HeadSizes::Same;
        reads.then(|| self.section.get("per_layer_config")?.get(self.index.to_string())).flatten()
    }

    /// A size of the heads of this layer by this key: `head_dim` or `num_key_value_heads`.
    pub(crate) fn head_size(&self, key: &str) -> Result<Option<usize>> {
        let [global_head_dim, global_heads] = match self.family.head_sizes {
            HeadSizes::Global { .. } => ["global_head_dim", "num_global_key_value_heads"].map(|key| self.number(key)),
            _ => [Ok(None), Ok(None)],
        };
        if let Some(own) = self.own_sizes().map(|own| number(own, key)).transpose()?.flatten() {
            return Ok(Some(own));
        }
        let usual = self.number(key)?;
        Ok(match self.family.head_sizes {
            HeadSizes::Same | HeadSizes::PerLayer => usual,
            HeadSizes::WindowsDoubleKeys if key == "num_key_value_heads" && self.has_window()? => {
                usual.map(|heads| heads.saturating_mul(2))
            }
            HeadSizes::WindowsDoubleKeys => usual,
            HeadSizes::Global { .. } if self.section.get("per_layer_config").is_some() || self.has_window()? => usual,
            HeadSizes::Global { switch } => match key {
                "head_dim" => global_head_dim?.or(usual),
                _ if switch.map(|switch| self.flag(switch)).transpose()?.is_some_and(|on| on != Some(true)) => usual,
                _ => global_heads?.or(usual),
            },
        })
    }
}
