//! Training an adapter: its tensors are variables, and the base model does not change.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Device, Tensor, Var};
use candle_nn::Init;

use crate::checkpoint::{WeightSource, below, wrong_shape};
use crate::error::{Error, Result};
use crate::lora::adapted_source::AdaptedSource;
use crate::lora::adapter::{LoraAdapter, LowRank};
use crate::lora::config::{LoraBias, LoraConfig};
use crate::lora::patterns::Patterns;

/// An adapter in training, with the base model that it changes.
///
/// The variables are in f32 whatever the dtype of the base. A model that is loaded from [`source`](Self::source)
/// computes with the weights of that moment, `W + scale · B A`, and gradients flow from it into `A` and `B` alone: load
/// it again after each step of the optimizer, which reads nothing from disk and computes one product per changed
/// weight. A model that is loaded from [`source_beside`](Self::source_beside) computes `scale · x Aᵀ Bᵀ` beside each
/// product instead: it is loaded once, and its weights may be in few bits.
///
/// ```no_run
/// use candle_attention::AttentionMask;
/// use candle_attention::checkpoint::Checkpoint;
/// use candle_attention_text::{TextModelConfig, TextModel};
/// use candle_attention::lora::{LoraConfig, LoraTraining};
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{AdamW, Optimizer};
/// let base = Checkpoint::open("all-MiniLM-L6-v2")?.at("", DType::F32, &Device::Cpu);
/// let config = TextModelConfig::from_file("all-MiniLM-L6-v2/config.json")?;
/// let training = LoraTraining::new(&LoraConfig::new(8, 16.0, &["query", "value"]), base)?;
/// let mut optimizer = AdamW::new_lr(training.variables(), 1e-3)?;
/// # let ids = Tensor::new(&[[101u32, 7592, 102]], &Device::Cpu)?;
/// for _step in 0..100 {
///     let model = TextModel::load(&config, training.source()?)?;
///     let hidden = model.forward_t(&ids, None, &AttentionMask::full(), true)?;
///     optimizer.backward_step(&hidden.sqr()?.mean_all()?)?; // your loss
/// }
/// training.adapter()?.write("my-adapter")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct LoraTraining<S> {
    base: FrozenSource<S>,
    adapter: LoraAdapter,
    variables: Vec<Var>,
}

impl<S: WeightSource + Clone> LoraTraining<S> {
    /// A new adapter for the modules of `base`, below its prefix, that `config` names, which changes nothing yet: `A`
    /// is uniform in `±1/√in`, as PEFT draws it, and `B` is 0. With `all-linear` every weight of two dimensions counts
    /// as a linear layer but for tables of embeddings and of relative positions, by their names.
    ///
    /// # Errors
    /// A source that cannot list its names; a configuration that names no module, a table of embeddings, biases or
    /// modules to save, which this version does not train; a pattern that is not valid.
    pub fn new(config: &LoraConfig, base: S) -> Result<Self> {
        let base = FrozenSource::new(base);
        Self::with_base(fresh_adapter(config, &base.root(), &base.full_name(""))?, base)
    }

    /// Continues with copies of the low-rank changes of an adapter; other tensors of it stay as they are.
    ///
    /// # Errors
    /// The errors of [`LoraAdapter::apply`].
    pub fn from_adapter(adapter: &LoraAdapter, base: S) -> Result<Self> {
        Self::with_base(adapter.clone(), FrozenSource::new(base))
    }

    /// Trains the tensors of an adapter, on the device of the base.
    fn with_base(adapter: LoraAdapter, base: FrozenSource<S>) -> Result<Self> {
        let device = adapter.apply(base.base.clone())?.device().cloned().unwrap_or(Device::Cpu);
        let (adapter, variables) = with_variables(adapter, &device)?;
        Ok(Self { base, adapter, variables })
    }

    /// The variables, for an optimizer: `A`, `B` and the magnitude, if there is one, of each module in the order of
    /// their names.
    pub fn variables(&self) -> Vec<Var> {
        self.variables.clone()
    }

    /// The base model with the adapter of this moment merged.
    ///
    /// # Errors
    /// The errors of [`LoraAdapter::apply`].
    pub fn source(&self) -> Result<AdaptedSource<FrozenSource<S>>> {
        self.adapter.apply(self.base.clone())
    }

    /// The base model with the adapter beside its projections ([`LoraAdapter::beside`]). What is loaded from it follows
    /// the variables, so one model serves all steps, and the base may be in few bits: products and gradients are those
    /// of its dequantized weights, one projection at a time. A frozen copy rounds the inputs of products, too.
    ///
    /// # Errors
    /// The errors of [`LoraAdapter::beside`].
    pub fn source_beside(&self) -> Result<AdaptedSource<S>> {
        self.adapter.beside(self.base.base.clone())
    }

