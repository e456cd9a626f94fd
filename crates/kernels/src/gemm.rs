//! Products of activations with packed weights.
//!
//! An element of the result is a sum over the input features in order, whatever the other rows are. So the result of a
//! row is bitwise the same alone and in any batch, on any number of threads.

use super::activation::Activation;
use super::convert::Convert;
use super::error::{Error, Result};
use super::gemm_bf16::run_bf16;
use super::gemm_f32::run_f32;
use super::gemm_task::GemmTask;
use super::packing::{PackedWeights, Panels};
use super::scratch::ScratchPool;
use super::shared_out::SharedOut;
use super::size::{element_count, try_reserve};
use super::team::Team;

/// The input values of a task: 1 MB in f32, half of the L2 cache.
const BLOCK_VALUES: usize = 1 << 18;
/// The L1 cache of a core that has AMX.
const L1_BYTES: usize = 48 << 10;
/// The fewest multiply-adds of a task: some microseconds, many times what taking a task costs.
const MIN_TASK_WORK: usize = 1 << 18;
/// Tasks for each thread: more than one, so that a thread that loses its core to another program does not hold up all.
const TASKS_PER_THREAD: usize = 3;

impl PackedWeights {
    /// [`multiply`](Self::multiply) for one dtype of inputs and one of outputs.
    pub(crate) fn multiply_elements<A: Convert, O: Convert>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: &mut Vec<O>,
    ) -> Result<()> {
        out.clear();
        let size = self.output_size(a, rows)?;
        try_reserve("the output of a product", out, size)?;
        self.run_tasks(team, a, rows, activation, SharedOut(out.as_mut_ptr()))?;
        // SAFETY: the tasks cover all rows and panels, and each task that returns `Ok` has written all of its own.
        unsafe { out.set_len(size) };
        Ok(())
    }

    /// [`multiply_into`](Self::multiply_into) for one dtype of inputs and one of outputs.
    pub(crate) fn multiply_elements_into<A: Convert, O: Convert>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: &mut [O],
    ) -> Result<()> {
        let size = self.output_size(a, rows)?;
        if out.len() != size {
            return Err(Error::shape(
                "the output of a product",
                &[out.len()],
                format!("{rows} × {}", self.out_features),
            ));
        }
        self.run_tasks(team, a, rows, activation, SharedOut(out.as_mut_ptr()))
    }

    /// Multiply-adds of a product with `rows` rows.
    pub fn multiply_adds(&self, rows: usize) -> usize {
        rows.saturating_mul(self.out_features).saturating_mul(self.in_features)
    }

    /// Rows that one task multiplies with a panel before the next panel is fetched, a multiple of all tiles.
    fn row_block(&self) -> usize {
        match &self.panels {
            // Tiles of AMX are so fast that rows and panel have to come from the L1 cache, if they fit.
            Panels::Bf16(_) if self.isa.bf16_tiles().blocks => {
                let bytes = (32 + self.panel_width) * self.in_features * size_of::<half::bf16>();
                if bytes <= L1_BYTES { 32 } else { 128 }
            }
            _ => (BLOCK_VALUES / self.in_features.max(1)).next_multiple_of(32).clamp(64, 128),
        }
    }

    /// Checks the size of the input of a product, and gives that of its output.
    fn output_size<A>(&self, a: &[A], rows: usize) -> Result<usize> {
        if a.len() != element_count("the input of a product", &[rows, self.in_features])? {
            return Err(Error::shape("the input of a product", &[a.len()], format!("{rows} × {}", self.in_features)));
        }
        element_count("the output of a product", &[rows, self.out_features])
    }

    /// `a` has `rows` rows, and `out` is memory for as many.
    fn run_tasks<A: Convert, O: Convert>(
        &self,
        team: Team,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: SharedOut<O>,
    ) -> Result<()> {
        let panels = self.bias.len() / self.panel_width;
        let row_block = self.row_block();
        let row_blocks = rows.div_ceil(row_block);
        // If there are few row blocks, the threads divide the panels, too.
        let wanted = match team.threads() {
            1 => 1,
            threads => (TASKS_PER_THREAD * threads).min(self.multiply_adds(rows) / MIN_TASK_WORK),
        };
        let groups = wanted.div_ceil(row_blocks.max(1)).min(panels).max(1);
        let group = panels.div_ceil(groups);
        let pool = ScratchPool::default();
        team.try_for_each(row_blocks * groups, |index| {
            let (block, part) = (index / groups, index % groups);
            let task = GemmTask {
                weights: self,
                a,
                out,
                pool: &pool,
                from: block * row_block,
                to: rows.min((block + 1) * row_block),
                first: (part * group).min(panels),
                last: ((part + 1) * group).min(panels),
                activation,
            };
            match &self.panels {
                Panels::F32(panels) => run_f32(self.isa, task, panels),
                Panels::Bf16(panels) => run_bf16(self.isa, task, panels),
            }
        })
    }
}
