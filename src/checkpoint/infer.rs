//! Infers the configuration of a layer from the shapes of its weights.

use crate::attention::mechanisms::{BIAS_KV, COMPRESSOR, OUTPUT_GROUPS, VALUE_CONVOLUTION};
use crate::attention::mechanisms::{KeyCompression, OutputGroups};
use crate::checkpoint::detect::detect;
use crate::checkpoint::source::{AnySource, WeightSource, wrong_shape};
use crate::config::{AttentionConfig, KeyValueSource, LatentAttention, ProjectionBias, Scoring};
use crate::error::{Error, Result};
use crate::families::layout::{ApartNames, GateNames, LatentNames, Layout, LinearNames, Orientation, QkvNames};
use crate::families::layouts::LAYOUTS;
use crate::families::table::Unseen;
use crate::mask::AttentionMask;
use crate::weights::SCORE;

/// The configuration that fits the weights that `source` points at, given the number of heads, which shapes do not show
/// unless the layout has a dimension for them.
///
/// It holds what weights show: sizes, biases, and a causal mask where all models with the layout have one (GPT-2).
/// Windows, the factor on the scores, softcaps and formulas of norms are in no weight: for a layer of a model that has
/// a `config.json`, use [`Checkpoint::attention`](crate::checkpoint::Checkpoint::attention).
///
/// A layer that projects queries alone is taken to have as many key-value heads as query heads.
///
/// In a fused layout, there are taken to be as many query rows as the output projection has inputs; keys and values
/// share the rest equally.
///
/// # Errors
/// The errors of [`detect`]; sizes that the number of heads does not divide; a layer of a decoder or encoder whose
/// positions no weight shows (Llama, Phi, GPT-NeoX, ModernBERT, latent attention).
pub fn infer_config(source: &impl WeightSource, num_attention_heads: usize) -> Result<AttentionConfig> {
    let source = &AnySource::new(source);
    let layout = detect(source)?;
    let unseen = Unseen::in_layout(layout);
    let in_block = source.full_name("").rsplit_once('.').is_some_and(|(block, layer)| {
        layer == "self_attn" && source.root().contains(&format!("{block}.{PRE_NORM}.weight"))
    });
    let found = match layout.qkv {
        QkvNames::Latent(_) => Some("latent attention".to_string()),
        _ if layout.name == LAYOUTS[0].name && in_block => Some(format!("a layer after `{PRE_NORM}`, as in Llama")),
        _ => unseen.positions.map(|model_type| format!("layout `{}`, as in {model_type}", layout.name)),
    };
    if let Some(found) = found {
        let expected = "the config.json that says so, by `Checkpoint::attention` or `ModelAttention::load`, or an \
                        `AttentionConfig` with the position scheme and the mask of the model";
        let what = format!("`{}`, whose positions no weight shows,", source.full_name(""));
        return Err(Error::value(what, found, expected));
    }
    let config = infer(source, num_attention_heads)?;
    let is_causal = unseen.is_causal && !matches!(layout.qkv, QkvNames::Pair(..));
    Ok(if is_causal { config.with_mask(AttentionMask::causal()) } else { config })
}

/// The norm before attention in a block of Llama.
const PRE_NORM: &str = "input_layernorm";

