//! Low-rank changes beside the projections of a layer, whatever the layout of its weights is.
//!
//! A layout moves rows of weights: it splits a fused weight, brings its rows in order, transposes. Which rows of which
//! weight a projection has come from is found by reading the layer once more, with the number of each row in the place
//! of its elements: a table of names and orders beside the reader would have to be kept equal to it.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use crate::attention::MultiHeadAttention;
use crate::checkpoint::projection::Rows;
use crate::checkpoint::read::has_places;
use crate::checkpoint::source::{AnySource, WeightSource};
use crate::config::KeyValueSource;
use crate::error::Result;
use crate::ops::{Linear, ProjectionKind};
use crate::weights::{AttentionWeights, LinearWeights, LowRankChange};

impl MultiHeadAttention {
    /// The layer with the low-rank changes of its weights beside its projections. `source` is what the layer was read
    /// from, by [`AttentionWeights::read_base`].
    ///
    /// # Errors
    /// A change of some outputs of a projection and not of others; the errors of [`AttentionWeights::read`].
    pub(crate) fn with_changes(self, source: &AnySource) -> Result<Self> {
        // Nothing is beside the weights of most sources.
        if !source.has_low_rank() || !has_places(source)? {
            return Ok(self);
        }
        let numbers = RowNumbers { source, changes: RefCell::default(), next: Cell::default() };
        let (read, _) = AttentionWeights::read_from(self.config(), &numbers, &numbers.root())?;
        let config = self.config();
        let rows = Rows::from_config(config).map(Rows::count);
        let [q, k, v] = read.qkv.split(rows, config.resolved_num_key_value_heads())?;
        let gate = match read.gate {
            Some(gate) => Some(gate),
            None => read.qkv.gate(rows[0])?,
        };
        let (k, v) = match config.key_value_source {
            KeyValueSource::Projections => (Some(k), Some(v)),
            KeyValueSource::KeysAsValues => (Some(k), None),
            KeyValueSource::Shared { .. } => (None, None),
        };
        let all = [
            (ProjectionKind::Query, Some(q)),
            (ProjectionKind::Key, k),
            (ProjectionKind::Value, v),
            (ProjectionKind::Gate, gate),
            (ProjectionKind::Output, Some(read.o)),
        ];
        let (changes, mut layer) = (numbers.changes.into_inner(), self);
        for (kind, numbers) in all {
            let Some(numbers) = numbers else { continue };
            let rows = first_column(&numbers)?;
            for (start, change) in &changes {
                let own: Vec<usize> = rows.iter().map(|row| row.wrapping_sub(*start)).collect();
                let projection = layer.projection(kind)?;
                let changed = projection.with_change(change, &own)?;
                if changed.id() != projection.id() {
                    layer = layer.with_projection(kind, changed)?;
                }
            }
        }
        Ok(layer)
    }
}

impl AnySource<'_> {
    /// A layer of these rows of the weight `name`, which was read as [`base`](Self::base), with the low-rank changes
    /// of the weight beside it; the layer itself for any other source.
    ///
    /// # Errors
    /// A change of some of the rows and not of others.
    pub(crate) fn with_changes(&self, linear: Linear, name: &str, rows: Range<usize>) -> Result<Linear> {
        let rows: Vec<usize> = rows.collect();
        self.changes(name)?.iter().try_fold(linear, |linear, change| linear.with_change(change, &rows))
    }
}

/// The numbers of the rows that a projection has come from; `usize::MAX` for one that is not numbered.
fn first_column(numbers: &LinearWeights) -> Result<Vec<usize>> {
    if numbers.weight.elem_count() == 0 {
        return Ok(Vec::new());
    }
    let column: Vec<f64> = numbers.weight.narrow(1, 0, 1)?.flatten_all()?.to_vec1()?;
    Ok(column.into_iter().map(|row| if row < 0.0 { usize::MAX } else { row as usize }).collect())
}

/// A source in which each element of a changed weight is the number of its row, counted over all of them, and each of
/// another weight is -1.
struct RowNumbers<'a> {
    source: &'a AnySource<'a>,
    /// The changes, each with the number of the first row of its weight.
    changes: RefCell<Vec<(usize, LowRankChange)>>,
    /// The number of the next row.
    next: Cell<usize>,
}

impl WeightSource for RowNumbers<'_> {
    fn root(&self) -> Self {
        Self { source: self.source, changes: RefCell::default(), next: Cell::default() }
    }

    fn child(&self, _: &str) -> Self {
        self.root()
    }

    fn full_name(&self, name: &str) -> String {
        self.source.full_name(name)
    }

    fn names_below(&self, prefix: &str) -> Option<Vec<String>> {
        self.source.names_below(prefix)
    }

    fn contains(&self, name: &str) -> bool {
        self.source.contains(name)
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        self.source.shape(name)
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        if shape.len() < 2 {
            return self.source.get(name, shape);
        }
        let new = self.source.low_rank(name)?;
        let (Some(first), &[rows, columns]) = (new.first(), shape) else {
            return Ok(Tensor::full(-1f64, (), &Device::Cpu)?.broadcast_as(shape)?);
        };
        let mut changes = self.changes.borrow_mut();
        let out = if first.transposed { columns } else { rows };
        let start = self.next.replace(self.next.get() + out);
        let numbers = Tensor::arange(start as f64, (start + out) as f64, &Device::Cpu)?.to_dtype(DType::F64)?;
        let column = if first.transposed { numbers.reshape((1, out))? } else { numbers.reshape((out, 1))? };
        changes.extend(new.into_iter().map(|change| (start, change)));
        Ok(column.broadcast_as(shape)?)
    }
}
