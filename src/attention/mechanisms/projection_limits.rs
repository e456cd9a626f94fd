//! Limits on what goes into projections and what comes out of them, both of which are clamped (Gemma 4).
//!
//! They are beside the projections: a low-rank change, a product in few bits or a module of the caller is inside of
//! them, as it is in the layers whose checkpoints have limits.

use candle_core::{DType, Device, Tensor};
use candle_nn::Init;

use crate::attention::mechanism::{Mechanism, MechanismRow, Names, Routes, boxed};
use crate::config::{AttentionConfig, KeyValueSource};
use crate::error::{Error, Result};
use crate::position::Position;
use crate::weights::{HeadKind, Parameter, Parameters, Presence};

/// The limits on the inputs and on the outputs of the projections of queries, keys, values and the output, `()`.
pub(crate) const PROJECTION_LIMITS: [[&str; 4]; 4] = [
    ["q_proj.input_min", "q_proj.input_max", "q_proj.output_min", "q_proj.output_max"],
    ["k_proj.input_min", "k_proj.input_max", "k_proj.output_min", "k_proj.output_max"],
    ["v_proj.input_min", "v_proj.input_max", "v_proj.output_min", "v_proj.output_max"],
    ["o_proj.input_min", "o_proj.input_max", "o_proj.output_min", "o_proj.output_max"],
];

/// Every limit has its own name in all layouts.
const NAMES: [Names; 16] = {
    let (mut names, mut i): ([Names; 16], usize) = ([("", &[]); 16], 0);
    while i < names.len() {
        names[i].0 = PROJECTION_LIMITS[i / 4][i % 4];
        i += 1;
    }
    names
};

/// A layer has limits if its checkpoint holds them; no configuration says so.
pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| {
        PROJECTION_LIMITS.as_flattened().iter().enumerate().map(|(i, name)| row(config, i, name)).collect()
    },
    names: &NAMES,
    from_layer: |layer| ProjectionLimits::from_parameters(layer.parameters).map(boxed),
    ..MechanismRow::NONE
};

/// The row of the `i`-th limit.
fn row(config: &AttentionConfig, i: usize, name: &'static str) -> Parameter {
    // Layers with projections of other names, or whose projections return something else.
    let is_other = config.latent.is_some()
        || config.global_tokens()
        || matches!(config.position, Position::Disentangled(_))
        || config.key_value_source != KeyValueSource::Projections;
    let other = PROJECTION_LIMITS.as_flattened()[i ^ 1];
    Parameter {
        field: "limits",
        init: None,
        heads: if (4..12).contains(&i) { HeadKind::KeyValue } else { HeadKind::Query },
        ..Parameter::new(name, [], Init::Const(0.0)).with_presence(if is_other {
            Presence::Absent
        } else {
            Presence::Together(other)
        })
    }
}

/// The smallest and the largest input and output of each projection that has limits.
struct ProjectionLimits {
    inputs: [Option<[Tensor; 2]>; 4],
    outputs: [Option<[Tensor; 2]>; 4],
}

impl ProjectionLimits {
    fn from_parameters(parameters: &Parameters) -> Result<Option<Self>> {
        let pair = |names: [&str; 2]| -> Result<Option<[Tensor; 2]>> {
            let [Some(min), Some(max)] = names.map(|name| parameters.get(name).cloned()) else { return Ok(None) };
            check_limits(names, [&min, &max])?;
            Ok(Some([min, max]))
        };
        let [mut inputs, mut outputs] = [const { [const { None }; 4] }; 2];
        for (projection, [input_min, input_max, output_min, output_max]) in PROJECTION_LIMITS.into_iter().enumerate() {
            inputs[projection] = pair([input_min, input_max])?;
            outputs[projection] = pair([output_min, output_max])?;
        }
        Ok(inputs.iter().chain(&outputs).any(Option::is_some).then_some(Self { inputs, outputs }))
    }
}

impl Mechanism for ProjectionLimits {
    fn routes(&self) -> Routes {
        Routes::RAGGED
    }

    fn wraps_projections(&self) -> bool {
        true
    }

    fn input(&self, projection: usize, xs: Tensor) -> Result<Tensor> {
        clamp(xs, &self.inputs[projection])
    }

    fn output(&self, projection: usize, ys: Tensor) -> Result<Tensor> {
        clamp(ys, &self.outputs[projection])
    }
}

fn clamp(xs: Tensor, limits: &Option<[Tensor; 2]>) -> Result<Tensor> {
    let Some([min, max]) = limits else { return Ok(xs) };
    let [min, max] = [min.to_dtype(xs.dtype())?, max.to_dtype(xs.dtype())?];
    Ok(xs.broadcast_maximum(&min)?.broadcast_minimum(&max)?)
}

/// Checks that limits are numbers, the lower one first. Infinite ones limit nothing.
fn check_limits(names: [&str; 2], limits: [&Tensor; 2]) -> Result<()> {
    let number = |limit: &Tensor| limit.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.to_scalar::<f64>();
    let (min, max) = (number(limits[0])?, number(limits[1])?);
    if min.partial_cmp(&max).is_some_and(|order| order.is_le()) {
        return Ok(());
    }
    let names = format!("the limits `{}` and `{}`", names[0], names[1]);
    Err(Error::value(names, format!("{min} and {max}"), "two numbers, the lower one first"))
}
