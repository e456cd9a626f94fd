//! Pairs of heads of which one is subtracted from the other (DiffLlama). The pairs share their values, so that attention
//! runs over the heads of a usual call.

use candle_core::{D, Tensor};

use super::channels::not_shared;
use crate::attention::AttentionOptions;
use crate::attention::call::OpenCall;
use crate::attention::mechanism::{Mechanism, Routes};
use crate::config::{AttentionConfig, Differential};
use crate::error::{Error, Result};
use crate::ops::concat_last;
use crate::sdpa::Call;
use crate::tensor::{compute_dtype, wide};
use crate::weights::{LAMBDAS, Parameters};

/// The numbers and the vectors `(d)` of the factor on what is subtracted.
pub(super) struct DifferentialHeads {
    numbers: Differential,
    lambdas: Vec<Tensor>,
}

impl DifferentialHeads {
    pub(super) fn from_layer(config: &AttentionConfig, parameters: &Parameters) -> Option<Self> {
        let lambdas = LAMBDAS.iter().filter_map(|name| parameters.get(name).cloned()).collect();
        config.differential.map(|numbers| Self { numbers, lambdas })
    }
}

impl Mechanism for DifferentialHeads {
    fn routes(&self) -> Routes {
        Routes::RAGGED
    }

    fn check_sharing(&self, _: &AttentionOptions) -> Result<()> {
        Err(not_shared())
    }

    fn sizes(&self, sizes: Call) -> Call {
        Call { d_v: 2 * sizes.d_v, ..sizes }
    }

    fn qkv(&self, [q, k, v]: [Tensor; 3]) -> Result<[Tensor; 3]> {
        let [k, v] = wide([k, v], q.dtype())?;
        let pairs = v.dim(2)? / 2;
        let pair = concat_last(&v.narrow(2, 0, pairs)?, &v.narrow(2, pairs, pairs)?)?; // (b, s_kv, pairs, 2 d_v)
        Ok([q, k, Tensor::cat(&[&pair, &pair], 2)?])
    }

    /// The normalized differences of the pairs among the heads of `context` `(b, s, h, 2 d_v)`: `(b, s, h, d_v)`.
    fn heads(&self, _: &OpenCall, context: Tensor) -> Result<Tensor> {
        let Differential { lambda_init, eps } = self.numbers;
        let (b, s, h, width) = context.dims4()?;
        let dtype = compute_dtype(context.dtype());
        let vector = |i: usize| Ok::<_, Error>(self.lambdas[i].to_dtype(dtype)?);
        let exp_of_product = |i: usize| Ok::<_, Error>((vector(i)? * vector(i + 1)?)?.sum_all()?.exp()?);
        let lambda = ((exp_of_product(0)? - exp_of_product(2)?)? + lambda_init)?;
        let heads = |start: usize| context.narrow(2, start, h / 2)?.to_dtype(dtype);
        let difference = (heads(0)? - heads(h / 2)?.broadcast_mul(&lambda)?)?;
        let root = (difference.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
        let normed = (difference.broadcast_div(&root)? * (1.0 - lambda_init))?;
        Ok(normed.reshape((b, s, h, width / 2))?.to_dtype(context.dtype())?)
    }
}
