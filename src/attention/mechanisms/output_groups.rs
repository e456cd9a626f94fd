//! Groups of heads, each projected by itself before the output projection (DeepSeek V4).

use candle_core::Tensor;
use candle_nn::Init;

use crate::attention::MultiHeadAttention;
use crate::attention::mechanism::{LayerParts, Mechanism, MechanismRow, Routes, boxed};
use crate::config::{AttentionConfig, MAX_SIZE, MechanismConfig};
use crate::error::{Error, Result};
use crate::ops::per_head;
use crate::weights::{Parameter, Parameters, Presence};

/// The projections of groups of heads, one below the other, `(groups · rank, h / groups · d_v)`.
pub(crate) const OUTPUT_GROUPS: &str = "o_a_proj.weight";

/// The module of these projections: this crate's own name, and DeepSeek V4's.
pub(crate) const GROUPS: [&str; 2] = ["o_a_proj", "wo_a"];

pub(super) const ROW: MechanismRow = MechanismRow {
    parameters: |config| {
        let grouped = config.output_groups();
        let OutputGroups { count, rank } = grouped.unwrap_or(OutputGroups { count: 1, rank: 1 });
        let heads = config.num_attention_heads * config.resolved_value_head_dim();
        let shape = [count * rank, heads.checked_div(count).unwrap_or(0)];
        let bound = (6.0 / (shape[0] as f64 + shape[1] as f64)).sqrt();
        vec![Parameter {
            field: "output_groups",
            ..Parameter::new(OUTPUT_GROUPS, shape, Init::Uniform { lo: -bound, up: bound })
                .with_presence(Presence::required_if(grouped.is_some()))
        }]
    },
    names: &[(GROUPS[0], &GROUPS)],
    infer: |config, shape| {
        let Some(shape) = shape(OUTPUT_GROUPS, 2)? else { return Ok(config) };
        let heads = config.num_attention_heads * config.resolved_head_dim();
        let count = heads.checked_div(shape[1]).unwrap_or(0);
        let rank = shape[0].checked_div(count).unwrap_or(0);
        Ok(config.with_output_groups(OutputGroups::new(count, rank)))
    },
    from_layer: |layer| Ok(boxed(GroupedOutput::from_layer(layer))),
};

/// Groups of heads, each projected to `rank` elements by a matrix of its own before the output projection, whose input
/// these are, group after group (DeepSeek V4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutputGroups {
    /// The number of groups, a divisor of the number of heads.
    pub count: usize,
    /// Elements of a projected group, at least 1.
    pub rank: usize,
}

impl OutputGroups {
    /// `count` groups of `rank` elements.
    pub fn new(count: usize, rank: usize) -> Self {
        Self { count, rank }
    }
}

impl AttentionConfig {
    /// Sets the groups of heads, each projected by itself before the output projection (DeepSeek V4).
    #[must_use]
    pub fn with_output_groups(mut self, output_groups: impl Into<Option<OutputGroups>>) -> Self {
        self.mechanisms.set(output_groups.into());
        self
    }

    /// The groups of heads that are projected before the output projection, if there are some.
    pub fn output_groups(&self) -> Option<OutputGroups> {
        self.mechanisms.get()
    }
}

impl MechanismConfig for OutputGroups {
    /// Checks that heads can be divided into the groups.
    fn validate(&self, config: &AttentionConfig) -> Result<()> {
        let (Self { count, rank }, h) = (*self, config.num_attention_heads);
        let allowed = if count == 0 || h == 0 || !h.is_multiple_of(count) {
            format!("a divisor of num_attention_heads = {h} as their count")
        } else if rank == 0 || rank.saturating_mul(count) > MAX_SIZE {
            format!("a rank from 1, and at most {MAX_SIZE} elements in all groups")
        } else {
            return Ok(());
        };
        Err(Error::config("output_groups", format!("{count} of {rank}"), allowed))
    }

    fn context_size(&self, _: &AttentionConfig) -> Option<usize> {
        Some(self.count * self.rank)
    }

    fn check_pruning(&self, _: &Parameters) -> Result<()> {
        let found = "one with groups of heads before its output projection";
        let those = "those of groups of heads before its output projection are groups";
        Err(Error::value("a layer to prune", found, format!("one whose heads depend on no other: {those}")))
    }
}

/// The groups and their projections, `(groups · rank, h / groups · d_v)`.
struct GroupedOutput {
    groups: OutputGroups,
    weight: Tensor,
}

impl GroupedOutput {
    fn from_layer(LayerParts { config, parameters, .. }: LayerParts) -> Option<Self> {
        let (groups, weight) = config.output_groups().zip(parameters.get(OUTPUT_GROUPS))?;
        Some(Self { groups, weight: weight.clone() })
    }
}

impl Mechanism for GroupedOutput {
    fn routes(&self) -> Routes {
        Routes::RAGGED
    }

    fn has_context_stage(&self) -> bool {
        true
    }

    fn context(&self, _: &MultiHeadAttention, context: Tensor, _: &Tensor) -> Result<Tensor> {
        let ((b, s, h, d_v), OutputGroups { count, rank }) = (context.dims4()?, self.groups);
        let width = h * d_v / count;
        let weight = self.weight.to_dtype(context.dtype())?.reshape((count, rank, width))?;
        per_head(&context.reshape((b, s, count, width))?, &weight.transpose(1, 2)?)
    }
}
