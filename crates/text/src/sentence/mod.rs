//! `SentenceEncoder`: sentence embeddings.

mod adapted_calls;
pub(crate) mod adapters;
pub(crate) mod dense;
mod embedded;
mod encode;
pub(crate) mod fingerprint;
mod load;
pub(crate) mod modules;
pub(crate) mod quantize;
pub(crate) mod similarity;
mod spans;
mod static_embedding;
pub(crate) mod transformer;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;

use candle_attention::Result;
use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_core::{DType, Device, Tensor};

use crate::constructors::constructors;
use crate::folder::{ModelFolder, ModelSource};
use crate::model::hidden_states::HiddenStates;
use crate::sentence::load::{Loader, Route, Settings, Weights};
use crate::sentence::modules::Modules;
use crate::sentence::similarity::SimilarityFunction;
use crate::sentence::transformer::{Input, Transformer};
use crate::text::batches::check_dtype;
use crate::text::options::EncodeOptions;
#[cfg(feature = "visualize")]
use crate::{text::attention_maps::MapOptions, text::tokenizer::Text, visualize::AttentionMaps};

/// Sentence embeddings as sentence-transformers computes them: the tokenizer, [`TextModel`](crate::TextModel), pooling,
/// normalization and maximum length are those of the model's folder.
///
/// Any number of threads may share an encoder, by reference or in an `Arc`. On an Apple GPU one batch is
/// queued at a time, and other threads wait.
///
/// ```no_run
/// use candle_attention_text::{EncodeOptions, SentenceEncoder};
/// use candle_core::{DType, Device};
/// let encoder = SentenceEncoder::from_folder("all-MiniLM-L6-v2", DType::F32, &Device::Cpu)?;
/// let embeddings = encoder.encode(&["A cat sleeps.", "A kitten naps."], &EncodeOptions::default())?;
/// assert_eq!(embeddings.dims(), [2, 384]);
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Clone)]
pub struct SentenceEncoder {
    input: Input,
    modules: Modules,
    settings: Settings,
    /// The name of this encoder's route; `None` without a router.
    route_name: Option<String>,
    /// The encoders of the other routes.
    others: BTreeMap<String, SentenceEncoder>,
    /// Whether the router has no default route.
    needs_task: bool,
}

/// The modules of the default route, and the names of the routes.
impl fmt::Debug for SentenceEncoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SentenceEncoder");
        shown.field("input", &self.input).field("modules", &self.modules);
        if self.route_name.is_some() {
            shown.field("routes", &self.routes());
        }
        shown.finish_non_exhaustive()
    }
}

impl SentenceEncoder {
    fn new(input: Input, modules: Modules, settings: Settings) -> Self {
        Self { input, modules, settings, route_name: None, others: BTreeMap::new(), needs_task: false }
    }

    constructors! {
        /// The model of a folder as sentence-transformers, transformers or model2vec saves it: `config.json`,
        /// `tokenizer.json`, `model.safetensors` (or shards), and, if there is one, `modules.json` with what it names.
        /// Without it, a text is the mean of its tokens or, by a causal language model, its last token, without
        /// normalization.
        ///
        /// The first module is a transformer or a `StaticEmbedding`, a table of vectors; or a `Router` to several lists
        /// of modules ([`routes`](Self::routes)). After pooling, `Dense`, `LayerNorm`, `Normalize` and `Dropout` may
        /// follow in any order. A table named `embeddings` is of model2vec and computed as that does, without unknown
        /// tokens.
        ///
        /// A folder with `adapter_config.json`, as sentence-transformers saves a model with a LoRA adapter, is that
        /// adapter merged with its base model, which must be a local folder.
        ///
        /// # Errors
        /// A file that is missing or malformed; a model, module or tensor that this version cannot run; an adapter
        /// whose base model is not there.
        from_folder, from_files, from_hub;
    }

    fn open(source: ModelSource) -> Result<Self> {
        check_dtype(source.compute_type.dtype())?;
        Ok(Self::from_routes(Settings::load(source.folder)?, Loader::new(source, Weights::Folder).load()?))
    }

