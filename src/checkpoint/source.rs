//! `WeightSource`: where weights are read from.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::PoisonError;

use candle_core::{Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layout::BESIDE;
use crate::ops::Quantization;
use crate::weights::LowRankChange;

/// Where weights come from: a [`VarBuilder`], a prefix of a [`Checkpoint`](crate::checkpoint::Checkpoint) on disk or in
/// memory, or of a [`VarMapSource`](crate::checkpoint::VarMapSource). Every loader of this crate takes any of them, and
/// reads by `&dyn WeightSource` or [`AnySource`], so that it is compiled once.
pub trait WeightSource {
    /// This source without a prefix: the whole checkpoint. Tables that layers share are found from there.
    fn root(&self) -> Self
    where
        Self: Sized;

    /// The source one component below: from prefix `a`, child `b` has prefix `a.b`.
    fn child(&self, name: &str) -> Self
    where
        Self: Sized;

    /// `name` with the prefix in front.
    fn full_name(&self, name: &str) -> String;

    /// The names that the child `prefix` would list: those below it, without it. `None` if the source cannot list them.
    fn names_below(&self, prefix: &str) -> Option<Vec<String>>;

    /// All names below the source's own prefix, without it; `None` if the source cannot list them.
    fn names(&self) -> Option<Vec<String>> {
        self.names_below("")
    }

    /// Whether the source holds a tensor of exactly this name.
    fn contains(&self, name: &str) -> bool;

    /// The shape of a tensor; `None` if the source can only confirm a shape.
    ///
    /// # Errors
    /// If no tensor has this name.
    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>>;

    /// Reads a tensor that must have this shape, in the source's dtype and on its device.
    ///
    /// # Errors
    /// If the tensor is missing, has another shape, or cannot be read; the error holds the full name.
    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor>;

    /// [`get`](Self::get) for a matrix that is held in few bits. Calls `on_rows` with consecutive rows, `(any number,
    /// columns)`, so that it is never whole in memory where the source can read some rows alone.
    ///
    /// The default reads all at once, which is right for every source.
    ///
    /// # Errors
    /// Those of [`get`](Self::get) and of `on_rows`.
    fn get_rows(&self, name: &str, shape: [usize; 2], on_rows: &mut dyn FnMut(Tensor) -> Result<()>) -> Result<()> {
        on_rows(self.get(name, &shape)?)
    }

    /// [`get`](Self::get) without the [`low_rank`](Self::low_rank) changes of the weight.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    fn get_base(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.get(name, shape)
    }

    /// The low-rank changes of a weight that are computed beside it, as
    /// [`LoraAdapter::beside`](crate::lora::LoraAdapter::beside) has them: [`get`](Self::get) has merged them, and
    /// [`get_base`](Self::get_base) has not. The default is none.
    ///
    /// # Errors
    /// The device is out of memory.
    fn low_rank(&self, _name: &str) -> Result<Vec<LowRankChange>> {
        Ok(Vec::new())
    }

    /// Whether [`low_rank`](Self::low_rank) of some weight has changes.
    fn has_low_rank(&self) -> bool {
        false
    }

    /// Whether every call of [`get`](Self::get) reads a tensor that nobody else holds, as a checkpoint on disk does. An
    /// encoder that is loaded from such a source for the CPU keeps its projections packed for the kernels and nothing
    /// else: the weights take memory once. From other sources, tensors may be shared or variables, so they are kept.
    ///
    /// The default is `false`, which is right for every source.
    fn gives_own_tensors(&self) -> bool {
        false
    }

    /// The format of few bits in which a loader packs the weight `name`, if it is that of a projection or a table of
    /// embeddings. [`get`](Self::get) gives f32 then.
    ///
    /// The default is none, which is right for every source.
    fn quantization(&self, _name: &str) -> Option<Quantization> {
        None
    }

    /// Whether an adapter of this source is in training: then loaders multiply with weights in few bits
    /// [exactly](crate::ops::Linear::set_exact), those that the adapter does not change included.
    ///
    /// The default is `false`, which is right for every source without variables.
    fn is_in_training(&self) -> bool {
        false
    }

    /// Reads a tensor that must have the shape `stored`, and reshapes it to `shape`.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get); another number of elements.
    fn get_reshaped(&self, name: &str, stored: &[usize], shape: &[usize]) -> Result<Tensor> {
        Ok(self.get(name, stored)?.reshape(shape)?)
    }
}

