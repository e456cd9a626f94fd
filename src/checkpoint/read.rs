//! Reads the weights of an attention layer in any known layout.

use candle_core::Tensor;

use crate::attention::mechanisms::{BIAS_KV, GateOver};
use crate::checkpoint::detect::detect;
use crate::checkpoint::forms::Reader;
use crate::checkpoint::projection::Rows;
use crate::checkpoint::source::{AnySource, WeightSource, join};
use crate::config::{AttentionConfig, CallInput};
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layout::{
    DISTANCE_EMBEDDINGS, GateNames, INDEXER, Layout, PATCH_BIAS, PositionName, PositionRole, ROTARY_FREQUENCIES,
    name_of_head,
};
use crate::position::Position;
use crate::weights::{AttentionWeights, LinearWeights, Parameter, Parameters, Presence, QkvWeights};

impl AttentionWeights {
    /// Reads the layer that `source` points at, in any known layout, and returns that layout.
    ///
    /// Biases are read if the checkpoint has them, whatever `config.bias` and `config.add_bias_kv` are.
    ///
    /// # Errors
    /// The errors of [`detect`]; a tensor whose shape does not fit the configuration, named.
    pub fn read(config: &AttentionConfig, source: &dyn WeightSource) -> Result<(Self, &'static Layout)> {
        Self::read_from(config, source, source)
    }

    /// Reads the layer that `source` points at for a loader that puts low-rank changes beside its projections, by
    /// `MultiHeadAttention::with_changes`: these are read without the changes, and what has no
    /// place for one beside it, such as the weights of positions, with them.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub(crate) fn read_base(config: &AttentionConfig, source: &AnySource) -> Result<(Self, &'static Layout)> {
        let base = if has_places(source)? { source.base() } else { source.clone() };
        Self::read_from(config, &base, source)
    }

    /// Reads the projections from one source and everything else from the other.
    pub(crate) fn read_from(
        config: &AttentionConfig,
        projections: &dyn WeightSource,
        source: &dyn WeightSource,
    ) -> Result<(Self, &'static Layout)> {
        config.validate()?;
        let layout = detect(source)?;
        let inputs = [config.resolved_query_size(), config.resolved_key_size(), config.resolved_value_size()];
        let reader = Reader { source: projections, layout, config, rows: Rows::from_config(config), inputs };
        ensure!(layout.qkv.is_latent() || config.latent.is_none(), reader.wrong("latent", "set", "none"));
        let (qkv, gate) = match (layout.qkv.read(&reader)?, layout.gate) {
            (QkvWeights::Packed(all), GateNames::BeforeQuery) => {
                let (gate, rows) = (reader.context().count(), reader.counts().iter().sum());
                (QkvWeights::Packed(all.narrow(gate, rows)?), Some(all.narrow(0, gate)?))
            }
            (qkv, _) => (qkv, read_gate(&reader)?),
        };
        // A mechanism may make the input of the output projection.
        let context = Some(reader.context()).filter(|context| context.count() == config.context_size());
        let o = match &qkv {
            QkvWeights::Split(parts) if layout.o.is_absent() => {
                reader.identity(config.resolved_output_size(), &parts[1].weight)?
            }
            _ => reader.output(context.unwrap_or(Rows::whole(config.context_size())))?,
        };
        check_rotary(source, config)?;
        if layout.holds_indexer(source) && config.max_keys().is_none() {
            let allowed = format!("set: the checkpoint holds `{}`", source.full_name(INDEXER));
            return Err(Error::config("max_keys", "none", allowed));
        }
        let parameters = read_parameters(source, config, layout)?;
        let position = read_position(source, config, layout)?;
        Ok((Self { qkv, o, gate, parameters, position }, layout))
    }
}

