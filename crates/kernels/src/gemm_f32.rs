//! Products with packed f32 weights.

use super::convert::Convert;
use super::error::Result;
use super::gemm_task::GemmTask;
use super::isa::Isa;
use super::isa::kernel::Kernel;
use super::isa::simd::Simd;
use super::microkernel::{StridedRows, microkernel};

/// Runs a task on the packed panels of its weights.
pub(super) fn run_f32<A: Convert, O: Convert>(isa: Isa, task: GemmTask<A, O>, panels: &[f32]) -> Result<()> {
    // Inputs in f32; not more than there are inputs, so the product does not wrap around.
    let size = if A::IS_F32 { 0 } else { (task.to - task.from) * task.weights.in_features };
    let mut upcast = task.pool.take(size)?;
    isa.run(GemmF32 { task, panels, upcast: &mut upcast });
    Ok(())
}

struct GemmF32<'a, A, O> {
    task: GemmTask<'a, A, O>,
    panels: &'a [f32],
    upcast: &'a mut [f32],
}

impl<A: Convert, O: Convert> Kernel for GemmF32<'_, A, O> {
    #[inline(always)]
    fn run<S: Simd, const MR: usize, const NR: usize>(self, s: S) {
        let Self { task, panels, upcast } = self;
        let (k, width) = (task.weights.in_features, task.weights.panel_width);
        assert_eq!(width, NR * S::LANES, "the weights are packed for another instruction set");
        let rows = task.to - task.from;
        let a = A::as_f32(&task.a[task.from * k..task.to * k], upcast);
        for panel in task.first..task.last {
            let terms = &panels[panel * width * k..][..width * k];
            let mut row = 0;
            // Only the first tile fetches the panel from afar; the others find it in the cache.
            if MR <= rows {
                tile::<S, A, O, MR, NR, true>(s, &task, a, terms, (panel, 0));
                row = MR;
            }
            while row + MR <= rows {
                tile::<S, A, O, MR, NR, false>(s, &task, &a[row * k..], terms, (panel, row));
                row += MR;
            }
            // The remaining rows, by four and by one.
            while MR > 4 && row + 4 <= rows {
                tile::<S, A, O, 4, NR, true>(s, &task, &a[row * k..], terms, (panel, row));
                row += 4;
            }
            while row < rows {
                tile::<S, A, O, 1, NR, true>(s, &task, &a[row * k..], terms, (panel, row));
                row += 1;
            }
        }
    }
}

/// Computes `MR` rows of a task, from `row`. `PREFETCH`: whether the panel comes from memory.
#[inline(always)]
fn tile<S: Simd, A: Convert, O: Convert, const MR: usize, const NR: usize, const PREFETCH: bool>(
    s: S,
    task: &GemmTask<A, O>,
    a: &[f32],
    terms: &[f32],
    (panel, row): (usize, usize),
) {
    let (k, width) = (task.weights.in_features, NR * S::LANES);
    assert!(a.len() >= MR * k && terms.len() == width * k);
    let a = StridedRows { at: a.as_ptr(), stride: k };
    // SAFETY: the assertion checks the lengths.
    let sums = unsafe { microkernel::<S, MR, NR, PREFETCH>(s, k, a, terms.as_ptr(), width) };
    for (r, sums) in sums.into_iter().enumerate() {
        // SAFETY: rows `row .. row + MR` are rows of this task, and a register tile is one panel wide.
        unsafe { task.store(s, panel, task.from + row + r, &sums) };
    }
}
