//! What a layout is: names, and how the numbers lie under them.

use crate::weights::FusedOrder;

/// How a weight's numbers lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stored {
    /// `[out, in]`, as `torch.nn.Linear` has it.
    OutIn,
    /// `[in, out]`, as GPT-2's `Conv1D` has it.
    InOut,
    /// `[in, out]`, or with the heads apart: `[in, heads, d]` into heads, `[heads, d, out]` out of them (Flax, Keras).
    Kernel,
}

/// The names of a projection's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearNames {
    /// The weight.
    pub weight: &'static str,
    /// The bias: `[out]`, or `[heads, d]` beside a three-dimensional kernel.
    pub bias: &'static str,
    /// How the weight lies.
    pub stored: Stored,
}

/// How queries, keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkvNames {
    /// Three projections: query, key, value.
    Split([LinearNames; 3]),
    /// One projection.
    Fused(LinearNames, FusedOrder),
    /// One weight; biases of query and value, none of key.
    FusedSplitBias(&'static str, [&'static str; 2], FusedOrder),
    /// Three weights with one fused bias (`torch.nn.MultiheadAttention` with `kdim` or `vdim`).
    SplitFusedBias([&'static str; 3], &'static str),
    /// The query for itself; keys, then values in one.
    Pair(LinearNames, LinearNames),
}

/// Which of `[q, k, v, o]` have a bias: the combinations that a layout's families publish. Empty: any.
pub type BiasPatterns = &'static [[bool; 4]];

/// How a family of checkpoints names and stores the weights of an attention layer.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// A short name.
    pub name: &'static str,
    /// Who publishes it.
    pub families: &'static str,
    /// The input projections.
    pub qkv: QkvNames,
    /// The output projection.
    pub o: LinearNames,
    /// Which biases go together.
    pub biases: BiasPatterns,
}

impl Layout {
    /// The weights that must all be there for the layout to fit.
    pub(crate) fn required(&self) -> Vec<&'static str> {
        let mut names = match self.qkv {
            QkvNames::Split(qkv) => qkv.map(|dense| dense.weight).to_vec(),
            QkvNames::Fused(dense, _) => vec![dense.weight],
            QkvNames::FusedSplitBias(weight, [q, v], _) => vec![weight, q, v],
            QkvNames::SplitFusedBias(weights, _) => weights.to_vec(),
            QkvNames::Pair(q, kv) => vec![q.weight, kv.weight],
        };
        names.push(self.o.weight);
        names
    }

    /// The names of the biases of q, k, v, o; the same name where they are fused.
    pub(crate) fn bias_names(&self) -> [&'static str; 4] {
        let [q, k, v] = match self.qkv {
            QkvNames::Split(qkv) => qkv.map(|dense| dense.bias),
            QkvNames::Fused(LinearNames { bias, .. }, _) | QkvNames::SplitFusedBias(_, bias) => [bias; 3],
            // No key has one; the query's stands for it.
            QkvNames::FusedSplitBias(_, [q, v], _) => [q, q, v],
            QkvNames::Pair(q, kv) => [q.bias, kv.bias, kv.bias],
        };
        [q, k, v, self.o.bias]
    }
}
