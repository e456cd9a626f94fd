//! The forms in which layouts store queries, keys and values: a file for each, and the [table](QkvNames::form) of all.
//!
//! Reading, writing, inferring and detecting ask the [`QkvForm`] of a layout, and know of no form themselves.

mod apart;
mod form;
mod fused;
mod latent;
mod pair;
mod reader;
mod separate;
mod shapes;
mod writer;

use crate::checkpoint::forms::apart::Apart;
use crate::checkpoint::forms::fused::Fused;
use crate::checkpoint::forms::latent::Latent;
use crate::checkpoint::forms::pair::Pair;
use crate::checkpoint::forms::separate::Separate;
use crate::families::layout::{Layout, LinearNames, QkvNames};
pub(super) use form::{Matrix, QkvForm};
pub(super) use reader::Reader;
pub(super) use shapes::Shapes;
pub(super) use writer::{Projections, Writer};

impl QkvNames {
    /// The form of these names.
    pub(super) fn form(self) -> Box<dyn QkvForm> {
        let separate = |names: &[LinearNames]| Separate { names: names.to_vec(), fused_bias: None };
        let bare = LinearNames::without_bias;
        match self {
            Self::Split(names) => Box::new(separate(&names)),
            Self::KeysAsValues(names) => Box::new(separate(&names)),
            Self::Query(names) => Box::new(separate(&[names])),
            Self::SplitFusedBias(weights, bias) => {
                Box::new(Separate { fused_bias: Some(bias), ..separate(&weights.map(bare)) })
            }
            Self::Fused(names, order) => Box::new(Fused { names, split_biases: None, order }),
            Self::FusedSplitBias(weight, biases, order) => {
                Box::new(Fused { names: bare(weight), split_biases: Some(biases), order })
            }
            Self::Pair(q, kv) => Box::new(Pair { q, kv }),
            Self::Apart(names) => Box::new(Apart(names)),
            Self::Latent(names) => Box::new(Latent(names)),
        }
    }
}

impl Layout {
    /// The names of the weights of queries, keys, values and a gate, of those that a source holds.
    pub fn input_weights(&self, holds: impl Fn(&str) -> bool) -> Vec<&'static str> {
        let gate = self.gate_projection().map(|gate| gate.weight);
        self.qkv.form().weights().into_iter().chain(gate).filter(|name| holds(name)).collect()
    }

    /// The tensors that must all be present for the layout to fit: weights, and biases that are not next to theirs.
    pub(super) fn required(&self) -> Vec<&'static str> {
        let names = self.qkv.form().required().into_iter().chain([self.o.weight]);
        names.filter(|name| !name.is_empty()).chain(self.requires.iter().copied()).collect()
    }

    /// The names of the biases of q, k, v, o; fused biases have one name.
    pub(super) fn bias_names(&self) -> [&'static str; 4] {
        let [q, k, v] = self.qkv.form().biases();
        [q, k, v, self.o.bias]
    }
}
