//! The encoder without a head: token ids to hidden states, by one loop over the blocks.

use std::fmt;

use candle_attention::checkpoint::{AnySource, SharedTables, WeightSource};
use candle_attention::norm::Norm;
use candle_attention::ops::Linear;
use candle_attention::tensor::{Freeze, Frozen};
use candle_attention::{AttentionMask, Quantization, Result};
use candle_core::{DType, Device, Tensor};

use crate::model::block::Block;
use crate::model::config::TextModelConfig;
use crate::model::embedding_gate::EmbeddingProjections;
use crate::model::embeddings::Embeddings;
use crate::model::mixer::Stack;
use crate::model::options::{ForwardOptions, ForwardOutput};
use crate::model::places::Places;
use crate::model::stream::Stream;
use crate::model::tensor_stream::{Batch, TensorStream};

/// A text model without a head, such as BERT ([Devlin 2019](https://arxiv.org/abs/1810.04805)), Qwen 3 or the encoder
/// of T5: token ids to hidden states.
///
/// [`TextModelConfig`] lists the families. All of them are embeddings, blocks of self-attention and feed-forward, and
/// an optional norm at the end; what differs is data: the names of the tensors, where the norms are, how attention uses
/// positions.
///
/// # Shapes
/// ids `(b, s)` u32 → `(b, s, hidden_size)`, or a ragged batch of `tokens` ids → `(tokens, hidden_size)`.
///
/// # DTypes
/// f16, bf16, f32 or f64, that of the weights. Sums are accumulated in f32 for half types. From a source of a
/// [`Quantization`], on the CPU, projections and word embeddings are held in few bits, and everything else is f32.
///
/// # Memory
/// On the CPU, what is loaded from a checkpoint keeps the weights of its projections packed for the kernels, and that
/// is their only copy; so does what [`frozen`](Self::frozen) returns. Weights from other sources, which may be shared
/// or variables, are kept as they are, and packed beside that at the first call if they are no variables.
///
/// # Training
/// Loaded from variables (see [`Checkpoint::to_varmap`](candle_attention::checkpoint::Checkpoint::to_varmap)), each
/// parameter gets its gradient.
///
/// # Example
/// ```no_run
/// use candle_attention::AttentionMask;
/// use candle_attention::checkpoint::Checkpoint;
/// use candle_attention_text::{TextModelConfig, TextModel};
/// use candle_core::{DType, Device, Tensor};
/// let config = TextModelConfig::from_file("all-MiniLM-L6-v2/config.json")?;
/// let source = Checkpoint::open("all-MiniLM-L6-v2")?.at("", DType::F32, &Device::Cpu);
/// let model = TextModel::load(&config, source)?;
/// let ids = Tensor::new(&[[101u32, 7592, 102], [101, 102, 0]], &Device::Cpu)?;
/// let hidden = model.forward(&ids, None, &AttentionMask::lengths(&[3, 2]))?;
/// assert_eq!(hidden.dims(), [2, 3, 384]);
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Clone)]
pub struct TextModel {
    pub(crate) config: TextModelConfig,
    pub(crate) embeddings: Embeddings,
    pub(crate) embeddings_norm: Option<Norm>,
    /// From the width of the embeddings to the width of the model, where they differ.
    pub(crate) projection: Option<Linear>,
    pub(crate) blocks: Vec<Block>,
    /// The block of each layer: layers of ALBERT share their weights.
    pub(crate) layers: Vec<usize>,
    pub(crate) final_norm: Option<Norm>,
    /// From the width of the model to that of what it gives out, where they differ.
    pub(crate) final_projection: Option<Linear>,
    pub(crate) frozen: Frozen<Self>,
}

impl TextModel {
    /// Reads the model from the root of a checkpoint: bare, or under the prefix that it has in a checkpoint with a
    /// head, such as `bert`.
    ///
    /// Where the checkpoint holds adapters for tasks beside its weights (Jina embeddings v3), these are the weights
    /// without any; [`LoraTasks::apply`](candle_attention::lora::LoraTasks::apply) of [`TextModelConfig::tasks`] gives
    /// those of a task.
    ///
    /// # Errors
    /// An invalid configuration; a tensor missing or of the wrong shape, named.
    pub fn load(config: &TextModelConfig, source: impl WeightSource) -> Result<Self> {
        Self::load_from(config, &AnySource::new(&source))
    }

