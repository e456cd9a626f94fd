//! The variables of a `VarMap` as a source of weights.

use std::sync::PoisonError;

use candle_core::{Tensor, Var};
use candle_nn::VarMap;

use crate::checkpoint::source::{WeightSource, below, join, missing, wrong_shape};
use crate::error::Result;

/// A prefix of a [`VarMap`]: what is loaded from it learns.
///
/// In contrast to `VarBuilder::from_varmap` it knows the names and shapes of the variables, which is needed to find sizes
/// (from a `config.json`, or by [`infer_config`](crate::checkpoint::infer_config)), and it never adds a variable. Tensors
/// are read in the dtype and on the device of the variables.
#[derive(Clone)]
pub struct VarMapSource {
    map: VarMap,
    prefix: String,
}

impl std::fmt::Debug for VarMapSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VarMapSource").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl VarMapSource {
    /// All variables of `map`, which the source shares.
    pub fn new(map: &VarMap) -> Self {
        Self { map: map.clone(), prefix: String::new() }
    }

    /// The variables below `prefix`, from the root on.
    #[must_use]
    pub fn at(&self, prefix: &str) -> Self {
        Self { prefix: prefix.trim_end_matches('.').to_string(), ..self.clone() }
    }

    fn variable(&self, name: &str) -> Result<Var> {
        let name = self.full_name(name);
        let data = self.map.data().lock().unwrap_or_else(PoisonError::into_inner);
        data.get(&name).cloned().ok_or_else(|| missing(name))
    }
}

impl WeightSource for VarMapSource {
    fn root(&self) -> Self {
        self.at("")
    }

    fn child(&self, name: &str) -> Self {
        self.at(&join(&self.prefix, name))
    }

    fn full_name(&self, name: &str) -> String {
        join(&self.prefix, name)
    }

    fn names_below(&self, prefix: &str) -> Option<Vec<String>> {
        let prefix = self.full_name(prefix);
        let data = self.map.data().lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = data.keys().filter_map(|name| below(&prefix, name)).map(str::to_string).collect();
        names.sort_unstable();
        Some(names)
    }

    fn contains(&self, name: &str) -> bool {
        self.variable(name).is_ok()
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        Ok(Some(self.variable(name)?.dims().to_vec()))
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let variable = self.variable(name)?;
        match variable.dims() == shape {
            true => Ok(variable.as_tensor().clone()),
            false => Err(wrong_shape(self.full_name(name), variable.dims(), shape)),
        }
    }
}
