//! Keys that every query attends to beside those of the tokens: a learned one, one of zeros (PyTorch's `add_bias_kv`
//! and `add_zero_attn`).

use candle_core::Tensor;
use candle_nn::Init;

use crate::attention::mechanism::{LayerParts, Mechanism, MechanismRow, Routes, boxed};
use crate::attention::{AttentionInputs, AttentionOptions};
use crate::config::{AttentionConfig, KeyValueSource, MechanismConfig};
use crate::ensure;
use crate::error::{Error, Result};
use crate::weights::{HeadKind, Parameter, Presence};

/// A learned key and value that every query sees (`torch.nn.MultiheadAttention`, fairseq), `(1, 1, h_kv · d)` and
/// `(1, 1, h_kv · d_v)`.
pub(crate) const BIAS_KV: [&str; 2] = ["bias_k", "bias_v"];

pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| {
        let h_kv = config.resolved_num_key_value_heads();
        let sizes = [h_kv * config.resolved_head_dim(), h_kv * config.resolved_value_head_dim()];
        let row = |i: usize| {
            // A layer whose heads are all pruned has no elements.
            let init = Init::Randn { mean: 0.0, stdev: (1.0 / sizes[i].max(1) as f64).sqrt() };
            Parameter {
                field: "add_bias_kv",
                init: Some(init).filter(|_| config.add_bias_kv()),
                heads: HeadKind::KeyValue,
                ..Parameter::new(BIAS_KV[i], [1, 1, sizes[i]], init)
                    .with_head_axis(2)
                    .with_presence(Presence::Together(BIAS_KV[1 - i]))
            }
        };
        vec![row(0), row(1)]
    },
    names: &[(BIAS_KV[0], &[]), (BIAS_KV[1], &[])],
    infer: |config, shape| {
        let is_held = shape(BIAS_KV[0], 3)?.is_some() || shape(BIAS_KV[1], 3)?.is_some();
        Ok(config.with_add_bias_kv(is_held))
    },
    from_layer: |layer| Ok(boxed(ExtraKeys::from_layer(layer))),
};

/// Which extra keys a layer has.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct ExtraKeysConfig {
    learned: bool,
    zero: bool,
}

impl AttentionConfig {
    /// Sets whether there is a learned extra key and value that every query attends to (`add_bias_kv` in PyTorch). Of a
    /// loaded layer [`add_bias_kv`](Self::add_bias_kv) says whether its checkpoint holds them.
    #[must_use]
    pub fn with_add_bias_kv(self, add_bias_kv: bool) -> Self {
        let extra = ExtraKeysConfig { learned: add_bias_kv, ..self.extra_keys() };
        self.with_extra_keys(extra)
    }

    /// Sets whether every query attends to an extra key and value of zeros (`add_zero_attn` in PyTorch).
    #[must_use]
    pub fn with_add_zero_attn(self, add_zero_attn: bool) -> Self {
        let extra = ExtraKeysConfig { zero: add_zero_attn, ..self.extra_keys() };
        self.with_extra_keys(extra)
    }

    /// Whether there is a learned extra key and value.
    pub fn add_bias_kv(&self) -> bool {
        self.extra_keys().learned
    }

    /// Whether there is an extra key and value of zeros.
    pub fn add_zero_attn(&self) -> bool {
        self.extra_keys().zero
    }

    fn extra_keys(&self) -> ExtraKeysConfig {
        self.mechanisms.get().unwrap_or_default()
    }

    fn with_extra_keys(mut self, extra: ExtraKeysConfig) -> Self {
        self.mechanisms.set(Some(extra).filter(|extra| *extra != ExtraKeysConfig::default()));
        self
    }
}

impl MechanismConfig for ExtraKeysConfig {
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        let field = if self.learned { "add_bias_kv" } else { "add_zero_attn" };
        ensure!(config.latent.is_none(), Error::config(field, "set", "false with latent attention"));
        let has_projections = config.key_value_source == KeyValueSource::Projections;
        ensure!(has_projections || !self.learned, config.key_value_source.has_no_projections_for(field.to_string()));
        Ok(())
    }

    fn extends_keys(&self) -> bool {
        true
    }
}

/// The extra keys and values of a layer, which stand behind those of the tokens.
struct ExtraKeys {
    /// A learned key and its value, `(1, 1, h_kv · d)` each.
    learned: Option<[Tensor; 2]>,
    zero: bool,
}

impl ExtraKeys {
    fn from_layer(LayerParts { config, parameters, .. }: LayerParts) -> Option<Self> {
        let [key, value] = BIAS_KV.map(|name| parameters.get(name).cloned());
        let (learned, zero) = (key.zip(value).map(|(key, value)| [key, value]), config.add_zero_attn());
        (learned.is_some() || zero).then_some(Self { learned, zero })
    }
}

impl Mechanism for ExtraKeys {
    fn routes(&self) -> Routes {
        Routes { rows: !self.zero && self.learned.is_none(), ragged: true }
    }

    fn check(&self, inputs: &AttentionInputs, _: &AttentionOptions) -> Result<()> {
        let error = || Error::config("add_bias_kv or add_zero_attn", true, "false with a cache");
        ensure!(inputs.cache.is_none(), error());
        Ok(())
    }

    fn check_sharing(&self, _: &AttentionOptions) -> Result<()> {
        let expected = "one of a layer with heads, without add_bias_kv and add_zero_attn";
        Err(Error::value("a call that shares its keys and values", "another one", expected))
    }

    fn appended_keys(&self) -> usize {
        usize::from(self.learned.is_some()) + usize::from(self.zero)
    }

    fn append(&self, xs: Tensor, which: usize) -> Result<Tensor> {
        let (b, s, h_kv, d) = xs.dims4()?;
        // candle cannot concatenate an empty tensor.
        let mut tokens = if s == 0 { Vec::new() } else { vec![xs.clone()] };
        if let Some(learned) = &self.learned {
            let token = learned[which].to_dtype(xs.dtype())?.reshape((1, 1, h_kv, d))?;
            tokens.push(token.broadcast_as((b, 1, h_kv, d))?);
        }
        if self.zero {
            tokens.push(Tensor::zeros((b, 1, h_kv, d), xs.dtype(), xs.device())?);
        }
        match tokens.as_slice() {
            [only] => Ok(only.clone()),
            _ => Ok(Tensor::cat(&tokens, 1)?),
        }
    }
}
