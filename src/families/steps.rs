//! Steps between projection and scores of a layer, from its family's row and the keys of its configuration.

use serde_json::Value;

use crate::config::{Factor, HeadNorm, KeyValueSource, NormKind, NormOver, Step, Steps};
use crate::error::{Error, Result};
use crate::families::family::{QueryFactor, StepRow};
use crate::families::layer::{Layer, LayerContents};

impl Layer<'_> {
    /// The steps of the layer; `norms`: whether its checkpoint holds norms of queries and keys.
    pub(super) fn steps(&self, norms: bool, source: KeyValueSource, d: usize) -> Result<Steps> {
        let norms_after = usize::from(self.family.steps.contains(&StepRow::NormsAfterRotation));
        let without_weight =
            || Ok::<_, Error>(HeadNorm::new(NormKind::Rms, NormOver::Head, self.norm_eps()?).with_weighted(false));
        let (mut queries, mut keys, mut values) = (vec![Step::Rotate], vec![Step::Rotate], Vec::new());
        if self.family.qk_norm.is_some() {
            // The checkpoint shows whether there are norms.
            self.section.note(&["use_qk_norm", "qk_layernorm"]);
        }
        if norms {
            let norm = Step::Norm(self.qk_norm()?);
            queries.insert(norms_after, norm);
            keys.insert(norms_after, norm);
        }
        for step in self.family.steps {
            match *step {
                StepRow::NormsAfterRotation | StepRow::NormEps(_) => {}
                StepRow::WeightlessNormsIfRotated
                    if self.flag("use_qk_norm")? == Some(false) || !self.is_positioned(d)? => {}
                StepRow::WeightlessNorms | StepRow::WeightlessNormsIfRotated => {
                    let norm = Step::Norm(without_weight()?);
                    queries.insert(norms_after, norm);
                    keys.insert(norms_after, norm);
                }
                StepRow::WeightlessQueryNorm => queries.insert(0, Step::Norm(without_weight()?)),
                StepRow::QueryFactor(factor) => queries.extend(self.query_factor(factor, d)?.map(Step::Factor)),
                StepRow::KeyFactor(factor) => keys.push(Step::Factor(Factor::Constant(factor))),
                StepRow::ValueNorm => values.push(Step::Norm(without_weight()?)),
                StepRow::ValueRotation(key) if !self.is_on(key)? => {}
                StepRow::ValueRotation(_) => values.push(Step::Rotate),
                // Null is no factor.
                StepRow::ValueFactor(key) => {
                    values.extend(self.float(key)?.map(|factor| Step::Factor(Factor::Constant(factor))));
                }
            }
        }
        if let KeyValueSource::Shared { .. } = source {
            // They are those of the other layer.
            (keys, values) = (vec![Step::Rotate], Vec::new());
        }
        Ok(Steps::default().with_queries(queries).with_keys(keys).with_values(values))
    }

    /// Whether the layer has positions.
    fn is_positioned(&self, d: usize) -> Result<bool> {
        Ok(!self.position(d, &LayerContents::default())?.is_none())
    }

    fn query_factor(&self, factor: QueryFactor, d: usize) -> Result<Option<Factor>> {
        let required = |key: &'static str, value: Option<f64>| {
            value.ok_or_else(|| Error::config(key, "none", "a number: the family multiplies its queries by it"))
        };
        let counted = |key: &'static str, value: Option<usize>| {
            value.ok_or_else(|| Error::config(key, "none", "a number of tokens that share a factor"))
        };
        Ok(match factor {
            QueryFactor::Key(key) => Some(Factor::Constant(required(key, self.float(key)?)?)),
            QueryFactor::Beam if self.is_positioned(d)? => None,
            QueryFactor::Beam => Some(Factor::PowerPosition { exponent: 0.1, length: 2048 }),
            QueryFactor::Exp => Some(Factor::Exp { max: 100f64.ln() }),
            QueryFactor::Softplus => Some(Factor::Softplus { scale: std::f64::consts::LOG2_E / (d as f64).sqrt() }),
            QueryFactor::RopeBeta => {
                let stated = |key: &str| {
                    let sets = ["rope_parameters", "rope_scaling"].into_iter().filter_map(|key| self.section.get(key));
                    sets.filter_map(|set| set.get(key)).find(|value| !value.is_null())
                };
                let beta = required("llama_4_scaling_beta", stated("llama_4_scaling_beta").and_then(Value::as_f64))?;
                let key = "original_max_position_embeddings";
                // The model's own key comes before that of the set if the rotation is scaled by it.
                let kind = stated("rope_type").or(stated("type")).and_then(Value::as_str);
                let is_scaled = kind.is_some_and(|kind| ["yarn", "llama3", "longrope"].contains(&kind));
                let own = self.section.get(key).filter(|own| is_scaled && !own.is_null());
                let length = own.or(stated(key)).and_then(Value::as_u64);
                let length = length.and_then(|length| usize::try_from(length).ok());
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
                if off || self.is_positioned(d)? {
                    return Ok(None);
                }
                let beta = required("attn_scale", self.float("attn_scale")?)?;
                let length = counted("floor_scale", self.number("floor_scale")?)?;
                Some(Factor::LogPosition { beta, length, offset: 1 })
            }
        })
    }
}