impl WeightSource for VarBuilder<'_> {
    fn root(&self) -> Self {
        VarBuilder::root(self)
    }

    fn child(&self, name: &str) -> Self {
        self.pp(name)
    }

    fn full_name(&self, name: &str) -> String {
        join(&self.prefix(), name)
    }

    fn names_below(&self, _: &str) -> Option<Vec<String>> {
        None
    }

    fn contains(&self, name: &str) -> bool {
        self.contains_tensor(name)
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        ensure!(self.contains(name), missing_in(self, name));
        // A `VarMap` returns a tensor only for its shape.
        Ok(self.get_unchecked_dtype(name, self.dtype()).ok().map(|t| t.dims().to_vec()))
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        ensure!(self.contains(name), missing_in(self, name));
        VarBuilder::get(self, shape, name).map_err(|error| match WeightSource::shape(self, name) {
            Ok(Some(found)) if found != shape => wrong_shape(self.full_name(name), &found, shape),
            _ => Error::Candle(error),
        })
    }
}

/// A [`WeightSource`] of any type, at its prefix. Loaders pass it on, so that they are compiled once. Cheap to clone.
#[derive(Clone)]
pub struct AnySource<'a> {
    /// Without a prefix.
    root: Rc<dyn WeightSource + 'a>,
    prefix: String,
    /// Whether weights are read without the changes that are computed beside them.
    is_base: bool,
    /// The full names of what was read, if they are kept.
    read: Option<Rc<RefCell<BTreeSet<String>>>>,
}

impl<'a> AnySource<'a> {
    /// `source` with its type erased.
    pub fn new(source: &(impl WeightSource + 'a)) -> Self {
        Self { root: Rc::new(source.root()), prefix: source.full_name(""), is_base: false, read: None }
    }

    /// This source, which keeps the [names of what is read](Self::read_names) from it, its children and its root: a
    /// loader of a whole model finds by them what is stored and nothing reads.
    #[must_use]
    pub fn watched(&self) -> Self {
        Self { read: Some(Rc::default()), ..self.clone() }
    }

    /// The names below the prefix, without it, of the tensors that were read since [`watched`](Self::watched); none if
    /// the source is not watched.
    pub fn read_names(&self) -> BTreeSet<String> {
        let read = self.read.as_ref().map(|read| read.borrow());
        let names = read.iter().flat_map(|names| names.iter());
        names.filter_map(|name| below(&self.prefix, name)).map(str::to_string).collect()
    }

    /// The full name of a tensor that is read.
    fn name_to_read(&self, name: &str) -> String {
        let name = self.full_name(name);
        if let Some(read) = &self.read {
            read.borrow_mut().insert(name.clone());
        }
        name
    }

    /// This source without the low-rank changes that are computed beside the weights: for a loader that puts them
    /// there, by `with_changes`. All others read weights with their changes.
    pub(crate) fn base(&self) -> Self {
        Self { is_base: true, ..self.clone() }
    }

    /// The changes that are to be put beside what was read as [`base`](Self::base); none elsewhere.
    pub(crate) fn changes(&self, name: &str) -> Result<Vec<LowRankChange>> {
        if self.is_base { self.low_rank(name) } else { Ok(Vec::new()) }
    }
}

impl WeightSource for AnySource<'_> {
    fn root(&self) -> Self {
        Self { prefix: String::new(), ..self.clone() }
    }

    fn child(&self, name: &str) -> Self {
        Self { prefix: self.full_name(name), ..self.clone() }
    }

    fn full_name(&self, name: &str) -> String {
        join(&self.prefix, name)
    }

