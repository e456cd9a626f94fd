//! The norm of the context, between the heads and the gate (BitNet).

use candle_attention_kernels::{Isa, Team};
use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::attention::mechanism::{LayerParts, Mechanism, MechanismRow, Routes, boxed};
use crate::attention::parameters::norm_rows;
use crate::attention::steps::{norm_parameters, normalize, unit};
use crate::config::{AttentionConfig, HeadNorm, MechanismConfig, NormOver};
use crate::error::{Error, Result};
use crate::weights::{NormWeights, Parameters};

/// The norm of the context.
pub(crate) const CONTEXT_NORM: &str = "attn_sub_norm";
/// The weight and the bias of that norm.
pub(crate) const CONTEXT_NORM_PARTS: [&str; 2] = ["attn_sub_norm.weight", "attn_sub_norm.bias"];

pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| {
        let norm = config.context_norm().filter(|norm| norm.weighted);
        let sizes = [config.num_attention_heads, config.resolved_value_head_dim()];
        norm_rows(CONTEXT_NORM_PARTS, "context_norm", norm.as_ref(), sizes).into()
    },
    from_layer: |layer| ContextNorm::from_layer(layer).map(boxed),
    ..MechanismRow::NONE
};

/// The norm of the context in a configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
struct ContextNormConfig(HeadNorm);

impl AttentionConfig {
    /// Sets the norm of the context, between the heads and the gate (BitNet).
    #[must_use]
    pub fn with_context_norm(mut self, context_norm: impl Into<Option<HeadNorm>>) -> Self {
        self.mechanisms.set(context_norm.into().map(ContextNormConfig));
        self
    }

    /// The norm of the context, if there is one.
    pub fn context_norm(&self) -> Option<HeadNorm> {
        self.mechanisms.get::<ContextNormConfig>().map(|config| config.0)
    }
}

impl MechanismConfig for ContextNormConfig {
    fn validate(&self, _: &AttentionConfig) -> Result<()> {
        self.0.validate(|| "context_norm eps".to_string())
    }

    fn check_pruning(&self, parameters: &Parameters) -> Result<()> {
        if self.0.over != NormOver::AllHeads && parameters.get(CONTEXT_NORM_PARTS[1]).is_none() {
            return Ok(());
        }
        let expected =
            "a norm per head without a bias, because others mix heads or give a pruned head a non-zero output";
        Err(Error::value("context_norm of a layer to prune", "another norm", expected))
    }
}

/// The norm and its weights, which are ones for a norm without weights.
struct ContextNorm {
    norm: HeadNorm,
    weights: NormWeights,
    /// Whether a gate multiplies the normalized context.
    is_gated: bool,
}

impl ContextNorm {
    fn from_layer(LayerParts { config, parameters, like }: LayerParts) -> Result<Option<Self>> {
        let Some(norm) = config.context_norm() else { return Ok(None) };
        let weights = match parameters.norm(CONTEXT_NORM) {
            Some(learned) if norm.weighted => learned,
            _ => unit(&norm, [config.num_attention_heads, config.resolved_value_head_dim()], like)?,
        };
        Ok(Some(Self { norm, weights, is_gated: config.projects_more() }))
    }
}

impl Mechanism for ContextNorm {
    fn routes(&self) -> Routes {
        // A token without any key, whose context is zeros, has to give the same whatever its input is.
        Routes { rows: !(self.is_gated && self.weights.bias.is_some()), ragged: true }
    }

    fn has_context_stage(&self) -> bool {
        true
    }

    fn context(&self, _: &MultiHeadAttention, context: Tensor, _: &Tensor) -> Result<Tensor> {
        normalize(&context, &self.norm, &self.weights)
    }

    fn context_in_place(&self, _: &MultiHeadAttention, team: Team, context: &mut [f32], _: &[f32]) -> Result<()> {
        norm_parameters(&self.norm, &self.weights).normalize_rows(Isa::detect()?, team, context, None)
    }
}
