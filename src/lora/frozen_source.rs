//! `FrozenSource`: the weights of a base model that does not learn, read once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::Tensor;

use crate::checkpoint::{WeightSource, wrong_shape};
use crate::error::Result;

/// A source that reads each tensor of another one once, keeps it, and gives it without a gradient. What is loaded from it
/// again and again shares its tensors.
#[derive(Debug, Clone)]
pub struct FrozenSource<S> {
    base: S,
    read: Arc<Mutex<HashMap<String, Tensor>>>,
}

impl<S> FrozenSource<S> {
    pub(super) fn new(base: S) -> Self {
        Self { base, read: Arc::default() }
    }

    fn at(&self, base: S) -> Self {
        Self { base, read: self.read.clone() }
    }
}

impl<S: WeightSource> WeightSource for FrozenSource<S> {
    fn root(&self) -> Self {
        self.at(self.base.root())
    }

    fn child(&self, name: &str) -> Self {
        self.at(self.base.child(name))
    }

    fn full_name(&self, name: &str) -> String {
        self.base.full_name(name)
    }

    fn names_below(&self, prefix: &str) -> Option<Vec<String>> {
        self.base.names_below(prefix)
    }

    fn contains(&self, name: &str) -> bool {
        self.base.contains(name)
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        self.base.shape(name)
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let full_name = self.full_name(name);
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let tensor = match read.get(&full_name) {
            Some(tensor) => tensor.clone(),
            None => {
                let tensor = self.base.get(name, shape)?.detach();
                read.insert(full_name.clone(), tensor.clone());
                tensor
            }
        };
        match tensor.dims() == shape {
            true => Ok(tensor),
            false => Err(wrong_shape(full_name, tensor.dims(), shape)),
        }
    }
}
