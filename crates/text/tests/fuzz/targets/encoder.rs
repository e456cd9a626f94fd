//! Folders of text encoders, damaged: what loads gives finite numbers of the right shape, or an error.

use arbitrary::{Result, Unstructured};
use candle_attention::Error;
use candle_attention::checkpoint::{Checkpoint, CheckpointSource};
use candle_attention_text::{CrossEncoder, EncodeOptions, FillMask, SentenceEncoder, TextClassifier};
use candle_core::{DType, Device, Tensor};

use crate::config::config;
use crate::file::{entries_like, header, safetensors};
use crate::folder::Folder;
use crate::json::{file_of, text};
use crate::model_folder::{MODELS, TOKENIZER, write_settings};
use crate::targets::detect::is_plain;
use crate::{message_of, rarely};

const MAX_BYTES: usize = 1 << 18;
const CPU: Device = Device::Cpu;

pub fn run(u: &mut Unstructured) -> Result<()> {
    let model = &MODELS[usize::from(u.arbitrary::<u8>()?) % MODELS.len()];
    let folder = Folder::new();
    let json = config(u, &model.config)?;
    folder.write("config.json", file_of(u, &json)?.as_bytes());
    folder.write("tokenizer.json", TOKENIZER.to_string().as_bytes());
    let width = json["hidden_size"].as_u64().or(json["dim"].as_u64()).unwrap_or(16).min(64) as usize;
    write_settings(u, &folder, width)?;
    let entries = if rarely(u, 3)? { entries_like(u, &model.entries)? } else { model.entries.clone() };
    let dtype = *u.choose(&[DType::F32, DType::F32, DType::F32, DType::BF16, DType::F64, DType::F16])?;
    let texts = [text(u, 6)?, text(u, 3)?];
    let Some((header, data)) = header(&entries, MAX_BYTES) else { return Ok(()) };
    let file = safetensors(&header, &data, header.len() as u64);
    let Ok(checkpoint) = Checkpoint::from_bytes(file).map_err(message_of) else { return Ok(()) };
    let texts = [texts[0].as_str(), texts[1].as_str()];
    // Half types overflow sooner than any weight shows, and an epsilon of nothing does not save a norm of equal
    // numbers.
    let tiny = |key: &str| json[key].as_f64().is_some_and(|eps| eps < 1e-30);
    let exact = matches!(dtype, DType::F32 | DType::F64);
    let plain = exact && !["layer_norm_eps", "layer_norm_epsilon", "norm_eps", "eps"].into_iter().any(tiny);
    let call = Call { path: folder.path(""), source: checkpoint.at("", dtype, &CPU), texts };
    let numbers = match model.name.as_str() {
        name if name.ends_with("mlm") => call.fill_mask(),
        name if name.ends_with("cross_encoder") => call.score_pairs(),
        name if name.ends_with("classifier") => call.classify(),
        _ => call.encode(),
    };
    match numbers {
        Ok(numbers) if plain && numbers.iter().any(|number| !number.is_finite()) => {
            assert!(!is_plain(&checkpoint), "NaN of plain weights: {numbers:?} of {json}");
        }
        Ok(_) => {}
        Err(error) => drop(message_of(error)),
    }
    Ok(())
}

/// A model folder, and what it reads.
struct Call<'a> {
    path: std::path::PathBuf,
    source: CheckpointSource,
    texts: [&'a str; 2],
}

impl Call<'_> {
    fn encode(self) -> Result<Vec<f32>, Error> {
        let encoder = SentenceEncoder::load(&self.path, self.source)?;
        let vectors = encoder.encode(&self.texts, &EncodeOptions::default())?;
        assert_eq!(vectors.dims(), [2, encoder.embedding_size()]);
        // Alone, a text has the same vector.
        let alone = encoder.encode(&self.texts[1..], &EncodeOptions::default())?;
        let (vectors, alone) = (numbers(&vectors), numbers(&alone));
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        assert!(vectors[alone.len()..].iter().zip(&alone).all(same), "another vector in another batch");
        Ok(vectors)
    }

    fn classify(self) -> Result<Vec<f32>, Error> {
        let classifier = TextClassifier::load(&self.path, self.source)?;
        assert!(!classifier.labels().is_empty());
        let labels = classifier.classify(&self.texts, &EncodeOptions::default())?;
        assert_eq!(labels.len(), 2);
        assert!(labels.iter().all(|labels| labels.len() == classifier.labels().len()));
        Ok(labels.iter().flatten().map(|label| label.score).collect())
    }

    fn score_pairs(self) -> Result<Vec<f32>, Error> {
        let encoder = CrossEncoder::load(&self.path, self.source)?;
        let [first, second] = self.texts;
        let scores = encoder.scores(&[(first, second), (second, first)], &EncodeOptions::default())?;
        assert_eq!(scores.len(), 2);
        Ok(scores)
    }

    fn fill_mask(self) -> Result<Vec<f32>, Error> {
        let model = FillMask::load(&self.path, self.source)?;
        let text = format!("{} {}", model.mask_token(), self.texts[0]);
        let predictions = model.fill_mask(&text, 3)?;
        let scores: Vec<f32> = predictions.iter().flatten().map(|prediction| prediction.score).collect();
        assert!(scores.iter().all(|score| score.is_nan() || (0.0..=1.0).contains(score)));
        Ok(scores)
    }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all()?.to_vec1()).expect("numbers")
}