    fn names_below(&self, prefix: &str) -> Option<Vec<String>> {
        self.root.names_below(&self.full_name(prefix))
    }

    fn contains(&self, name: &str) -> bool {
        self.root.contains(&self.full_name(name))
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        self.root.shape(&self.full_name(name))
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let name = self.name_to_read(name);
        if self.is_base { self.root.get_base(&name, shape) } else { self.root.get(&name, shape) }
    }

    fn get_rows(&self, name: &str, shape: [usize; 2], on_rows: &mut dyn FnMut(Tensor) -> Result<()>) -> Result<()> {
        if self.changes(name)?.is_empty() {
            self.root.get_rows(&self.name_to_read(name), shape, on_rows)
        } else {
            on_rows(self.get(name, &shape)?)
        }
    }

    fn get_base(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.root.get_base(&self.name_to_read(name), shape)
    }

    fn low_rank(&self, name: &str) -> Result<Vec<LowRankChange>> {
        self.root.low_rank(&self.full_name(name))
    }

    fn has_low_rank(&self) -> bool {
        self.root.has_low_rank()
    }

    fn gives_own_tensors(&self) -> bool {
        self.root.gives_own_tensors()
    }

    fn quantization(&self, name: &str) -> Option<Quantization> {
        self.root.quantization(&self.full_name(name))
    }

    fn is_in_training(&self) -> bool {
        self.root.is_in_training()
    }

    fn get_reshaped(&self, name: &str, stored: &[usize], shape: &[usize]) -> Result<Tensor> {
        if self.changes(name)?.is_empty() {
            self.root.get_reshaped(&self.name_to_read(name), stored, shape)
        } else {
            Ok(self.get(name, stored)?.reshape(shape)?)
        }
    }
}

/// The error for a tensor that a `VarBuilder` does not hold: that of its checkpoint, which names the file, if it has
/// one.
fn missing_in(vb: &VarBuilder, name: &str) -> Error {
    // Not `get`, which makes a variable of a `VarMap`.
    match vb.get_unchecked_dtype(name, vb.dtype()).as_ref().map_err(|error| Error::find_in(error)) {
        Err(Some(Error::MissingTensor { name, why })) => Error::MissingTensor { name: name.clone(), why: why.clone() },
        _ => missing(vb.full_name(name)),
    }
}

/// `prefix.name`, where the prefix may be empty. A name that begins with `../` stands beside the last component of it.
pub fn join(prefix: &str, name: &str) -> String {
    match (prefix, name.strip_prefix(BESIDE)) {
        ("", _) => name.to_string(),
        (prefix, Some(name)) => join(prefix.rsplit_once('.').map_or("", |(above, _)| above), name),
        (prefix, None) if name.is_empty() => prefix.to_string(),
        (prefix, None) => format!("{prefix}.{name}"),
    }
}

/// The rest of a name below a prefix, which may be empty.
pub fn below<'a>(prefix: &str, name: &'a str) -> Option<&'a str> {
    match prefix {
        "" => Some(name),
        prefix => name.strip_prefix(prefix)?.strip_prefix('.'),
    }
}

pub fn missing(name: String) -> Error {
    Error::MissingTensor { name, why: "the checkpoint does not hold it".to_string() }
}

/// The error of a tensor that has another shape than expected.
pub fn wrong_shape(name: String, found: &[usize], expected: &[usize]) -> Error {
    Error::tensor(name, format!("has shape {found:?}"), format!("{expected:?}"))
}

/// A prefix of a [`VarMap`]: what is loaded from it learns.
///
/// In contrast to `VarBuilder::from_varmap` it knows the names and shapes of the variables, which is needed to find
/// sizes (from a `config.json`, or by [`infer_config`](crate::checkpoint::infer_config)), and it never adds a variable.
/// Tensors are read in the dtype and on the device of the variables.
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
        ensure!(variable.dims() == shape, wrong_shape(self.full_name(name), variable.dims(), shape));
        Ok(variable.as_tensor().clone())
    }
}