/// The part of [`infer_config`] that shapes show, of a layer of any family.
pub(crate) fn infer(source: &dyn WeightSource, num_attention_heads: usize) -> Result<AttentionConfig> {
    let layout = detect(source)?;
    let o = if layout.o.is_absent() { (0, 0) } else { out_in(source, layout.o.weight, layout.o.orientation, false)? };
    let into = |names: LinearNames| out_in(source, names.weight, names.orientation, true);
    let [q, k, v] = match layout.qkv {
        QkvNames::Latent(names) => return infer_latent(source, layout, names, o, num_attention_heads),
        QkvNames::Split(names) if layout.gate == GateNames::InQuery => {
            let (rows, input) = into(names[0])?;
            [(rows / 2, input), into(names[1])?, into(names[2])?]
        }
        QkvNames::Split([q, k, v]) => {
            let k = into(k)?;
            let or_square = |names: LinearNames, n| if names.is_absent() { Ok((n, n)) } else { into(names) };
            [or_square(q, k.0)?, k, or_square(v, k.1)?]
        }
        QkvNames::SplitFusedBias(names, _) => {
            let into = |name: &str| out_in(source, name, Orientation::OutIn, true);
            [into(names[0])?, into(names[1])?, into(names[2])?]
        }
        QkvNames::Fused(LinearNames { weight, orientation, .. }, _) => {
            let gate = if layout.gate == GateNames::BeforeQuery { o.1 } else { 0 };
            fused(source, weight, orientation, [o.1, gate], num_attention_heads)?
        }
        QkvNames::FusedSplitBias(weight, ..) => {
            fused(source, weight, Orientation::OutIn, [o.1, 0], num_attention_heads)?
        }
        QkvNames::Pair(q, kv) => {
            let (rows, input) = into(kv)?;
            [into(q)?, (rows / 2, input), (rows / 2, input)]
        }
        QkvNames::KeysAsValues([q, k]) => [into(q)?, into(k)?, into(k)?],
        QkvNames::Apart(ApartNames { q, k, v, sines }) => {
            let sines = usize::from(sines.is_some());
            let inputs = 1 + usize::from(source.contains(q[1].weight)) + sines;
            let all = |(rows, input): (usize, usize), n| (rows.saturating_mul(1 + sines), input.saturating_mul(n));
            [all(into(q[0])?, inputs), all(into(k[0])?, 2), into(*v)?]
        }
        // No shape shows how many key-value heads the other layer has.
        QkvNames::Query(q) => [into(q)?; 3],
    };
    // Without an output projection the width of the model is that of its queries, that of the output of its values.
    let [width, output] = if layout.o.is_absent() { [q.1, v.0] } else { [o.0; 2] };
    let config = AttentionConfig::new(width, num_attention_heads).with_output_size(output);
    let config = config
        .with_bias(biases(source, layout))
        .with_add_bias_kv(BIAS_KV.iter().any(|name| layout.held_name(|name| source.contains(name), name).is_some()));
    let config = config.with_query_size(q.1).with_key_size(k.1).with_value_size(v.1);
    let config = config.with_key_value_source(match layout.qkv {
        QkvNames::KeysAsValues(_) => KeyValueSource::KeysAsValues,
        QkvNames::Query(_) => KeyValueSource::Shared { layer: None },
        _ => KeyValueSource::Projections,
    });
    if num_attention_heads == 0 && q.0 == 0 {
        // All heads are pruned: no shape shows their size, and nothing needs it. This size has room for any rotation.
        return Ok(config.with_head_dim(256));
    }
    let quotient = |total: usize, divisor: usize, of: &str| {
        if divisor > 0 && total.is_multiple_of(divisor) {
            return Ok(total / divisor);
        }
        Err(Error::config("num_attention_heads", num_attention_heads, format!("a divisor of {total}, {of}")))
    };
    let head_dim = quotient(q.0, num_attention_heads, "the rows of the query projection")?;
    let kv_heads = quotient(k.0, head_dim, "the rows of the key projection")?;
    let mut config = config.with_head_dim(head_dim).with_num_key_value_heads(kv_heads).with_value_head_dim(quotient(
        v.0,
        kv_heads,
        "the rows of the value projection",
    )?);
    if source.contains(SCORE) {
        config = config.with_scoring(Scoring::Additive);
    }
    if let Some(name) = layout.held_name(|name| source.contains(name), VALUE_CONVOLUTION) {
        let shape = source.shape(&name)?;
        config = config.with_value_convolution(shape.and_then(|shape| shape.last().copied()));
    }
    config.validate()?;
    Ok(config)
}

/// The configuration of latent attention, whose output projection is `(rows, inputs)`.
fn infer_latent(
    source: &dyn WeightSource,
    layout: &Layout,
    names: &LatentNames,
    (output, context): (usize, usize),
    heads: usize,
) -> Result<AttentionConfig> {
    let into = |names: LinearNames| out_in(source, names.weight, names.orientation, true);
    let [q, kv_a] = [into(names.q)?, into(names.kv_a)?];
    let q_a = names.q_a.map(|(linear, _)| into(linear)).transpose()?;
    if names.kv_b.is_absent() {
        return infer_multi_query(source, (layout, names), [(output, context), q, kv_a], q_a, heads);
    }
    let kv_b = into(names.kv_b)?;
    let per_head = |total: usize, name: &str| match total.checked_div(heads) {
        Some(size) if size * heads == total => Ok(size),
        // Without heads no shape shows their sizes, and nothing needs them.
        None if total == 0 => Ok(1),
        _ => {
            let allowed = format!("a divisor of {total}, the rows of `{name}`");
            Err(Error::config("num_attention_heads", heads, allowed))
        }
    };
    let value = per_head(context, "o_proj")?;
    let less = |from: usize, of: usize, name: &str, shape: (usize, usize)| {
        let expected = format!("more than {of} rows");
        let found = || Error::shape(source.full_name(name), &[shape.0, shape.1], expected.clone());
        from.checked_sub(of).ok_or_else(found)
    };
    let rope = less(kv_a.0, kv_b.1, names.kv_a.weight, kv_a)?;
    let [nope, all] = [per_head(kv_b.0, names.kv_b.weight)?, per_head(q.0, names.q.weight)?];
    let nope = if heads == 0 { 1 } else { less(nope, value, names.kv_b.weight, kv_b)? };
    if heads > 0 && nope + rope != all {
        let expected = format!("({heads} · ({nope} + {rope}), {})", q.1);
        return Err(Error::shape(source.full_name(names.q.weight), &[q.0, q.1], expected));
    }
    let mut latent = LatentAttention::new(kv_b.1, nope, rope, value);
    latent.q_lora_rank = q_a.map(|(rank, _)| rank);
    let config = AttentionConfig::new(output, heads).with_bias(biases(source, layout)).with_latent(latent);
    let mut config = config.with_query_size(q_a.map_or(q.1, |(_, input)| input)).with_key_size(kv_a.1);
    if heads == 0 {
        config = config.with_head_dim(nope + rope);
    }
    config.validate()?;
    Ok(config)
}

