//! Infers the configuration of a layer from the shapes of its weights.

use crate::checkpoint::detect::detect;
use crate::checkpoint::forms::Shapes;
use crate::checkpoint::projection::HeadSide;
use crate::checkpoint::source::{AnySource, WeightSource};
use crate::config::{AttentionConfig, KeyValueSource, ProjectionBias};
use crate::error::{Error, Result};
use crate::families::layout::Layout;
use crate::families::layouts::LAYOUTS;
use crate::families::table::Unseen;
use crate::mask::AttentionMask;

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
    let found = match layout.qkv.is_latent() {
        true => Some("latent attention".to_string()),
        _ if let Some(models) = sharing_names(source, layout, num_attention_heads)? => {
            Some(format!("names that {models} share"))
        }
        _ if layout.name == LAYOUTS[0].name && in_block => Some(format!("a layer after `{PRE_NORM}`, as in Llama")),
        _ => unseen.positions.map(|model_type| format!("layout `{}`, as in {model_type}", layout.name)),
    };
    if let Some(found) = found {
        let expected = "the config.json that says so, by `Checkpoint::attention` or `ModelAttention::load`, or an \
                        `AttentionConfig` with the position scheme and the mask of the model";
        let what = format!("`{}`, whose family no weight shows,", source.full_name(""));
        return Err(Error::value(what, found, expected));
    }
    let config = infer(source, num_attention_heads)?;
    let is_causal = unseen.is_causal && !layout.qkv.is_cross();
    Ok(if is_causal { config.with_mask(AttentionMask::causal()) } else { config })
}

/// Models that share the names of a layout, and order the rows differently or have another mask or rotation.
fn sharing_names(source: &dyn WeightSource, layout: &Layout, heads: usize) -> Result<Option<&'static str>> {
    Ok(match layout.name {
        // With fewer key-value heads it is GPT-BigCode.
        "gpt-bigcode" if infer(source, heads)?.resolved_num_key_value_heads() == heads => {
            Some("GPT-BigCode, Qwen 1 and nanoGPT")
        }
        "molmo-vision" => Some("the vision tower of Molmo 2 and Llama as Meta and Mistral publish it"),
        _ => None,
    })
}

/// The norm before attention in a block of Llama.
const PRE_NORM: &str = "input_layernorm";

/// The part of [`infer_config`] that shapes show, of a layer of any family.
pub(crate) fn infer(source: &dyn WeightSource, num_attention_heads: usize) -> Result<AttentionConfig> {
    let layout = detect(source)?;
    let o = if layout.o.is_absent() { (0, 0) } else { layout.o.sizes(source, HeadSide::Inputs)? };
    layout.qkv.infer(&Shapes { source, layout, heads: num_attention_heads, bias: biases(source, layout), o })
}

/// The biases that the layer has.
pub(crate) fn biases(source: &dyn WeightSource, layout: &Layout) -> ProjectionBias {
    let [q, k, v, o] = layout.bias_names().map(|name| !name.is_empty() && source.contains(name));
    let has_keys = !matches!(layout.qkv.key_value_source(), KeyValueSource::Shared { .. });
    ProjectionBias { q, k: k && has_keys && layout.qkv.has_key_bias(), v: v && has_keys, o }
}
