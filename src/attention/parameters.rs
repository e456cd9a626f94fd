//! The rows of a layer's parameters beside its projections: those that every layer may have, then those of mechanisms.

use candle_nn::Init;

use crate::attention::mechanisms;
use crate::attention::steps::heads_of;
use crate::config::{AttentionConfig, HeadNorm, KeyValueSource, NormKind, NormOver, Scoring};
use crate::weights::{FACTORS, HeadKind, LOGIT_SCALE, NORM_PARTS, Parameter, Presence, SCORE, SINKS};

/// The fields of the configuration that ask for the norms of queries, keys and values.
const NORM_FIELDS: [&str; 3] = ["qk_norm", "qk_norm", "v_norm"];

impl AttentionConfig {
    /// A row for each tensor that a layer may have beside its projections and the weights of its position scheme. Those
    /// that this configuration does not ask for are [absent](Presence::Absent).
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let (h, d) = (self.num_attention_heads, self.resolved_head_dim());
        let bound = (1.0 / d as f64).sqrt();
        let mut rows = vec![
            Parameter {
                field: "scoring",
                ..Parameter::new(SCORE, [h, d], Init::Uniform { lo: -bound, up: bound })
                    .with_head_axis(0)
                    .with_presence(Presence::required_if(self.scoring == Scoring::Additive))
            },
            Parameter {
                field: "sinks",
                init: None,
                ..Parameter::new(SINKS, [h], Init::Const(0.0)).with_head_axis(0).with_presence(Presence::Optional)
            },
        ];
        rows.extend(self.step_rows());
        rows.extend(mechanisms::parameters(self));
        rows
    }

    /// The rows of the steps of queries, keys and values.
    fn step_rows(&self) -> Vec<Parameter> {
        let mut rows = Vec::new();
        // A layer with the keys and values of another one has steps of queries alone.
        let sides = if matches!(self.key_value_source, KeyValueSource::Shared { .. }) { 1 } else { 3 };
        for side in 0..sides {
            let [count, size] = heads_of(self, side);
            let heads = if side == 0 { HeadKind::Query } else { HeadKind::KeyValue };
            let norm = self.steps.weighted_norm(side);
            rows.extend(norm_rows(NORM_PARTS[side], NORM_FIELDS[side], norm, [count, size]).map(|row| Parameter {
                // `(d)` is shared by all heads, `(heads, d)` is one for each.
                shape_per_head: norm.filter(|norm| norm.over == NormOver::Head).map(|_| vec![count, size]),
                heads,
                ..row
            }));
            rows.push(Parameter {
                field: "steps",
                heads,
                ..Parameter::new(FACTORS[side], [size], Init::Const(0.0))
                    .with_presence(Presence::required_if(self.steps.has_learned_factor(side)))
            });
        }
        rows.push(Parameter {
            field: "steps",
            ..Parameter::new(LOGIT_SCALE, [self.num_attention_heads, 1, 1], Init::Const(10f64.ln()))
                .with_head_axis(0)
                .with_presence(Presence::required_if(self.steps.has_factor_of_heads()))
        });
        rows
    }
}

/// The rows of the weight and of the bias of a norm of `heads` heads of `size` elements.
pub(super) fn norm_rows(
    [weight, bias]: [&'static str; 2],
    field: &'static str,
    norm: Option<&HeadNorm>,
    [heads, size]: [usize; 2],
) -> [Parameter; 2] {
    let over_all = norm.is_some_and(|norm| norm.over == NormOver::AllHeads);
    let kind = norm.map(|norm| norm.kind);
    let shape = if over_all { heads * size } else { size };
    // Either way a new norm starts with a factor of 1.
    let one = if kind == Some(NormKind::RmsOffset) { 0.0 } else { 1.0 };
    let [required, optional] = match norm {
        Some(_) => [Presence::Required, Presence::Optional],
        None => [Presence::Absent; 2],
    };
    [
        Parameter { field, ..Parameter::new(weight, [shape], Init::Const(one)).with_presence(required) },
        Parameter {
            field,
            init: Some(Init::Const(0.0)).filter(|_| kind == Some(NormKind::Layer)),
            ..Parameter::new(bias, [shape], Init::Const(0.0)).with_presence(optional)
        },
    ]
}
