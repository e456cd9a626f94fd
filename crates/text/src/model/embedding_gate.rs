//! The third part of a block of EmbeddingGemma 2: an inner layer whose features are multiplied by a projection of the
//! token's embedding.

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::weights::LinearWeights;
use candle_attention::{Quantization, Result, map_fields, share_fields};
use candle_attention_kernels::{Activation, Isa, element_count};
use candle_core::{Module, Tensor};

use crate::families::model::Block as BlockRow;
use crate::model::config::TextModelConfig;
use crate::model::mlp::{Mlp, Rows};

/// The projections of embeddings of all blocks as one, beside the blocks.
const PROJECTION: &str = "ple.per_layer_model_projection";

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
        if !row.has_embedding_gate {
            return Ok(None);
        }
        let (size, hidden) = (config.size_of_gate()?, config.hidden_size);
        let rows = element_count("the projections of embeddings", &[config.num_hidden_layers, size])?;
        let projection = source.child(PROJECTION);
        let (weight, quantization) = (projection.get("weight", &[rows, hidden])?, projection.quantization("weight"));
        // The model divides by the root of `hidden_size` first, which to the norm is a larger epsilon.
        let eps = config.layer_norm_eps * hidden as f64;
        let norm = Norm::load(row.norm_kind, false, size, eps, &source.child("ple.per_layer_projection_norm"))?;
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
        projections: &EmbeddingProjections,
        source: &AnySource,
        index: usize,
    ) -> Result<Self> {
        let (hidden, size) = (config.hidden_size, projections.size);
        let read = |name: &str, out, input| Linear::load_with_bias(&source.child(name), out, input, false);
        let own = LinearWeights::new(projections.weight.narrow(0, index * size, size)?, None);
        let mut projection = Linear::new(&source.full_name(PROJECTION), own, size, hidden)?;
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
            mlp: Mlp::plain(
                read("ple_block.per_layer_input_gate", size, hidden)?,
                config.hidden_act,
                read("ple_block.per_layer_projection", hidden, size)?,
            ),
            norm: config.norm(row, hidden, &source.child("ple_block.post_per_layer_input_norm"))?,
            factor: source.get("layer_scalar", &[1])?,
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

    /// [`forward`](Self::forward) on CPU buffers, from rows and `embeddings` `(tokens, hidden_size)` to `outer` of the
    /// same shape; only call it if [`supports_rows`](Self::supports_rows).
    pub fn forward_rows(&self, isa: Isa, rows: Rows, embeddings: &[f32], outer: &mut [f32]) -> Result<()> {
        let Rows { team, tokens, scratch, .. } = rows;
        let projection = self.projection.packed()?;
        let size = element_count("the projected embeddings", &[tokens, projection.out_features()])?;
        let mut factors = scratch.take(size)?;
        projection.multiply_into(team, embeddings, tokens, Activation::Identity, &mut factors)?;
        self.projection_norm.forward_rows(isa, team, &mut factors, None)?;
        self.mlp.forward_rows_times(rows, &factors, outer)
    }
}

map_fields!(EmbeddingGate { projection, projection_norm, mlp, norm, factor });

share_fields!(EmbeddingGate { projection, mlp });
