//! `FillMask`: masked-token prediction on texts.

use candle_attention::checkpoint::AnySource;
use candle_attention::{Error, Result};
use candle_core::D;
use candle_nn::ops::softmax;

use crate::constructors::constructors;
use crate::folder::{ModelFolder, ModelSource, TokenizerConfig};
use crate::heads::kinds::MaskedLm;
use crate::model::hidden_states::rows;
use crate::text::batches::TextBatcher;
use crate::text::options::{EncodeOptions, check_finite, without_embeddings};

/// How many holes are decoded at a time: each has a score for every token of the vocabulary, and a text may consist of
/// mask tokens alone.
const HOLES: usize = 64;

/// Predicts the masked tokens of texts, as the `fill-mask` pipeline of transformers.
///
/// ```no_run
/// use candle_attention_text::FillMask;
/// use candle_core::{DType, Device};
/// let model = FillMask::from_folder("bert-base-uncased", DType::F32, &Device::Cpu)?;
/// for fill in &model.fill_mask(&format!("Paris is the {} of France.", model.mask_token()), 5)?[0] {
///     println!("{:.3} {}", fill.score, fill.token); // the most probable first
/// }
/// # Ok::<(), candle_attention::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct FillMask {
    head: MaskedLm,
    batcher: TextBatcher,
    mask: (String, u32),
}

/// A token predicted for a mask.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct MaskPrediction {
    /// The token as text, with the space before it if it has one.
    pub token: String,
    /// The id of the token in the vocabulary.
    pub id: u32,
    /// The probability of the token, from 0 to 1.
    pub score: f32,
}

impl FillMask {
    constructors! {
        /// The model of a folder: `config.json`, `tokenizer.json`, `model.safetensors` (or shards). The mask token is
        /// that of `tokenizer_config.json`, else `[MASK]` or `<mask>`.
        ///
        /// # Errors
        /// A file that is missing or malformed; those of [`MaskedLm::load`]; a tokenizer without a mask token.
        from_folder, from_files, from_hub, load;
    }

    fn open(source: ModelSource) -> Result<Self> {
        Self::with_source(source.folder, &AnySource::new(&source.weights(source.folder.path)?))
    }

    fn with_source(folder: ModelFolder, source: &AnySource) -> Result<Self> {
        let path = folder.path;
        let head = MaskedLm::load_from(&folder.transformer_config(path)?, source)?;
        let batcher = TextBatcher::load(folder, path, head.model())?;
        let stated = TokenizerConfig::load(folder, path)?;
        let mut names = stated.mask_token().into_iter().chain(["[MASK]", "<mask>"]);
        let mask = names.find_map(|name| Some((name.to_string(), batcher.tokenizer.id(name)?)));
        let Some(mask) = mask else {
            return Err(Error::file(path.join("tokenizer.json"), "it has no mask token such as `[MASK]`"));
        };
        Ok(Self { head, batcher, mask })
    }

    /// The model and its head.
    pub fn head(&self) -> &MaskedLm {
        &self.head
    }

    /// The text of the mask token, such as `[MASK]`.
    pub fn mask_token(&self) -> &str {
        &self.mask.0
    }

    /// For each mask token in `text`, the `top_k` most probable tokens, the most probable first.
    ///
    /// # Errors
    /// A text without a mask token within the maximum length; a token that the model does not have.
    pub fn fill_mask(&self, text: &str, top_k: usize) -> Result<Vec<Vec<MaskPrediction>>> {
        Ok(self.fill_masks(&[text], top_k, &EncodeOptions::default())?.remove(0))
    }

    /// [`fill_mask`](Self::fill_mask) for each of the texts.
    ///
    /// # Errors
    /// As [`fill_mask`](Self::fill_mask); a batch size of 0; a prompt.
    pub fn fill_masks(
        &self,
        texts: &[&str],
        top_k: usize,
        options: &EncodeOptions,
    ) -> Result<Vec<Vec<Vec<MaskPrediction>>>> {
        without_embeddings(options)?;
        let fills = self.batcher.batches(&self.head.model, texts, "", options)?.in_text_order(|batch| {
            let mut places = Vec::new();
            for (text, tokens) in batch.tokens.iter().enumerate() {
                let before = places.len();
                let holes = tokens.ids.iter().enumerate().filter(|(_, id)| **id == self.mask.1);
                places.extend(holes.map(|(place, _)| (text, place)));
                if places.len() == before {
                    let expected = format!("at least one `{}` within the maximum length", self.mask.0);
                    return Err(Error::value("the number of holes in a text", 0, expected));
                }
            }
            let hidden = self.batcher.hidden(&self.head.model, &batch.tokens)?;
            // Only these are decoded: a vocabulary is wide.
            let mut filled: Vec<Vec<Vec<MaskPrediction>>> = vec![Vec::new(); batch.tokens.len()];
            for places in places.chunks(HOLES) {
                let xs = hidden.tokens_at(places)?.unsqueeze(0)?; // (1, holes, hidden)
                let scores = rows(&softmax(&self.head.logits(&xs)?.squeeze(0)?, D::Minus1)?)?;
                for ((text, _), scores) in places.iter().zip(scores) {
                    filled[*text].push(self.best(&scores, top_k)?);
                }
            }
            Ok(filled)
        })?;
        let is_finite = |i: usize| Ok(fills[i].iter().flatten().all(|fill: &MaskPrediction| fill.score.is_finite()));
        check_finite("the scores", texts, self.batcher.dtype, is_finite)?;
        Ok(fills)
    }

    fn best(&self, scores: &[f32], top_k: usize) -> Result<Vec<MaskPrediction>> {
        let mut ids: Vec<u32> = (0..scores.len() as u32).collect();
        let score = |id: &u32| scores[*id as usize];
        ids.sort_by(|a, b| score(b).total_cmp(&score(a)));
        let fill =
            |id: u32| Ok(MaskPrediction { token: self.batcher.tokenizer.text(id)?, id, score: scores[id as usize] });
        ids.into_iter().take(top_k).map(fill).collect()
    }
}
