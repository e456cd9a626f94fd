//! `M3Encoder`: dense, sparse and multi-vector embeddings in one pass (BGE-M3).

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::tensor::compute_dtype;
use candle_attention::{Error, Result};
use candle_core::{DType, Tensor};

use crate::constructors::constructors;
use crate::folder::{ModelSource, TokenizerConfig};
use crate::model::hidden_states::first_not_finite;
use crate::model::mlp::linear;
use crate::model::pooling::l2_normalize;
use crate::model::text_model::TextModel;
use crate::sparse::vector::SparseVector;
use crate::text::batches::TextBatcher;
use crate::text::options::{EncodeOptions, check_finite, without_embeddings};
use crate::text::tokenizer::{Text, Tokens};

/// BGE-M3 ([Chen 2024](https://arxiv.org/abs/2402.03216)): one model whose hidden states give a dense embedding, the
/// weights of a text's tokens, and a vector per token, as `BGEM3FlagModel` of FlagEmbedding computes them.
///
/// ```no_run
/// use candle_attention_text::{EncodeOptions, M3Encoder, max_sim};
/// use candle_core::{DType, Device};
/// let encoder = M3Encoder::from_folder("bge-m3", DType::F32, &Device::Cpu)?;
/// let embeddings = encoder.encode_all(&["Who sleeps?", "A cat sleeps."], &EncodeOptions::default())?;
/// let (query, document) = (&embeddings[0], &embeddings[1]);
/// println!("{}", query.sparse.dot(&document.sparse));
/// println!("{:?}", max_sim(&query.tokens, &[document.tokens.clone()])?);
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct M3Encoder {
    model: TextModel,
    batcher: TextBatcher,
    /// One weight per token.
    sparse: Linear,
    /// The vectors of tokens.
    colbert: Linear,
    /// Ids of tokens that have no weight: special ones, and that for what the vocabulary lacks.
    weightless: Vec<u32>,
}

/// The embeddings of a text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct M3Embedding {
    /// The hidden state of the first token, of length 1: `(hidden_size)`, in f32 (f64 for an f64 model).
    pub dense: Tensor,
    /// The weights of the text's tokens, by their ids: `relu(w · h + b)`, the largest of each token.
    pub sparse: SparseVector,
    /// The vectors of all tokens but the first, each of length 1: `(tokens - 1, dim)`. FlagEmbedding divides their
    /// [`max_sim`](crate::max_sim) by the number of the query's vectors.
    pub tokens: Tensor,
}

impl M3Encoder {
    constructors! {
        /// The model of a folder: `config.json`, `tokenizer.json`, `model.safetensors` (or shards), and the heads,
        /// `sparse_linear.safetensors` and `colbert_linear.safetensors`, each with `weight` and `bias`. They are
        /// published as pickles (`.pt`), which this crate does not read: PyTorch and safetensors convert them.
        ///
        /// # Errors
        /// A file that is missing or malformed; a head of another width.
        from_folder, from_files;
    }

    fn open(source: ModelSource) -> Result<Self> {
        let folder = source.folder;
        let transformer = folder.transformer()?;
        let config = folder.transformer_config(&transformer)?;
        let sparse = head(source, "sparse_linear", config.hidden_size, Some(1))?;
        let colbert = head(source, "colbert_linear", config.hidden_size, None)?;
        let model = TextModel::load(&config, source.weights(&transformer)?)?;
        let batcher = TextBatcher::load(folder, &transformer, &model)?;
        let tokenizer = &batcher.tokenizer;
        let stated = TokenizerConfig::load(folder, &transformer)?;
        let mut weightless = vec![config.pad_token_id];
        weightless.extend(tokenizer.unknown(stated.unk_token()));
        for tokens in tokenizer.with_places().encode(&[Text::One("a")], "")? {
            let special = tokens.ids.into_iter().zip(tokens.places).filter(|(_, place)| place.special);
            weightless.extend(special.map(|(id, _)| id));
        }
        Ok(Self { model, batcher, sparse, colbert, weightless })
    }

