//! `Mechanism`: one thing that a layer may do beyond projecting, scoring, softmax, summing values and projecting back.
//!
//! A layer has a list of its mechanisms, which is empty for most, and a call asks those in the list and no others. Each
//! hook has a default that changes nothing.

use std::sync::Arc;

use candle_attention_kernels::Team;
use candle_core::{DType, Device, Tensor};

use crate::attention::call::OpenCall;
use crate::attention::tokens::{CallTokens, Counted};
use crate::attention::{AttentionInputs, AttentionOptions, AttentionStats, MultiHeadAttention, ObserveOptions};
use crate::config::AttentionConfig;
use crate::error::Result;
use crate::mask::{AttentionMask, AttnShape};
use crate::sdpa::{AttentionOutput, Call};
use crate::weights::{Parameter, Parameters};

/// A row of the table of mechanisms: how a layer gets one.
pub(super) struct MechanismRow {
    /// The tensors that the mechanism has in a layer of a configuration; [absent](crate::weights::Presence::Absent)
    /// where the configuration does not ask for it.
    pub parameters: fn(&AttentionConfig) -> Vec<Parameter>,
    /// The names in published files of its tensors, or of the modules above them, by their own names. Without any they
    /// have their own names in every layout.
    #[cfg_attr(not(feature = "checkpoints"), expect(dead_code, reason = "loaders read it"))]
    pub names: &'static [Names],
    /// Adds to a configuration of the sizes of projections what the shapes of the mechanism's tensors show.
    #[cfg_attr(not(feature = "checkpoints"), expect(dead_code, reason = "loaders call it"))]
    pub infer: fn(AttentionConfig, ShapeOf) -> Result<AttentionConfig>,
    /// The mechanism of a layer, if it has it.
    pub from_layer: fn(LayerParts) -> Result<Option<SharedMechanism>>,
}

impl MechanismRow {
    /// A mechanism that no layer has, without tensors.
    pub const NONE: Self =
        Self { parameters: |_| Vec::new(), names: &[], infer: |config, _| Ok(config), from_layer: |_| Ok(None) };
}