    /// The encoder of the default route, with one more for each further route.
    fn from_routes(settings: Settings, (mut routes, default): (Vec<Route>, Option<usize>)) -> Self {
        let own = routes.remove(default.unwrap_or(0));
        let mut encoder = Self::new(own.input, own.modules, settings.clone());
        (encoder.route_name, encoder.needs_task) = (own.name, default.is_none());
        for Route { name, input, modules } in routes {
            encoder.others.extend(name.map(|name| (name, Self::new(input, modules, settings.clone()))));
        }
        encoder
    }

    /// The encoder with the weights of the transformer from any source, such as variables that are being trained
    /// ([`VarMapSource`](candle_attention::checkpoint::VarMapSource)) or bytes; dense modules after it are read from
    /// the folder.
    ///
    /// # Errors
    /// The errors of [`from_folder`](Self::from_folder); a model with several transformers, or none.
    pub fn load(folder: impl AsRef<Path>, source: impl WeightSource) -> Result<Self> {
        let (folder, weights) = (ModelFolder::new(&folder), Weights::Given(Some(AnySource::new(&source))));
        let source = ModelSource { folder, compute_type: DType::F32.into(), device: &Device::Cpu };
        let loaded = Loader::new(source, weights).load()?;
        let encoder = Self::from_routes(Settings::load(folder)?, loaded);
        encoder.transformer()?;
        Ok(encoder)
    }

    /// Embedding dimension: that of the model's last module, or what the model truncates embeddings to
    /// (`truncate_dim` of `config_sentence_transformers.json`).
    pub fn embedding_size(&self) -> usize {
        self.size_for(&EncodeOptions::default())
    }

    /// The size to which the model truncates embeddings, where the options set none: `truncate_dim` of
    /// `config_sentence_transformers.json`.
    pub fn truncate_dim(&self) -> Option<usize> {
        self.settings.truncate_dim
    }

