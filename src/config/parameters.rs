//! The table of a layer's parameters beside its projections.

use candle_nn::Init;

use crate::config::{AttentionConfig, HeadNorm, KeyValueSource, NormKind, NormOver, OutputGroups, Scoring};
use crate::position::Position;
use crate::weights::{
    BIAS_KV, COMPRESSOR, CONTEXT_NORM_PARTS, FACTORS, GLOBAL_PARTS, HeadKind, LAMBDAS, LIMITS, LOGIT_SCALE, NORM_PARTS,
    OUTPUT_GROUPS, Parameter, Presence, SCORE, SINKS, VALUE_CONVOLUTION,
};

/// The fields of the configuration that ask for the norms of queries, keys and values.
const NORM_FIELDS: [&str; 3] = ["qk_norm", "qk_norm", "v_norm"];

impl AttentionConfig {
    /// A row for each tensor that a layer may have beside its projections and the weights of its position scheme. Those
    /// that this configuration does not ask for are [absent](Presence::Absent).
    pub(crate) fn parameters(&self) -> Vec<Parameter> {
        let (h, h_kv) = (self.num_attention_heads, self.resolved_num_key_value_heads());
        let (d, d_v) = (self.resolved_head_dim(), self.resolved_value_head_dim());
        let asked = |is_asked: bool| if is_asked { Presence::Required } else { Presence::Absent };
        let mut rows = Vec::new();

        for (i, size) in [h_kv * d, h_kv * d_v].into_iter().enumerate() {
            // A layer whose heads are all pruned has no elements.
            let init = Init::Randn { mean: 0.0, stdev: (1.0 / size.max(1) as f64).sqrt() };
            rows.push(Parameter {
                field: "add_bias_kv",
                init: Some(init).filter(|_| self.add_bias_kv),
                heads: HeadKind::KeyValue,
                ..Parameter::new(BIAS_KV[i], [1, 1, size], init)
                    .with_head_axis(2)
                    .with_presence(Presence::Together(BIAS_KV[1 - i]))
            });
        }

        let bound = (1.0 / d as f64).sqrt();
        rows.push(Parameter {
            field: "scoring",
            ..Parameter::new(SCORE, [h, d], Init::Uniform { lo: -bound, up: bound })
                .with_head_axis(0)
                .with_presence(asked(self.scoring == Scoring::Additive))
        });

        rows.extend(LAMBDAS.map(|name| {
            Parameter {
                field: "differential",
                ..Parameter::new(name, [d], Init::Randn { mean: 0.0, stdev: 0.1 })
                    .with_presence(asked(self.differential.is_some()))
            }
        }));

        rows.push(Parameter {
            field: "sinks",
            init: None,
            ..Parameter::new(SINKS, [h], Init::Const(0.0)).with_head_axis(0).with_presence(Presence::Optional)
        });

        // A layer with the keys and values of another one has steps of queries alone.
        let sides = if matches!(self.key_value_source, KeyValueSource::Shared { .. }) { 1 } else { 3 };
        let all_sides = [(HeadKind::Query, h, d), (HeadKind::KeyValue, h_kv, d), (HeadKind::KeyValue, h_kv, d_v)];
        for (side, (heads, count, size)) in all_sides.into_iter().enumerate().take(sides) {
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
                    .with_presence(asked(self.steps.has_learned_factor(side)))
            });
        }

        rows.push(Parameter {
            field: "steps",
            ..Parameter::new(LOGIT_SCALE, [h, 1, 1], Init::Const(10f64.ln()))
                .with_head_axis(0)
                .with_presence(asked(self.steps.has_factor_of_heads()))
        });

        let inputs = [self.resolved_query_size(), self.resolved_key_size(), self.resolved_value_size()];
        for (i, (heads, count, size)) in all_sides.into_iter().enumerate() {
            let (out, input) = (count * size, inputs[i]);
            let bound = (6.0 / (out as f64 + input as f64)).sqrt();
            let weight = (vec![out, input], Init::Uniform { lo: -bound, up: bound }, Presence::Required);
            let both = [weight, (vec![out], Init::Const(0.0), Presence::Optional)];
            rows.extend(GLOBAL_PARTS[i].into_iter().zip(both).map(|(name, (shape, init, presence))| Parameter {
                field: "global_tokens",
                heads,
                ..Parameter::new(name, shape, init).with_head_axis(0).with_presence(if self.global_tokens {
                    presence
                } else {
                    Presence::Absent
                })
            }));
        }

        rows.push(Parameter {
            field: "value_convolution",
            heads: HeadKind::KeyValue,
            ..Parameter::new(VALUE_CONVOLUTION, [h_kv * d_v, 1, self.value_convolution.unwrap_or(1)], Init::Const(0.0))
                .with_head_axis(0)
                .with_presence(asked(self.value_convolution.is_some()))
        });

        let grouped = self.output_groups.unwrap_or(OutputGroups { count: 1, rank: 1 });
        let shape = [grouped.count * grouped.rank, (h * d_v).checked_div(grouped.count).unwrap_or(0)];
        let bound = (6.0 / (shape[0] as f64 + shape[1] as f64)).sqrt();
        rows.push(Parameter {
            field: "output_groups",
            ..Parameter::new(OUTPUT_GROUPS, shape, Init::Uniform { lo: -bound, up: bound })
                .with_presence(asked(self.output_groups.is_some()))
        });

        let latent = self.latent.as_ref();
        let (rate, width) =
            latent.and_then(|latent| Some((latent.compression?.rate, latent.compressed_size()))).unzip();
        let (rate, width, input) = (rate.unwrap_or(1), width.unwrap_or(1), self.resolved_key_size());
        let bound = (6.0 / (width as f64 + input as f64)).sqrt();
        let linear = (vec![width, input], Init::Uniform { lo: -bound, up: bound });
        let place = (vec![rate, width], Init::Const(0.0));
        let shapes = [linear.clone(), linear, place, (vec![d], Init::Const(1.0))];
        rows.extend(COMPRESSOR.into_iter().zip(shapes).map(|(name, (shape, init))| Parameter {
            field: "compression",
            heads: HeadKind::KeyValue,
            ..Parameter::new(name, shape, init).with_presence(asked(self.compression().is_some()))
        }));

        // What the projections of these layers give is not what limits are of.
        let is_other =
            self.latent.is_some() || self.global_tokens || matches!(self.position, Position::Disentangled(_));
        let is_limited = !is_other && self.key_value_source == KeyValueSource::Projections;
        rows.extend(LIMITS.as_flattened().iter().enumerate().map(|(i, name)| {
            let other = LIMITS.as_flattened()[i ^ 1];
            Parameter {
                field: "limits",
                init: None,
                heads: if (4..12).contains(&i) { HeadKind::KeyValue } else { HeadKind::Query },
                ..Parameter::new(name, [], Init::Const(0.0)).with_presence(if is_limited {
                    Presence::Together(other)
                } else {
                    Presence::Absent
                })
            }
        }));

        let context_norm = self.context_norm.as_ref().filter(|norm| norm.weighted);
        rows.extend(norm_rows(CONTEXT_NORM_PARTS, "context_norm", context_norm, [h, d_v]));
        rows
    }
}

/// The rows of the weight and of the bias of a norm of `heads` heads of `size` elements.
fn norm_rows(
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