    /// The maximum number of tokens of a text, special tokens included; longer texts are truncated.
    pub fn max_seq_length(&self) -> usize {
        self.batcher.max_seq_length
    }

    /// The three embeddings of each text, in the order of `texts`.
    ///
    /// # Errors
    /// A batch size of 0; a maximum length beyond the positions of the model; a prompt; a token that the model does not
    /// have; [`Error::NotFinite`] for the first text with an embedding that is not finite.
    pub fn encode_all(&self, texts: &[&str], options: &EncodeOptions) -> Result<Vec<M3Embedding>> {
        without_embeddings(options)?;
        let all = self.batcher.batches(&self.model, texts, "", options)?.in_text_order(|batch| {
            let hidden = self.batcher.hidden(&self.model, &batch.tokens)?;
            let tokens = batch.tokens.iter().enumerate();
            tokens.map(|(i, tokens)| self.embed(tokens, &hidden.text(i)?)).collect()
        })?;
        check_finite("an embedding", texts, self.batcher.dtype, |i| {
            let M3Embedding { dense, sparse, tokens } = &all[i];
            let is_finite = sparse.values.iter().all(|value| value.is_finite());
            let [dense, tokens] = [first_not_finite(&dense.unsqueeze(0)?)?, first_not_finite(tokens)?];
            Ok(is_finite && dense.is_none() && tokens.is_none())
        })?;
        Ok(all)
    }

    /// hidden `(tokens, hidden_size)` of one text.
    fn embed(&self, tokens: &Tokens, hidden: &Tensor) -> Result<M3Embedding> {
        let dtype = compute_dtype(hidden.dtype());
        let states = hidden.unsqueeze(0)?; // (1, tokens, hidden_size)
        let weights =
            self.sparse.forward_in_dtype(&states, dtype)?.maximum(0f64)?.flatten_all()?.to_dtype(DType::F32)?;
        let mut entries: Vec<(u32, f32)> = tokens.ids.iter().copied().zip(weights.to_vec1::<f32>()?).collect();
        entries.retain(|(id, weight)| *weight != 0.0 && !self.weightless.contains(id));
        // The largest weight of each token comes first.
        entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
        entries.dedup_by_key(|(id, _)| *id);
        let rest = states.narrow(1, 1, hidden.dim(0)?.saturating_sub(1))?;
        Ok(M3Embedding {
            dense: l2_normalize(&hidden.narrow(0, 0, 1)?.to_dtype(dtype)?)?.squeeze(0)?,
            sparse: SparseVector::from_entries(entries, None),
            tokens: l2_normalize(&self.colbert.forward_in_dtype(&rest.contiguous()?, dtype)?.squeeze(0)?)?,
        })
    }
}

/// The most features of a head's output.
const MAX_FEATURES: usize = 1 << 24;

/// The head in `<name>.safetensors`, `(out, hidden)`.
fn head(source: ModelSource, name: &str, hidden: usize, out: Option<usize>) -> Result<Linear> {
    let ModelSource { folder, compute_type, device } = source;
    let file = folder.path.join(format!("{name}.safetensors"));
    let pickle = folder.path.join(format!("{name}.pt"));
    if !folder.holds(&file)? && folder.holds(&pickle)? {
        let reason = format!("a pickle, which is not read: save its tensors as {name}.safetensors");
        return Err(Error::file(pickle, reason));
    }
    let source = folder.tensors(&file)?.at("", compute_type.dtype(), device);
    let found = match source.shape("weight")?.as_deref() {
        Some([found, _]) if (1..=MAX_FEATURES).contains(found) && out.is_none_or(|out| out == *found) => *found,
        other => {
            let found = format!("has shape {:?}", other.unwrap_or_default());
            let expected = format!("[{}, {hidden}]", out.map_or("features".to_string(), |out| out.to_string()));
            return Err(Error::Tensor { name: format!("{name}: weight"), found, expected });
        }
    };
    let mut linear = linear(&AnySource::new(&source), "", found, hidden, true)?;
    linear.pack()?;
    Ok(linear)
}