/// The own name of a tensor or a module, and its names in published files.
pub(crate) type Names = (&'static str, &'static [&'static str]);

/// The shape of the tensor of this name, with so many dimensions, if a checkpoint holds it.
pub(crate) type ShapeOf<'a> = &'a dyn Fn(&'static str, usize) -> Result<Option<Vec<usize>>>;

/// The parts of a layer that its mechanisms are made of.
#[derive(Clone, Copy)]
pub(super) struct LayerParts<'a> {
    pub config: &'a AttentionConfig,
    /// The checked parameters.
    pub parameters: &'a Parameters,
    /// A tensor with the dtype and device of the projections.
    pub like: &'a Tensor,
}

/// Erases the type of a mechanism.
pub(super) fn boxed(mechanism: Option<impl Mechanism + 'static>) -> Option<SharedMechanism> {
    mechanism.map(|mechanism| Arc::new(mechanism) as SharedMechanism)
}

/// A mechanism that copies of a layer share.
pub(super) type SharedMechanism = Arc<dyn Mechanism>;

/// The mechanisms of a layer, in the order in which they act.
pub(super) type Mechanisms = Vec<SharedMechanism>;

/// The ways to run a call that a mechanism allows. Padded tensors are always possible.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Routes {
    /// The buffers of the CPU kernel.
    pub rows: bool,
    /// Ragged batches over tensors.
    pub ragged: bool,
}

impl Routes {
    pub(super) const ALL: Self = Self { rows: true, ragged: true };
    pub(super) const RAGGED: Self = Self { rows: false, ragged: true };
}

/// A mechanism of one layer.
pub(super) trait Mechanism: Send + Sync {
    /// The routes of a call with this mechanism.
    fn routes(&self) -> Routes {
        Routes::default()
    }

    /// Checks the inputs and options of a call.
    fn check(&self, _inputs: &AttentionInputs, _options: &AttentionOptions) -> Result<()> {
        Ok(())
    }

    /// Checks the number of keys of a sequence.
    fn check_keys(&self, _keys: usize) -> Result<()> {
        Ok(())
    }

    /// Checks the tokens of a call under its whole mask.
    fn check_tokens(&self, _tokens: &dyn CallTokens, _counted: &Counted, _mask: &AttentionMask) -> Result<()> {
        Ok(())
    }

    /// Checks that the keys and values of a call can be shared with other layers.
    fn check_sharing(&self, _options: &AttentionOptions) -> Result<()> {
        Ok(())
    }

    /// The mask of a call, `given`, joined with `own`, that of the layer; `None`: as usual.
    fn join_masks(
        &self,
        _own: &AttentionMask,
        _given: &AttentionMask,
        _options: &AttentionOptions,
    ) -> Result<Option<AttentionMask>> {
        Ok(None)
    }

    /// The mask and the shape of a padded call with keys beside those of its tokens; `None`: there are none.
    fn add_keys(
        &self,
        _mask: &AttentionMask,
        _shape: AttnShape,
        _device: &Device,
    ) -> Result<Option<(AttentionMask, AttnShape)>> {
        Ok(None)
    }

    /// Keys that stand behind those of the tokens and are seen by every query.
    fn appended_keys(&self) -> usize {
        0
    }

    /// Keys (0) or values (1) `(b, s, h_kv, ·)` with the appended ones. Differentiable.
    fn append(&self, xs: Tensor, _which: usize) -> Result<Tensor> {
        Ok(xs)
    }

    /// Elements of the tokens `xs` `(b, s, key_size)` that are kept behind their latents, `(b, s, 1, n)` in `dtype`, of
    /// a layer with latent attention. Differentiable.
    fn beside_latents(&self, _xs: &Tensor, _dtype: DType) -> Result<Option<Tensor>> {
        Ok(None)
    }

    /// Keys `(b, s, 1, d)`, and those that are made of `parts`, which are kept behind the latents. Differentiable.
    fn extend_keys(&self, keys: Tensor, _parts: &Tensor) -> Result<Tensor> {
        Ok(keys)
    }

    /// The factor on the scores of `s` queries; `None`: that of the configuration.
    fn scale(&self, _s: usize) -> Option<f64> {
        None
    }

    /// The sizes of the call of attention, from those of the tokens.
    fn sizes(&self, sizes: Call) -> Call {
        sizes
    }

    /// Whether [`input`](Self::input) or [`output`](Self::output) changes anything.
    fn wraps_projections(&self) -> bool {
        false
    }

    /// The input of a projection: of queries (0), keys (1), values (2), or the output (3). Differentiable.
    fn input(&self, _projection: usize, xs: Tensor) -> Result<Tensor> {
        Ok(xs)
    }

    /// The output of a projection, numbered as for [`input`](Self::input). Differentiable.
    fn output(&self, _projection: usize, ys: Tensor) -> Result<Tensor> {
        Ok(ys)
    }

    /// Queries, keys and values `(b, s, heads, d)` as attention takes them. Differentiable.
    fn qkv(&self, qkv: [Tensor; 3]) -> Result<[Tensor; 3]> {
        Ok(qkv)
    }

    /// The context of each head as attention returns it → `(b, s_q, h, d_v)`. Differentiable.
    fn heads(&self, _call: &OpenCall, context: Tensor) -> Result<Tensor> {
        Ok(context)
    }

    /// Whether [`context`](Self::context) changes anything.
    fn has_context_stage(&self) -> bool {
        false
    }

    /// The context `(b, s, heads, width)` before the output projection; `query` `(b, s, query_size)` is the input of
    /// the queries. Differentiable.
    fn context(&self, _layer: &MultiHeadAttention, context: Tensor, _query: &Tensor) -> Result<Tensor> {
        Ok(context)
    }

    /// [`context`](Self::context) in place: `context` `(tokens, h · d_v)`, and beside it `projected` `(tokens, width)`
    /// with queries, keys, values and the gates of each token. For mechanisms whose routes include rows.
    fn context_in_place(
        &self,
        _layer: &MultiHeadAttention,
        _team: Team,
        _context: &mut [f32],
        _projected: &[f32],
    ) -> Result<()> {
        Ok(())
    }

    /// The output of the layer, of attention over `values`. Differentiable.
    fn add_to_output(&self, _call: &OpenCall, output: Tensor, _values: &Tensor) -> Result<Tensor> {
        Ok(output)
    }

    /// The result of a call, once all queries have run alike.
    fn finish(&self, _call: &OpenCall, result: AttentionOutput) -> Result<AttentionOutput> {
        Ok(result)
    }

    /// [`finish`](Self::finish) of statistics.
    fn finish_stats(&self, _call: &OpenCall, stats: AttentionStats, _what: &ObserveOptions) -> Result<AttentionStats> {
        Ok(stats)
    }
}