    /// A copy of the adapter of this moment, to use or to [write](LoraAdapter::write).
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn adapter(&self) -> Result<LoraAdapter> {
        let copy = |tensor: &Tensor| tensor.detach().copy();
        let mut adapter = self.adapter.clone();
        for change in adapter.changes.values_mut() {
            (change.a, change.b) = (copy(&change.a)?, copy(&change.b)?);
            change.magnitude = change.magnitude.as_ref().map(copy).transpose()?;
        }
        Ok(adapter)
    }
}

/// A new adapter for the modules of the base model below `prefix` that `config` names.
fn fresh_adapter(config: &LoraConfig, root: &dyn WeightSource, prefix: &str) -> Result<LoraAdapter> {
    if config.bias != LoraBias::None {
        return Err(Error::config("bias", format!("{:?}", config.bias), "none: only low-rank changes are trained"));
    }
    if let Some(module) = config.modules_to_save.first() {
        return Err(Error::config("modules_to_save", module, "none: only low-rank changes are trained"));
    }
    if let Some(table) = config.trainable_token_indices.keys().next() {
        let expected = "none: only low-rank changes are trained";
        return Err(Error::config("trainable_token_indices", format!("rows of `{table}`"), expected));
    }
    let Some(names) = root.names() else {
        let expected = "one that lists its names, such as a checkpoint or a `VarMapSource`";
        return Err(Error::value("the source of the base model", "one that does not list its names", expected));
    };
    let modules = names.iter().filter_map(|name| name.strip_suffix(".weight"));
    let modules: Vec<&str> = modules.filter(|module| below(prefix, module).is_some()).collect();
    let patterns = Patterns::new(config, modules.len())?;
    let mut changes = BTreeMap::new();
    for &module in &modules {
        let name = format!("{module}.weight");
        let Some(shape) = root.shape(&name)? else { continue };
        let is_table = module.contains("embed") || module.contains("relative");
        if shape.len() != 2 || (is_table && patterns.names_all()) || !patterns.targets(module)? {
            continue;
        }
        if is_table {
            let expected = "linear layers alone: tables of embeddings are not trained";
            return Err(Error::config("target_modules", module, expected));
        }
        changes.insert(module.to_string(), fresh_change(config, &patterns, module, &shape, root)?);
    }
    if changes.is_empty() {
        let all_layers = LoraConfig { layers_to_transform: Vec::new(), ..config.clone() };
        let patterns = Patterns::new(&all_layers, modules.len())?;
        if modules.iter().any(|module| patterns.targets(module).unwrap_or(false)) {
            let found = format!("{:?}", config.layers_to_transform);
            return Err(Error::config("layers_to_transform", found, "numbers of layers that the base model has"));
        }
        let found = format!("{:?}", config.target_modules);
        return Err(Error::config("target_modules", found, "the names of linear layers of the base model"));
    }
    let (embeddings, whole, tokens) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    Ok(LoraAdapter { config: config.clone(), changes, embeddings, whole, tokens })
}

/// Makes variables of the tensors of an adapter.
fn with_variables(mut adapter: LoraAdapter, device: &Device) -> Result<(LoraAdapter, Vec<Var>)> {
    let mut variables = Vec::new();
    for change in adapter.changes.values_mut() {
        for tensor in [Some(&mut change.a), Some(&mut change.b), change.magnitude.as_mut()].into_iter().flatten() {
            let variable = Var::from_tensor(&tensor.detach().to_dtype(DType::F32)?.to_device(device)?)?;
            *tensor = variable.as_tensor().clone();
            variables.push(variable);
        }
    }
    Ok((adapter, variables))
}

/// The change of a module at the start of training.
fn fresh_change(
    config: &LoraConfig,
    patterns: &Patterns,
    module: &str,
    shape: &[usize],
    root: &dyn WeightSource,
) -> Result<LowRank> {
    let (rank, scale, transposed) = (patterns.rank(module)?, patterns.scale(module)?, config.fan_in_fan_out);
    let [out, input] = if transposed { [shape[1], shape[0]] } else { [shape[0], shape[1]] };
    if rank > out.min(input) {
        return Err(Error::config("r", rank, format!("at most {}, the smaller side of `{module}`", out.min(input))));
    }
    let bound = 1.0 / (input as f64).sqrt();
    let a = Init::Uniform { lo: -bound, up: bound }.var((rank, input), DType::F32, &Device::Cpu)?;
    let b = Tensor::zeros((out, rank), DType::F32, &Device::Cpu)?;
    let magnitude = if config.use_dora {
        let weight = root.get(&format!("{module}.weight"), shape)?.to_dtype(DType::F32)?;
        Some(weight.sqr()?.sum(usize::from(!transposed))?.sqrt()?)
    } else {
        None
    };
    Ok(LowRank { a: a.as_detached_tensor(), b, scale, magnitude, transposed })
}

/// A source that reads each tensor of another one once, keeps it, and gives it without a gradient. What is loaded from
/// it again and again shares its tensors.
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
        if tensor.dims() == shape { Ok(tensor) } else { Err(wrong_shape(full_name, tensor.dims(), shape)) }
    }
}