/// Reads the projection of the gate if there is one, whose formula comes from the configuration.
fn read_gate(reader: &Reader) -> Result<Option<LinearWeights>> {
    let Reader { source, layout, config, .. } = *reader;
    let in_query = layout.gate == GateNames::InQuery;
    let names = layout.gate_projection();
    let held = names.filter(|names| source.contains(names.weight));
    let Rows { heads, dim } = reader.context();
    match (config.output_gate(), held) {
        (None, None) if !in_query => Ok(None),
        (None, _) => {
            let name = held.map_or(layout.required()[0], |names| names.weight);
            let allowed = format!("set: `{}` holds a gate", source.full_name(name));
            Err(Error::config("output_gate", "none", allowed))
        }
        (Some(gate), None) if in_query && gate.over != GateOver::Element => {
            Err(Error::config("output_gate.over", "a head", "an element: the query projection holds the gate"))
        }
        (Some(_), None) if in_query => Ok(None),
        (Some(_), None) => {
            let name = source.full_name(names.map_or("gate_proj.weight", |names| names.weight));
            Err(Error::MissingTensor { name, why: "the configuration sets output_gate".to_string() })
        }
        (Some(gate), Some(names)) => {
            let width = reader.inputs[0];
            let rows = gate.rows(heads, dim);
            if !names.bias_apart() {
                return reader.linear(names, Rows::whole(rows), width).map(Some);
            }
            let bias = source.get(names.bias, &[heads])?;
            if bias.track_op() {
                let expected = "a fixed tensor: one bias for all gates of a head cannot be trained yet";
                return Err(Error::tensor(source.full_name(names.bias), "is a variable", expected));
            }
            let bias = bias.reshape((heads, 1))?.broadcast_as((heads, rows / heads.max(1)))?.reshape(rows)?;
            Ok(Some(LinearWeights { weight: source.get(names.weight, &[rows, width])?, bias: Some(bias) }))
        }
    }
}

/// Whether low-rank changes have places beside the projections of the layer.
pub(super) fn has_places(source: &dyn WeightSource) -> Result<bool> {
    Ok(detect(source)?.qkv.has_places())
}

fn check_rotary(source: &dyn WeightSource, config: &AttentionConfig) -> Result<()> {
    if source.contains(ROTARY_FREQUENCIES) && !matches!(config.position, Position::Rotary(_)) {
        let allowed = format!("rotary: the checkpoint holds `{}`", source.full_name(ROTARY_FREQUENCIES));
        return Err(Error::config("position", format!("{:?}", config.position), allowed));
    }
    Ok(())
}

/// Reads the parameters beside the projections. Their formulas come from the configuration, which must ask for each
/// that there is.
pub(crate) fn read_parameters(
    source: &dyn WeightSource,
    config: &AttentionConfig,
    layout: &Layout,
) -> Result<Parameters> {
    let holds = |name: &str| source.contains(name);
    let mut parameters = Parameters::default();
    for row in config.parameters() {
        let missing = || {
            let name = layout.parameter_name(row.name).unwrap_or(row.name.to_string());
            Err(row.missing(source.full_name(&name)))
        };
        match (row.presence, layout.held_name(holds, row.name)) {
            (Presence::Absent, Some(name)) => {
                let allowed = format!("set: the checkpoint holds `{}`", source.full_name(&name));
                return Err(Error::config(row.field, "none", allowed));
            }
            (_, Some(name)) => parameters.insert(row.name, read_parameter(source, &row, &name)?),
            (Presence::Required, None) => return missing(),
            (Presence::Together(other), None) if layout.held_name(holds, other).is_some() => return missing(),
            _ => {}
        }
    }
    Ok(parameters)
}

