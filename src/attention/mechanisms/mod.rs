//! The mechanisms, one file each, and the list of those that a layer has.

mod block_keys;
mod channels;
mod clipping;
mod context_norm;
mod differential;
mod extra_keys;
mod global_tokens;
mod key_limit;
mod limits;
mod multi_query;
mod output_gate;
mod output_groups;
mod pooled_queries;
mod value_convolution;

use std::sync::Arc;

use candle_core::Tensor;

pub(super) use block_keys::BlockKeys;
pub(super) use global_tokens::global_qkv;

use crate::attention::mechanism::{Mechanism, Mechanisms};
use crate::config::AttentionConfig;
use crate::error::Result;
use crate::weights::Parameters;

/// The mechanisms of a layer with this configuration and these checked parameters, in the order in which they act. The
/// projections have the dtype and device of `like`.
pub(super) fn from_layer(config: &AttentionConfig, parameters: &Parameters, like: &Tensor) -> Result<Mechanisms> {
    fn one(mechanism: Option<impl Mechanism + 'static>) -> Option<Arc<dyn Mechanism>> {
        mechanism.map(|mechanism| Arc::new(mechanism) as Arc<dyn Mechanism>)
    }
    let all = [
        one(key_limit::KeyLimit::from_config(config)),
        one(global_tokens::GlobalTokens::from_config(config)),
        one(limits::Limits::from_parameters(parameters)?),
        one(clipping::Clipping::from_config(config)),
        one(extra_keys::ExtraKeys::from_layer(config, parameters)),
        one(multi_query::MultiQuery::from_config(config)),
        one(BlockKeys::from_config(config)),
        one(channels::Channels::from_config(config)),
        one(pooled_queries::PooledQueries::from_config(config)),
        one(differential::DifferentialHeads::from_layer(config, parameters)),
        one(context_norm::ContextNorm::from_layer(config, parameters, like)?),
        one(output_gate::Gate::from_config(config)),
        one(output_groups::GroupedOutput::from_layer(config, parameters)),
        one(value_convolution::ValueConvolution::from_layer(config, parameters)),
    ];
    Ok(all.into_iter().flatten().collect())
}