    pub(crate) fn load_from(config: &TextModelConfig, source: &AnySource) -> Result<Self> {
        let source = source.watched();
        let places = Places::find(config, &source);
        let model = Self::load_at(config, &places, None)?;
        places.check_read(config)?;
        Ok(model)
    }

    /// [`load_from`](Self::load_from) these places, without a look at what was not read. `tied` is the weight of a head
    /// that shares the word embeddings, named from the root.
    pub(crate) fn load_at(config: &TextModelConfig, places: &Places, tied: Option<&str>) -> Result<Self> {
        config.validate()?;
        let Some(tasks) = config.tasks()? else { return Self::load_plain(config, places, tied) };
        let root = AnySource::new(&tasks.apply(places.root.clone(), None)?);
        Self::load_plain(config, &Places::find(config, &root), tied)
    }

    /// [`load_at`](Self::load_at) places that have the weights under their own names.
    fn load_plain(config: &TextModelConfig, places: &Places, tied: Option<&str>) -> Result<Self> {
        let (beside, source) = (&places.root, &places.body);
        let row = config.row_in(source);
        let embeddings = Embeddings::load(config, source, places.word_embeddings(config, tied)?)?;
        let prefixes = config.block_prefixes();
        let index = config.first_attention_layer()?;
        let first = source.child(&prefixes[index]).child(row.block.attention);
        let (attention, _) = config.attention_of(&first, index)?;
        let pruned = config.pruned_heads.for_layer(index).len();
        let shared = SharedTables::read(&attention, pruned, &first)?;
        let projections = EmbeddingProjections::load(config, &row.block, source)?;
        let stack = Stack { config, row: &row.block, tables: &shared };
        let (mut blocks, mut loaded, mut layers) = (Vec::new(), Vec::new(), Vec::new());
        for (index, prefix) in prefixes.iter().enumerate() {
            layers.push(match loaded.iter().position(|earlier| *earlier == prefix) {
                Some(block) => block,
                None => {
                    blocks.push(Block::load(stack, &source.child(prefix), index, projections.as_ref())?);
                    loaded.push(prefix);
                    blocks.len() - 1
                }
            });
        }
        let (width, projection) = (config.embedding_size(), row.projection.map(|name| source.child(name)));
        let own = source.gives_own_tensors();
        let norm =
            |name: Option<&str>, size| name.map(|name| config.norm(&row.block, size, &source.child(name))).transpose();
        // It may be beside the body of the model.
        let final_projection = |(name, _)| {
            let (own, beside) = (source.child(name), beside.child(name));
            let source = if own.contains("weight") { own } else { beside };
            Linear::load_with_bias(&source, config.output_size()?, config.hidden_size, false)
        };
        let mut model = Self {
            config: config.clone(),
            embeddings,
            embeddings_norm: norm(row.embeddings_norm, width)?,
            // ALBERT has one even where the widths are the same.
            projection: projection
                .filter(|projection| width != config.hidden_size || projection.contains("weight"))
                .map(|projection| Linear::load_with_bias(&projection, config.hidden_size, width, true))
                .transpose()?,
            blocks,
            layers,
            final_norm: norm(row.final_norm, config.hidden_size)?,
            final_projection: row.final_projection.map(final_projection).transpose()?,
            frozen: Frozen::default(),
        };
        if own {
            model.freeze_in_place()?;
        }
        Ok(model)
    }

    /// The configuration.
    pub fn config(&self) -> &TextModelConfig {
        &self.config
    }

    /// The number of attention heads of each layer, 0 for one that has a convolution instead.
    pub fn heads(&self) -> Vec<usize> {
        let heads = |block: &Block| block.mixer.attention().map_or(0, |own| own.config().num_attention_heads);
        self.layers().map(heads).collect()
    }

    /// The width of the hidden states that the model gives out.
    pub(crate) fn output_size(&self) -> usize {
        self.final_projection.as_ref().map_or(self.config.hidden_size, Linear::out_features)
    }

