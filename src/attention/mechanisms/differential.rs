//! Pairs of heads of which one is subtracted from the other (DiffLlama). The pairs share their values, so that
//! attention runs over the heads of a usual call.

use candle_core::{D, Tensor};
use candle_nn::Init;

use super::channels::not_shared;
use crate::attention::AttentionOptions;
use crate::attention::call::OpenCall;
use crate::attention::mechanism::{LayerParts, Mechanism, MechanismRow, Routes, boxed};
use crate::config::{AttentionConfig, KeyValueSource, MechanismConfig};
use crate::error::{Error, Result};
use crate::ops::concat_last;
use crate::position::Position;
use crate::sdpa::Call;
use crate::tensor::{compute_dtype, wide};
use crate::weights::{Parameter, Parameters, Presence};

/// The vectors of differential attention, `(d)`.
pub(crate) const LAMBDAS: [&str; 4] = ["lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"];

pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| {
        let presence = Presence::required_if(config.differential().is_some());
        let row = |name| Parameter {
            field: "differential",
            ..Parameter::new(name, [config.resolved_head_dim()], Init::Randn { mean: 0.0, stdev: 0.1 })
                .with_presence(presence)
        };
        LAMBDAS.map(row).into()
    },
    names: &[(LAMBDAS[0], &[]), (LAMBDAS[1], &[]), (LAMBDAS[2], &[]), (LAMBDAS[3], &[])],
    from_layer: |layer| Ok(boxed(DifferentialHeads::from_layer(layer))),
    ..MechanismRow::NONE
};

/// Differential attention ([Ye 2024](https://arxiv.org/abs/2410.05258)): heads `i` and `i + h/2` are a pair, which
/// shares the values of two heads, and of which one softmax is taken from the other.
///
/// ```text
/// V = [v_j, v_{j + h_kv/2}]                           the values of the pair's key-value heads, side by side
/// C = softmax(Q_i K_iᵀ) V - λ · softmax(Q_{i+h/2} K_{i+h/2}ᵀ) V
/// λ = exp(λ_q1 · λ_k1) - exp(λ_q2 · λ_k2) + λ_init    with learned vectors of `head_dim` elements
/// context = (1 - λ_init) · C / sqrt(mean(C²) + eps)   2 · v_head_dim elements per pair
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Differential {
    /// The part of `λ` that is not learned; finite.
    pub lambda_init: f64,
    /// Added to the mean square of the context of a pair; finite, more than 0.
    pub eps: f64,
}

impl Differential {
    /// Differential attention with these numbers.
    pub fn new(lambda_init: f64, eps: f64) -> Self {
        Self { lambda_init, eps }
    }
}

impl AttentionConfig {
    /// Sets that pairs of heads are subtracted from one another (DiffLlama).
    #[must_use]
    pub fn with_differential(mut self, differential: impl Into<Option<Differential>>) -> Self {
        self.mechanisms.set(differential.into());
        self
    }

    /// The numbers of differential attention, if pairs of heads are subtracted from one another.
    pub fn differential(&self) -> Option<Differential> {
        self.mechanisms.get()
    }
}

impl MechanismConfig for Differential {
    /// Checks that heads are pairs, and that the layer has nothing that pairs do not.
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        let Self { lambda_init, eps } = *self;
        let by_distance = matches!(config.position, Position::RelativeKeyValue(_));
        let has_other_keys = config.latent.is_some() || config.key_value_source != KeyValueSource::Projections;
        let also_reshaped = config.mechanisms.iter().filter(|part| part.reshapes()).count() > 1;
        let allowed = if !config.resolved_num_key_value_heads().is_multiple_of(2) {
            "none with an odd number of key-value heads: heads are pairs"
        } else if also_reshaped || by_distance || has_other_keys {
            "none beside latents, values by distance, pooled queries or keys of another kind"
        } else if !(lambda_init as f32).is_finite() || !(eps as f32).is_finite() || eps <= 0.0 {
            "finite numbers, eps above 0"
        } else {
            return Ok(());
        };
        Err(Error::config("differential", format!("({lambda_init}, {eps})"), allowed))
    }

    fn reshapes(&self) -> bool {
        true
    }

    fn check_pruning(&self, _: &Parameters) -> Result<()> {
        let expected = "one whose heads depend on no other: those of differential attention are pairs";
        Err(Error::value("a layer to prune", "one with differential attention", expected))
    }
}

/// The numbers and the vectors `(d)` of the factor on what is subtracted.
struct DifferentialHeads {
    numbers: Differential,
    lambdas: Vec<Tensor>,
}

impl DifferentialHeads {
    fn from_layer(LayerParts { config, parameters, .. }: LayerParts) -> Option<Self> {
        let lambdas = LAMBDAS.iter().filter_map(|name| parameters.get(name).cloned()).collect();
        config.differential().map(|numbers| Self { numbers, lambdas })
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
