//! `TaskSource`: the weights of a checkpoint that holds adapters beside them, as PyTorch's parametrizations.

use candle_core::Tensor;

use crate::checkpoint::WeightSource;
use crate::error::{Error, Result};
use crate::lora::adapter::LowRank;
use crate::ops::Quantization;

/// A source that gives `<module>.weight` where the checkpoint has `<module>.parametrizations.weight.original`, with the
/// adapter of a task merged or as it is: [`LoraTasks::apply`](crate::lora::LoraTasks::apply) makes it.
#[derive(Debug, Clone)]
pub struct TaskSource<S> {
    base: S,
    task: Option<Task>,
}

/// A task, by its place in the tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub index: usize,
    /// The number of tasks.
    pub tasks: usize,
    pub rank: usize,
    pub scale: f64,
}

const ORIGINAL: &str = "original";
const PARAMETRIZATIONS: &str = "parametrizations";

/// The name of a part of the parametrization of a tensor: `x.weight` → `x.parametrizations.weight.<part>`.
fn part_of(name: &str, part: &str) -> String {
    match name.rsplit_once('.') {
        Some((module, parameter)) => format!("{module}.{PARAMETRIZATIONS}.{parameter}.{part}"),
        None => format!("{PARAMETRIZATIONS}.{name}.{part}"),
    }
}

/// The name of the tensor that the rest of the library sees; `None` for a part that only this source reads.
fn plain(name: &str) -> Option<String> {
    let Some((module, parametrization)) = name.rsplit_once(&format!("{PARAMETRIZATIONS}.")) else {
        return Some(name.to_string());
    };
    let parameter = parametrization.strip_suffix(ORIGINAL)?.strip_suffix('.')?;
    Some(format!("{module}{parameter}"))
}

impl<S: WeightSource> TaskSource<S> {
    pub(super) fn new(base: S, task: Option<Task>) -> Self {
        Self { base, task }
    }

    /// The name under which the checkpoint holds a tensor.
    fn stored(&self, name: &str) -> String {
        let original = part_of(name, ORIGINAL);
        if !self.base.contains(name) && self.base.contains(&original) { original } else { name.to_string() }
    }
}

impl Task {
    /// The change of a weight of `shape`.
    fn change(self, base: &dyn WeightSource, name: &str, shape: &[usize]) -> Result<LowRank> {
        let [a, b] = ["0.lora_A", "0.lora_B"].map(|part| part_of(name, part));
        let &[rows, width] = shape else {
            let found = format!("has shape {shape:?}");
            return Err(Error::tensor(base.full_name(name), found, "(out, in)"));
        };
        let Self { index, tasks, rank, scale } = self;
        let (linear, table) = ([tasks, rank, width], [tasks, rows, rank]);
        let is_table = match base.shape(&a)? {
            Some(found) => found != linear && found == table,
            None => base.get(&a, &linear).is_err(),
        };
        let row = |name: &str, shape| Ok::<_, Error>(base.get(name, shape)?.narrow(0, index, 1)?.squeeze(0)?);
        // A table of embeddings adds A B, a linear layer B A.
        let (first, second) = if is_table {
            (row(&a, &table)?, row(&b, &[tasks, rank, width])?)
        } else {
            (row(&b, &[tasks, rows, rank])?, row(&a, &linear)?)
        };
        Ok(LowRank { a: second, b: first, scale, magnitude: None, transposed: false })
    }
}

impl<S: WeightSource> WeightSource for TaskSource<S> {
    fn root(&self) -> Self {
        Self { base: self.base.root(), task: self.task }
    }

    fn child(&self, name: &str) -> Self {
        Self { base: self.base.child(name), task: self.task }
    }

    fn full_name(&self, name: &str) -> String {
        self.base.full_name(name)
    }

    fn names_below(&self, prefix: &str) -> Option<Vec<String>> {
        let names = self.base.names_below(prefix)?;
        Some(names.iter().filter_map(|name| plain(name)).collect())
    }

    fn contains(&self, name: &str) -> bool {
        self.base.contains(name) || self.base.contains(&part_of(name, ORIGINAL))
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        self.base.shape(&self.stored(name))
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let stored = self.stored(name);
        let weight = self.base.get(&stored, shape)?;
        match self.task {
            Some(task) if stored != name => task.change(&self.base, name, shape)?.merge(&weight),
            _ => Ok(weight),
        }
    }

    fn get_rows(&self, name: &str, shape: [usize; 2], on_rows: &mut dyn FnMut(Tensor) -> Result<()>) -> Result<()> {
        let stored = self.stored(name);
        if self.task.is_none() || stored == name {
            self.base.get_rows(&stored, shape, on_rows)
        } else {
            on_rows(self.get(name, &shape)?)
        }
    }

    fn gives_own_tensors(&self) -> bool {
        self.base.gives_own_tensors()
    }

    fn quantization(&self, name: &str) -> Option<Quantization> {
        self.base.quantization(&self.stored(name))
    }

    fn is_in_training(&self) -> bool {
        self.base.is_in_training()
    }
}