fn read_parameter(source: &dyn WeightSource, row: &Parameter, name: &str) -> Result<Tensor> {
    if let (Some(per_head), true) = (&row.shape_per_head, source.contains(&name_of_head(name, 0))) {
        let weights = (0..per_head[0]).map(|head| source.get(&name_of_head(name, head), &row.shape));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        if weights.iter().any(Tensor::track_op) {
            let expected = "fixed weights: norms of a module for each head cannot be trained yet";
            return Err(Error::tensor(source.full_name(&name_of_head(name, 0)), "is a variable", expected));
        }
        return Ok(Tensor::stack(&weights, 0)?);
    }
    let found = source.shape(name)?;
    let over = |found: &str, allowed: &str, elements: usize, heads: &str| {
        let allowed = format!("{allowed}: `{}` has {elements} elements, {heads}", source.full_name(name));
        let field = match row.field {
            "qk_norm" => "qk_norm.over",
            "v_norm" => "v_norm.over",
            field => field,
        };
        Err(Error::config(field, found, allowed))
    };
    match (found.as_deref(), &*row.shape, row.shape_per_head.as_deref()) {
        (Some([_, _]), _, Some(per_head)) => source.get(name, per_head),
        (Some(&[all]), _, Some(&[heads, d])) if all == heads * d && all != d => {
            over("one head", "all heads", all, &format!("{heads} heads of {d}"))
        }
        (Some(&[one]), &[all], None) if row.field.ends_with("_norm") && one < all && all.is_multiple_of(one.max(1)) => {
            over("all heads", "one head", one, "a head's")
        }
        _ => source.get(name, &row.shape),
    }
}

impl Layout {
    /// The name of the table of biases of patches that `source` holds, if it holds one.
    pub(crate) fn patch_table_in(&self, source: &dyn WeightSource) -> Option<&'static str> {
        let tables = self.position.iter().filter(|name| name.scheme == PATCH_BIAS);
        tables.map(|name| name.stored).find(|table| source.contains(table))
    }
}

/// Reads the weights of the layer's position scheme that `source` holds. Weights that several layers share are stored
/// elsewhere, and are read where the prefix of the layer is known.
pub(crate) fn read_position(
    source: &dyn WeightSource,
    config: &AttentionConfig,
    layout: &Layout,
) -> Result<Parameters> {
    let mut weights = Parameters::default();
    let parameters = config.position.scheme().parameters(&config.sizes());
    for parameter in &parameters {
        let name = layout.position_name(parameter.name);
        let held = name.filter(|name| parameter.presence == Presence::Required || source.contains(name));
        match held {
            Some(name) if layout.is_position_kernel(parameter.name) => {
                let (out, input) = (parameter.shape[0], parameter.shape[1]);
                let stored = [input, config.num_attention_heads, config.resolved_head_dim()];
                weights.insert(parameter.name, source.get_reshaped(&name, &stored, &[input, out])?.t()?);
            }
            Some(name) => weights.insert(parameter.name, source.get(&name, &parameter.shape)?),
            None if parameter.presence == Presence::Required => {
                let allowed = format!("another: layout `{}` has no `{}`", layout.name, parameter.name);
                return Err(Error::config("position", &config.position, allowed));
            }
            None => {}
        }
    }
    // A weight that the configured scheme has no use for means that the configuration is wrong.
    let used = |row: &PositionName| {
        let alone = row.role == PositionRole::Relative;
        let mut names = layout.position.iter().filter(|name| if alone { *name == row } else { name.role == row.role });
        names.any(|name| parameters.iter().any(|parameter| parameter.name.starts_with(name.scheme)))
    };
    // The name of Transformer-XL's second vector may be that of a value that every query sees.
    let telling = |name: &&PositionName| name.scheme != DISTANCE_EMBEDDINGS && !BIAS_KV.contains(&name.stored);
    for name in layout.position.iter().filter(telling) {
        let (what, tensor) = match name.role {
            PositionRole::BiasTable => ("a table of biases", name.stored.to_string()),
            PositionRole::Disentangled => ("disentangled attention", join(name.stored, "weight")),
            PositionRole::Relative | PositionRole::RelativeKernel => ("relative positions", name.stored.to_string()),
        };
        // The call gives biases in place of the table (UDOP).
        let is_given =
            name.role == PositionRole::BiasTable && config.requires.contains(&CallInput::ScoreBias { scaled: false });
        if !used(name) && !is_given && source.contains(&tensor) {
            let allowed = format!("one with {what}, because the checkpoint holds `{}`", source.full_name(&tensor));
            return Err(Error::config("position", &config.position, allowed));
        }
    }
    Ok(weights)
}