/// The configuration of latent attention whose latents are the one key and value of all heads. No shape shows which of
/// their elements are rotated. `(rows, inputs)` are those of the output projection, and of the last of the queries and
/// of the latents; `q_a` those of the first of the queries.
fn infer_multi_query(
    source: &dyn WeightSource,
    (layout, names): (&Layout, &LatentNames),
    [(output, context), q, kv_a]: [(usize, usize); 3],
    q_a: Option<(usize, usize)>,
    heads: usize,
) -> Result<AttentionConfig> {
    let held = |name: &str| layout.held_name(|name| source.contains(name), name);
    let shape = |name: &str| -> Result<Option<[usize; 2]>> {
        let Some(name) = held(name) else { return Ok(None) };
        let shape = source.shape(&name)?.unwrap_or_default();
        let expected = || Error::shape(source.full_name(&name), &shape, "two dimensions of at least 1");
        shape[..].try_into().ok().filter(|shape: &[usize; 2]| !shape.contains(&0)).map(Some).ok_or_else(expected)
    };
    let (d, mut latent) = (kv_a.0, LatentAttention::new_multi_query(kv_a.0, 0));
    if heads.checked_mul(d) != Some(q.0) {
        let expected = format!("({heads} · {d}, {}): heads of as many elements as their key", q.1);
        return Err(Error::shape(source.full_name(names.q.weight), &[q.0, q.1], expected));
    }
    latent.q_lora_rank = q_a.map(|(rank, _)| rank);
    let blocks = shape(COMPRESSOR[2])?.map(|[rate, width]| KeyCompression::new(rate, Some(width) == d.checked_mul(2)));
    let config = AttentionConfig::new(output, heads).with_bias(biases(source, layout)).with_latent(latent);
    let mut config = config.with_key_compression(blocks);
    if let Some([rows, input]) = shape(OUTPUT_GROUPS)? {
        let count = q.0 / input;
        config = config.with_output_groups(OutputGroups::new(count, context.checked_div(count).unwrap_or(rows)));
    }
    config = config.with_query_size(q_a.map_or(q.1, |(_, input)| input)).with_key_size(kv_a.1);
    config.validate()?;
    Ok(config)
}

/// The biases that the layer has.
pub(crate) fn biases(source: &dyn WeightSource, layout: &Layout) -> ProjectionBias {
    let [q, k, v, o] = layout.bias_names().map(|name| !name.is_empty() && source.contains(name));
    let k = k && !matches!(layout.qkv, QkvNames::FusedSplitBias(..) | QkvNames::Query(_));
    ProjectionBias { q, k, v: v && !matches!(layout.qkv, QkvNames::Query(_)), o }
}

/// `(rows, inputs)` of query, key and value in one weight, which has rows of a gate beside them.
fn fused(
    source: &dyn WeightSource,
    name: &str,
    orientation: Orientation,
    [query_rows, gate_rows]: [usize; 2],
    heads: usize,
) -> Result<[(usize, usize); 3]> {
    let (rows, input) = out_in(source, name, orientation, true)?;
    let rest = rows.checked_sub(query_rows.saturating_add(gate_rows));
    let rest = rest.filter(|rest| rest.is_multiple_of(2) && (*rest > 0 || heads == 0));
    let rest = rest
        .ok_or_else(|| wrong_shape(source.full_name(name), &[rows, input], &[query_rows.saturating_mul(3), input]))?;
    Ok([(query_rows, input), (rest / 2, input), (rest / 2, input)])
}

/// The shape of a weight as `(out, in)`, whatever its orientation.
fn out_in(source: &dyn WeightSource, name: &str, orientation: Orientation, into_heads: bool) -> Result<(usize, usize)> {
    let shape = source.shape(name)?.ok_or_else(|| Error::Tensor {
        name: source.full_name(name),
        found: "is in a source that does not tell shapes, such as `VarBuilder::from_varmap`".to_string(),
        expected: "one that does: `VarMapSource::new(&map)`, a `Checkpoint`, or another `VarBuilder`".to_string(),
    })?;
    match (shape.as_slice(), orientation, into_heads) {
        ([out, input, ones @ ..], Orientation::Pointwise(n), _) if ones == vec![1; n] => Ok((*out, *input)),
        (&[out, input, 1], Orientation::Grouped, _) if input > 0 && out.is_multiple_of(input) => Ok((out, out)),
        (&[out, input], Orientation::OutIn, _) | (&[input, out], Orientation::InOut | Orientation::Kernel, _) => {
            Ok((out, input))
        }
        (&[input, h, d], Orientation::Kernel, true) => Ok((h * d, input)),
        (&[out, h, d], Orientation::OutHeads, false) | (&[h, d, out], Orientation::Kernel, false) => Ok((out, h * d)),
        _ => Err(Error::Tensor {
            name: source.full_name(name),
            found: format!("has shape {shape:?}"),
            expected: "a projection's weight".to_string(),
        }),
    }
}
