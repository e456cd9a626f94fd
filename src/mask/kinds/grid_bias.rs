//! Biases by the row and the column of a key in a grid (SAM).

use std::sync::Arc;

use candle_core::{D, DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::mask::dense::DenseMask;
use crate::mask::kinds::{Additive, MaskDims};
use crate::mask::lowered::LoweredMask;
use crate::mask::shape::AttnShape;
use crate::mask::term::{MaskCall, MaskTerm, Part};
use crate::tensor::element_count;

/// A bias per query and row of keys, and one per query and column, are added to the scores: key `j` stands in row
/// `j / width` and column `j % width`. Their memory is `s_q (height + width)` per head, not `s_q · s_kv`.
#[derive(Debug, Clone)]
pub(crate) struct GridBias {
    /// `(b, h, s_q, height)`.
    pub rows: Tensor,
    /// `(b, h, s_q, width)`.
    pub columns: Tensor,
}

impl GridBias {
    /// Rows and columns of keys.
    pub(crate) fn grid(&self) -> [usize; 2] {
        [&self.rows, &self.columns].map(|part| part.dims()[3])
    }

    /// The sums `(b, h, s_q, s_kv)`; differentiable.
    fn additive(&self) -> Result<Additive> {
        let (b, h, s_q, height) = self.rows.dims4()?;
        let s_kv = height * self.columns.dim(D::Minus1)?;
        element_count("a bias of rows and columns", &[b, h, s_q, s_kv])?;
        let sum = self.rows.unsqueeze(4)?.broadcast_add(&self.columns.unsqueeze(3)?)?;
        Additive::new(&sum.reshape((b, h, s_q, s_kv))?, MaskDims::Scores)
    }
}

impl MaskTerm for GridBias {
    fn check(&self, AttnShape { b, h, s_q, s_kv }: AttnShape) -> Result<()> {
        let fits = [&self.rows, &self.columns].iter().all(|part| part.rank() == 4 && part.dims()[..3] == [b, h, s_q]);
        if fits && self.grid().iter().product::<usize>() == s_kv {
            return Ok(());
        }
        let found = format!("{:?} and {:?}", self.rows.dims(), self.columns.dims());
        let expected = format!("({b}, {h}, {s_q}, rows) and ({b}, {h}, {s_q}, columns) of {s_kv} keys");
        Err(Error::value("the biases of rows and columns", found, expected))
    }

    fn dense(&self, call: &MaskCall, dtype: DType, device: &Device) -> Result<DenseMask> {
        self.additive()?.dense(call, dtype, device)
    }

    fn lower(&self, lowered: &mut LoweredMask, call: &MaskCall, device: &Device) -> Result<()> {
        if !lowered.is_for_cpu_kernel {
            return self.additive()?.lower(lowered, call, device);
        }
        let [rows, columns] = [&self.rows, &self.columns].map(|part| part.to_dtype(DType::F32));
        lowered.grids.push(Self { rows: rows?, columns: columns? });
        Ok(())
    }

    fn select(&self, part: &Part, _: &MaskCall) -> Result<Option<Arc<dyn MaskTerm>>> {
        let [rows, columns] = [&self.rows, &self.columns].map(|bias| part.select(bias, [1, 2]));
        Ok(Some(Arc::new(Self { rows: rows?, columns: columns? })))
    }

    fn tracks_gradient(&self) -> bool {
        self.rows.track_op() || self.columns.track_op()
    }

    fn describe(&self) -> String {
        let [height, width] = self.grid();
        format!("bias of {height} rows and {width} columns")
    }
}
