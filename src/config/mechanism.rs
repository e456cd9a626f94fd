//! `MechanismConfig`: the part of a configuration that is about one mechanism, something that few layers do beyond
//! projecting, scoring, softmax, summing values and projecting back.
//!
//! Each type, its setter and its checks are in the file of its mechanism (`attention/mechanisms`). A configuration has
//! a list of those that are set, which is empty for most layers.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::config::AttentionConfig;
use crate::error::Result;
use crate::weights::Parameters;

/// The configuration of one mechanism.
pub(crate) trait MechanismConfig: Any + Debug + Send + Sync + UnwindSafe + RefUnwindSafe + DynPartialEq {
    /// Checks the values, and that the rest of the configuration goes with the mechanism.
    fn validate(&self, config: &AttentionConfig) -> Result<()>;

    /// Elements of the input of the output projection; `None`: those of all heads.
    fn context_size(&self, _config: &AttentionConfig) -> Option<usize> {
        None
    }

    /// Whether attention runs on other queries, keys and values than are projected.
    fn reshapes(&self) -> bool {
        false
    }

    /// Whether the layer projects the input of the queries to something else, too.
    fn projects_more(&self) -> bool {
        false
    }

    /// Whether there are keys beside those of the tokens.
    fn extends_keys(&self) -> bool {
        false
    }

    /// Elements that a cache holds per token beside those of a layer without the mechanism.
    fn cached_size(&self, _config: &AttentionConfig) -> usize {
        0
    }

    /// Checks that heads can be removed from a layer with these parameters.
    fn check_pruning(&self, _parameters: &Parameters) -> Result<()> {
        Ok(())
    }
}

/// Comparison with a value whose type is not known.
pub(crate) trait DynPartialEq {
    /// Whether `other` is of this type and equal.
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: PartialEq + 'static> DynPartialEq for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<T>().is_some_and(|other| self == other)
    }
}

/// The configurations of the mechanisms of a layer, at most one of each type.
#[derive(Debug, Clone, Default)]
pub(crate) struct MechanismConfigs(Vec<Arc<dyn MechanismConfig>>);

impl MechanismConfigs {
    /// The configurations that are set.
    pub fn iter(&self) -> impl Iterator<Item = &dyn MechanismConfig> {
        self.0.iter().map(|part| &**part)
    }

    /// The configuration of this type, if it is set.
    pub fn get<T: MechanismConfig + Copy>(&self) -> Option<T> {
        self.iter().find_map(|part| (part as &dyn Any).downcast_ref().copied())
    }

    /// Sets the configuration of this type, or removes it.
    pub fn set<T: MechanismConfig>(&mut self, part: Option<T>) {
        self.0.retain(|part| !(&**part as &dyn Any).is::<T>());
        self.0.extend(part.map(|part| Arc::new(part) as Arc<dyn MechanismConfig>));
    }
}

/// Equal whatever the order in which they were set.
impl PartialEq for MechanismConfigs {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.iter().all(|part| other.iter().any(|other| part.equals(other)))
    }
}
