//! Keys that every query attends to beside those of the tokens: a learned one, one of zeros (PyTorch's `add_bias_kv` and
//! `add_zero_attn`).

use candle_core::Tensor;

use crate::attention::AttentionOptions;
use crate::attention::mechanism::{Mechanism, Routes};
use crate::config::AttentionConfig;
use crate::error::{Error, Result};
use crate::weights::{BIAS_KV, Parameters};

/// The extra keys and values of a layer, which stand behind those of the tokens.
pub(super) struct ExtraKeys {
    /// A learned key and its value, `(1, 1, h_kv · d)` each.
    learned: Option<[Tensor; 2]>,
    zero: bool,
}

impl ExtraKeys {
    pub(super) fn from_layer(config: &AttentionConfig, parameters: &Parameters) -> Option<Self> {
        let [key, value] = BIAS_KV.map(|name| parameters.get(name).cloned());
        let (learned, zero) = (key.zip(value).map(|(key, value)| [key, value]), config.add_zero_attn);
        (learned.is_some() || zero).then_some(Self { learned, zero })
    }
}

impl Mechanism for ExtraKeys {
    fn routes(&self) -> Routes {
        Routes { rows: !self.zero && self.learned.is_none(), ragged: true }
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
