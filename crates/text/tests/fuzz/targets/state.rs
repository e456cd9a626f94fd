//! Saved training runs, damaged: a run continues with finite numbers, or there is an error.

use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use candle_attention_train::{Teacher, TrainConfig, Trainer};
use candle_core::DType;
use safetensors::SafeTensors;
use serde_json::{Map, Value};

use crate::file::{Entry, damage, header, safetensors};
use crate::folder::Folder;
use crate::json;
use crate::templates::entries_of;
use crate::{message_of, rarely, repository};

/// The name of a saved run in its folder.
const FILE: &str = "run.safetensors";

fn config() -> TrainConfig {
    TrainConfig {
        vocab_size: 16,
        hidden_size: 4,
        num_hidden_layers: 1,
        num_attention_heads: 2,
        intermediate_size: 4,
        max_position_embeddings: 8,
        max_length: 6,
        batch_size: 2,
        steps: 4,
        ..Default::default()
    }
}

static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| ["a b", "b a b", "a the", "the b"].map(str::to_string).to_vec());

static TEACHER: LazyLock<Teacher> =
    LazyLock::new(|| Teacher::open(repository("tests/fixtures/tiny-bert"), DType::F32).expect("a teacher"));

/// A run after its first step.
struct Saved {
    metadata: Map<String, Value>,
    entries: Vec<Entry>,
}

static SAVED: LazyLock<Saved> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder");
    let mut trainer = Trainer::new(config(), &TEXTS, &TEACHER, folder.path(), None).expect("a run");
    trainer.step().expect("a step");
    trainer.save().expect("a saved run");
    let bytes = std::fs::read(folder.path().join(FILE)).expect("the saved run");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("its header");
    let metadata = header.metadata().iter().flatten();
    let metadata = metadata.map(|(key, value)| (key.clone(), Value::String(value.clone()))).collect();
    Saved { metadata, entries: entries_of(&bytes) }
});

pub fn run(u: &mut Unstructured) -> Result<()> {
    let mut metadata = SAVED.metadata.clone();
    for _ in 0..u.int_in_range(0..=2)? {
        let key = metadata.keys().nth(u.choose_index(metadata.len().max(1))?).cloned().unwrap_or_default();
        let inner: Option<Value> = metadata.get(&key).and_then(|text| serde_json::from_str(text.as_str()?).ok());
        match (u.int_in_range(0..=5)?, inner) {
            (0, _) => drop(metadata.remove(&key)),
            (1, _) => drop(metadata.insert(key, Value::String(json::text(u, 6)?))),
            (2, _) => drop(metadata.insert("step".to_string(), u.arbitrary::<u64>()?.to_string().into())),
            (3, _) => drop(metadata.insert("step".to_string(), u.int_in_range(0..=6u8)?.to_string().into())),
            (_, Some(mut inner)) => {
                json::damage(u, &mut inner, 1, &["vocab", "steps", "hidden_size", "id", "content"], &["a", "[UNK]"])?;
                drop(metadata.insert(key, Value::String(inner.to_string())));
            }
            _ => {}
        }
    }
    let mut entries = SAVED.entries.clone();
    for _ in 0..u.int_in_range(0..=3)? {
        damage(u, &mut entries)?;
    }
    let Some((mut text, data)) = header(&entries, 1 << 18) else { return Ok(()) };
    if !rarely(u, 16)? {
        let comma = if entries.is_empty() { "" } else { "," };
        text.replace_range(..1, &format!("{{\"__metadata__\":{}{comma}", Value::Object(metadata)));
    }
    let folder = Folder::new();
    folder.write(FILE, &safetensors(&text, &data, text.len() as u64));
    let trainer = Trainer::new(config(), &TEXTS, &TEACHER, folder.path(""), None);
    let mut trainer = match trainer {
        Ok(trainer) => trainer,
        Err(error) => {
            message_of(error);
            return Ok(());
        }
    };
    let before = trainer.steps_done();
    match trainer.step() {
        Ok(Some(step)) => {
            assert_eq!((step.number, trainer.steps_done()), (before + 1, before + 1));
            assert!(step.loss.is_finite() && step.grad_norm.is_finite());
            if rarely(u, 8)? {
                trainer.save().expect("a run saved");
                let again = Trainer::new(config(), &TEXTS, &TEACHER, folder.path(""), None).expect("what was saved");
                assert_eq!(again.steps_done(), before + 1);
            }
        }
        Ok(None) => assert!(before >= config().steps),
        Err(error) => {
            message_of(error);
            assert_eq!(trainer.steps_done(), before);
        }
    }
    Ok(())
}