    /// The block of each layer.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Block> {
        self.layers.iter().map(|block| &self.blocks[*block])
    }

    /// The format of the projections and of the word embeddings, if some of them are in few bits.
    pub fn quantization(&self) -> Option<Quantization> {
        let format = |block: &Block| block.mixer.quantization().or(block.feed_forward.quantization());
        self.blocks.iter().find_map(format).or(self.embeddings.words.quantization())
    }

    pub(crate) fn device(&self) -> &Device {
        self.embeddings.words.device()
    }

    pub(crate) fn dtype(&self) -> DType {
        self.embeddings.words.dtype()
    }

    /// Token ids `(b, s)` u32 under `mask` → hidden states `(b, s, hidden_size)`. Every token has segment type 0 unless
    /// `token_type_ids` `(b, s)` u32 are given.
    ///
    /// # Errors
    /// A sequence longer than `max_position_embeddings`; an id outside its table (checked on the CPU only: a check on a
    /// GPU would wait for the device); a mask that does not fit.
    pub fn forward(&self, ids: &Tensor, token_type_ids: Option<&Tensor>, mask: &AttentionMask) -> Result<Tensor> {
        self.forward_t(ids, token_type_ids, mask, false)
    }

    /// [`forward`](Self::forward), with dropout if `train`.
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward).
    pub fn forward_t(
        &self,
        ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        mask: &AttentionMask,
        train: bool,
    ) -> Result<Tensor> {
        let options = ForwardOptions::default().with_train(train);
        Ok(self.forward_with(ids, token_type_ids, mask, &options)?.hidden)
    }

    /// [`forward`](Self::forward) with options: head masks, and observing attention.
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward); a layer that does not exist; a number of head masks other than that of
    /// layers.
    pub fn forward_with(
        &self,
        ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        mask: &AttentionMask,
        options: &ForwardOptions,
    ) -> Result<ForwardOutput> {
        self.forward_padded(ids, token_type_ids, mask, None, options)
    }

    /// [`forward_with`](Self::forward_with) for sequences of these lengths, if they are not what the mask says.
    pub(crate) fn forward_padded(
        &self,
        ids: &Tensor,
        token_type_ids: Option<&Tensor>,
        mask: &AttentionMask,
        lengths: Option<&[usize]>,
        options: &ForwardOptions,
    ) -> Result<ForwardOutput> {
        options.check(self.layers.len())?;
        let hidden = self.embeddings.embed_padded(ids, token_type_ids)?;
        let batch = Batch::Padded { mask, options, lengths };
        let mut stream = TensorStream::new(hidden, batch, self.config.hidden_dropout_prob);
        self.run(&mut stream)?;
        Ok(ForwardOutput { hidden: stream.hidden, observed: stream.observed })
    }

    /// Everything between the sum of the embeddings and the hidden states of the last layer, whatever the batch and the
    /// device.
    pub(crate) fn run<S: Stream>(&self, stream: &mut S) -> Result<()> {
        if self.blocks.iter().any(|block| block.embedding_gate.is_some()) {
            stream.keep_embeddings()?;
        }
        if let Some(norm) = &self.embeddings_norm {
            stream.normalize(norm)?;
        }
        stream.drop_out()?;
        if let Some(projection) = &self.projection {
            stream.project(projection)?;
        }
        for (index, block) in self.layers().enumerate() {
            block.forward(stream, index)?;
        }
        if let Some(norm) = &self.final_norm {
            stream.normalize(norm)?;
        }
        match &self.final_projection {
            Some(projection) => stream.project(projection),
            None => Ok(()),
        }
    }
}

/// One line, whatever the sizes: what the model is, its dtype and its device.
impl fmt::Debug for TextModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        let mut shown = f.debug_struct("TextModel");
        shown
            .field("model_type", &config.model_type)
            .field("num_hidden_layers", &self.layers.len())
            .field("hidden_size", &config.hidden_size)
            .field("num_attention_heads", &config.num_attention_heads)
            .field("vocab_size", &config.vocab_size)
            .field("dtype", &self.dtype())
            .field("device", &self.device().location());
        if let Some(format) = self.quantization() {
            shown.field("quantization", &format_args!("{format}"));
        }
        shown.finish_non_exhaustive()
    }
}
