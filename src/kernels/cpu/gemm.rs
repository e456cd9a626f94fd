//! Products of activations with packed weights.
//!
//! An element of the result is a sum over the input features in order, whatever the other rows are. So the result of a
//! row is bitwise the same alone and in any batch, on any number of threads.

use rayon::prelude::*;

use super::element::Element;
use super::gemm_bf16::run_bf16;
use super::gemm_f32::run_f32;
use super::gemm_task::GemmTask;
use super::packing::{PackedWeights, Panels};
use super::scratch::ScratchPool;
use super::shared_out::SharedOut;
use crate::error::{Error, Result};
use crate::kernels::Activation;
use crate::tensor::{element_count, try_reserve};

/// Rows that one task multiplies with a panel before the next panel is fetched.
const ROW_BLOCK: usize = 64;
/// Multiply-adds below which a second thread costs more than it gains.
const MIN_PARALLEL_WORK: usize = 1 << 23;

impl PackedWeights {
    /// Computes `a Wᵀ + b` and its activation for `a` `(rows, in_features)`. `out` becomes `(rows, out_features)`.
    ///
    /// # Errors
    /// If `a` has another size, and if there is not enough memory.
    pub(crate) fn multiply<A: Element, O: Element>(
        &self,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: &mut Vec<O>,
    ) -> Result<()> {
        out.clear();
        if a.len() != element_count("the input of a product", &[rows, self.in_features])? {
            return Err(Error::shape("the input of a product", &[a.len()], format!("{rows} × {}", self.in_features)));
        }
        let size = element_count("the output of a product", &[rows, self.out_features])?;
        if size == 0 {
            return Ok(());
        }
        try_reserve("the output of a product", out, size)?;
        self.run_tasks(a, rows, activation, SharedOut(out.as_mut_ptr()))?;
        // SAFETY: the tasks cover all rows and panels, and each task that returns `Ok` has written all of its own.
        unsafe { out.set_len(size) };
        Ok(())
    }

    fn run_tasks<A: Element, O: Element>(
        &self,
        a: &[A],
        rows: usize,
        activation: Activation,
        out: SharedOut<O>,
    ) -> Result<()> {
        let panels = self.bias.len() / self.panel_width;
        let row_blocks = rows.div_ceil(ROW_BLOCK);
        let work = rows.saturating_mul(self.out_features).saturating_mul(self.in_features);
        let parallel = work >= MIN_PARALLEL_WORK && rayon::current_num_threads() > 1;
        // If there are few row blocks, the threads divide the panels instead.
        let wanted = if parallel { 4 * rayon::current_num_threads() } else { 1 };
        let groups = wanted.div_ceil(row_blocks.max(1)).min(panels).max(1);
        let group = panels.div_ceil(groups);
        let pool = ScratchPool::default();
        let run = |index: usize| {
            let (block, part) = (index / groups, index % groups);
            let task = GemmTask {
                weights: self,
                a,
                out,
                pool: &pool,
                from: block * ROW_BLOCK,
                to: rows.min((block + 1) * ROW_BLOCK),
                first: (part * group).min(panels),
                last: ((part + 1) * group).min(panels),
                activation,
            };
            match &self.panels {
                Panels::F32(panels) => run_f32(self.isa, task, panels),
                Panels::Bf16(panels) => run_bf16(self.isa, task, panels),
            }
        };
        let tasks = 0..row_blocks * groups;
        if parallel { tasks.into_par_iter().try_for_each(run) } else { tasks.into_iter().try_for_each(run) }
    }
}
