//! The third part of a block of EmbeddingGemma 2: an inner layer whose features are multiplied by a projection of the
//! token's embedding.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::weights::LinearWeights;
use candle_attention::{Quantization, Result, map_fields, share_fields};
use candle_attention_kernels::{Activation, Isa, ScratchPool, Team, element_count};
use candle_core::{Module, Tensor};

use crate::families::model::{Block as BlockRow, EmbeddingGateRow};
use crate::model::config::TextModelConfig;
use crate::model::mlp::Mlp;

/// The projections of embeddings for all blocks, and the norm of what each of them gives.
pub(crate) struct EmbeddingProjections {
    /// `(layers · size, hidden_size)`.
    weight: Tensor,
    quantization: Option<Quantization>,
    norm: Norm,
    size: usize,
}

impl EmbeddingProjections {
    /// Reads the projections from the body of a checkpoint.
    pub fn load(config: &TextModelConfig, row: &BlockRow, source: &AnySource) -> Result<Option<Self>> {
        let Some(names) = &row.embedding_gate else { return Ok(None) };
        let (size, hidden) = (config.size_of_gate(names)?, config.hidden_size);
        let rows = element_count("the projections of embeddings", &[config.num_hidden_layers, size])?;
        let projection = source.child(names.projection);
        let (weight, quantization) = (projection.get("weight", &[rows, hidden])?, projection.quantization("weight"));
        // The model divides by the root of `hidden_size` first, which to the norm is a larger epsilon.
        let eps = config.layer_norm_eps * hidden as f64;
        let norm = Norm::load(row.norm_kind, false, size, eps, &source.child(names.projection_norm))?;
        Ok(Some(Self { weight, quantization, norm, size }))
    }
}

/// `factor · (x + norm(last(activation(first(x)) · projection_norm(projection(embedding)))))`.
#[derive(Debug, Clone)]
pub(crate) struct EmbeddingGate {
    projection: Linear,
    projection_norm: Norm,
    mlp: Mlp,
    pub norm: Norm,
    /// `(1)`.
    pub factor: Tensor,
}

impl EmbeddingGate {
    /// Reads the part of block `index`, which is at the prefix of `source`.
    pub fn load(
        config: &TextModelConfig,
        row: &BlockRow,
        names: &EmbeddingGateRow,
        projections: &EmbeddingProjections,
        source: &AnySource,
        index: usize,
    ) -> Result<Self> {
        let (hidden, size) = (config.hidden_size, projections.size);
        let read = |name: &str, out, input| Linear::load_with_bias(&source.child(name), out, input, false);
        let own = LinearWeights::new(projections.weight.narrow(0, index * size, size)?, None);
        let mut projection = Linear::new(&source.full_name(names.projection), own, size, hidden)?;
        projections.quantization.map_or(Ok(()), |format| projection.quantize(format))?;
        if source.gives_own_tensors() {
            projection.pack()?;
        }
        if source.is_in_training() {
            projection.set_exact();
        }
        Ok(Self {
            projection,
            projection_norm: projections.norm.clone(),
            mlp: Mlp::plain(read(names.first, size, hidden)?, config.hidden_act, read(names.last, hidden, size)?),
            norm: config.norm(row, hidden, &source.child(names.norm))?,
            factor: source.get(names.factor, &[1])?,
        })
    }

    /// Packs the weights now and gives their tensors back, as [`Linear::pack`] does.
    pub fn pack(&mut self) -> Result<()> {
        self.projection.pack()?;
        self.mlp.pack()
    }

    /// xs and embeddings `(b, s, hidden_size)` → what is normalized and added to xs.
    pub fn forward(&self, xs: &Tensor, embeddings: &Tensor) -> Result<Tensor> {
        let factors = self.projection_norm.forward(&self.projection.forward_in_dtype(embeddings, xs.dtype())?)?;
        self.mlp.forward_times(xs, &factors)
    }

    pub fn supports_rows(&self) -> bool {
        self.projection.can_pack() && self.mlp.supports_rows()
    }

    /// Multiply-adds of [`forward_rows`](Self::forward_rows).
    pub fn multiply_adds(&self, tokens: usize) -> Result<usize> {
        Ok(self.projection.packed()?.multiply_adds(tokens).saturating_add(self.mlp.multiply_adds(tokens)?))
    }

    /// [`forward`](Self::forward) on CPU buffers `(tokens, hidden_size)`; only call it if
    /// [`supports_rows`](Self::supports_rows).
    pub fn forward_rows(
        &self,
        (isa, team): (Isa, Team),
        [xs, embeddings]: [&[f32]; 2],
        tokens: usize,
        scratch: &ScratchPool,
        outer: &mut [f32],
    ) -> Result<()> {
        let projection = self.projection.packed()?;
        let size = element_count("the projected embeddings", &[tokens, projection.out_features()])?;
        let mut factors = scratch.take(size)?;
        projection.multiply_into(team, embeddings, tokens, Activation::Identity, &mut factors)?;
        self.projection_norm.forward_rows(isa, team, &mut factors, None)?;
        self.mlp.forward_rows_times(team, xs, tokens, &factors, scratch, outer)
    }
}

map_fields!(EmbeddingGate { projection, projection_norm, mlp, norm, factor });

share_fields!(EmbeddingGate { projection, mlp });