    /// The names and texts of the prompts that the model's folder states, sorted by name.
    pub fn prompts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings.prompts.all()
    }

    /// The name of the prompt of a call that names none, if the folder states one.
    pub fn default_prompt_name(&self) -> Option<&str> {
        self.settings.prompts.default_name()
    }

    /// How similar embeddings of this model are, as its folder says; else by the cosine.
    pub fn similarity_fn(&self) -> SimilarityFunction {
        self.settings.similarity
    }

    /// The maximum number of tokens of a text, special tokens included; longer texts are truncated. A static embedding
    /// may have none: `usize::MAX`.
    pub fn max_seq_length(&self) -> usize {
        match &self.input {
            Input::Transformer(transformer) => transformer.batcher.max_seq_length,
            Input::Static(table) => table.max_length.unwrap_or(usize::MAX),
        }
    }

    /// The maximum number of tokens of a text in a call with these options: theirs, or the model's, which may have
    /// another one for queries and for documents.
    pub fn max_seq_length_for(&self, options: &EncodeOptions) -> usize {
        // The error of a route that there is not is that of the call.
        let (encoder, options) = self.route_of(options).unwrap_or((self, *options));
        encoder.input.max_length_for(&options).unwrap_or_else(|| encoder.max_seq_length())
    }

    /// Byte ranges of `text` that each fit into the maximum length of the options, beside their prompt: overlapping
    /// windows over a long text, to embed each. Each begins and ends at a word if there is one, and repeats the words
    /// in the last quarter of the one before. A text that fits is one window, without the spaces around it.
    ///
    /// # Errors
    /// A maximum length beyond the positions of the model; a prompt that the model does not have;
    /// [`Error::Tokenizer`](candle_attention::Error::Tokenizer) if `tokenizer.json` is malformed in a way that only a
    /// text shows.
    pub fn windows(&self, text: &str, options: &EncodeOptions) -> Result<Vec<Range<usize>>> {
        let prompt = self.prompt(options)?;
        match &self.route_of(options)?.0.input {
            Input::Transformer(transformer) => transformer.tokenizer_for(options)?.windows(text, prompt),
            Input::Static(table) => table.tokenizer_for(options.max_length)?.windows(text, prompt),
        }
    }

    /// The attention weights for a text or a pair of texts, by layer and head, with the tokens. A prompt is put before
    /// the first text as in [`encode`](Self::encode). A text that is too long is truncated; of a pair, the longer text
    /// first.
    ///
    /// # Errors
    /// A layer, head or prompt that does not exist; a token that the model does not have.
    #[cfg(feature = "visualize")]
    pub fn attention<'a>(&self, text: impl Into<Text<'a>>, options: &MapOptions) -> Result<AttentionMaps> {
        let prompts = &self.settings.prompts;
        let prompt = options.prompt.map_or_else(|| prompts.named(options.prompt_name), Ok)?;
        let (first, second) = text.into().parts();
        let first = format!("{prompt}{first}");
        let prompted = second.map_or(Text::One(&first), |second| Text::Pair(&first, second));
        let transformer = self.transformer()?;
        transformer.batcher.attention(&transformer.model, prompted, options)
    }

    /// The names of the routes of a model with a `Router`, its default first: [`EncodeOptions::task`] names one of
    /// them. Empty for other models.
    pub fn routes(&self) -> Vec<&str> {
        self.route_name.iter().chain(self.others.keys()).map(String::as_str).collect()
    }

    /// The transformer; an error if the model has none.
    pub(crate) fn transformer(&self) -> Result<&Transformer> {
        self.input.transformer()
    }

    /// This encoder with another transformer in its route.
    pub(crate) fn with_transformer(&self, transformer: Transformer) -> Self {
        Self { input: Input::Transformer(Box::new(transformer)), ..self.clone() }
    }

    /// The embeddings of texts with these hidden states, `(b, size)`, pooled without the first `excluded_prefix` tokens
    /// of each.
    pub(crate) fn pool_hidden(&self, hidden: &HiddenStates, excluded_prefix: usize) -> Result<Tensor> {
        self.modules.forward(self.transformer()?.pool_hidden(hidden, excluded_prefix)?)
    }

    /// The size of an embedding before truncation.
    pub(crate) fn output_size(&self) -> usize {
        self.modules.output_size(self.input.output_size())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;

    use candle_attention::Error;

    use super::*;
    use crate::text::batches::TextBatcher;
    use crate::text::in_flight::InFlight;

    fn encoder_batcher(encoder: &mut SentenceEncoder) -> &mut TextBatcher {
        match &mut encoder.input {
            Input::Transformer(transformer) => &mut transformer.batcher,
            Input::Static(_) => panic!("a transformer"),
        }
    }

    #[test]
    fn a_hundred_threads_share_one_encoder() -> candle_attention::Result<()> {
        let mut encoder = SentenceEncoder::embedded(DType::F32, &Device::Cpu)?;
        let texts = ["A cat sleeps.", "Stocks fell sharply today.", "A kitten naps on the couch."];
        let one_by_one = || EncodeOptions::default().with_batch_size(1);
        let expected = encoder.encode(&texts, &one_by_one())?.to_vec2::<f32>()?;
        encoder_batcher(&mut encoder).in_flight = InFlight::new(|| Ok(()));
        let (inside, most, batches) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let encoder = encoder.clone();
        thread::scope(|scope| {
            let run = || {
                let (of, options) = (encoder.transformer()?, one_by_one());
                let vectors = of.batcher.batches(&of.model, &texts, "", &options)?.in_text_order(|batch| {
                    most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                    let pooled = encoder.pool_hidden(&of.batcher.hidden(&of.model, &batch.tokens)?, 0)?;
                    batches.fetch_add(1, SeqCst);
                    inside.fetch_sub(1, SeqCst);
                    Ok(vec![pooled])
                })?;
                Ok::<_, Error>(Tensor::cat(&vectors, 0)?.to_vec2::<f32>()?)
            };
            let threads: Vec<_> = (0..100).map(|_| scope.spawn(run)).collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().unwrap(), expected));
        });
        assert_eq!(batches.into_inner(), 300);
        assert_eq!(most.into_inner(), 1);
        Ok(())
    }
}
