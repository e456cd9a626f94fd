//! Training runs and their folders: what is written to, prolonged, kept and refused.

use candle_attention_text::train::{Teacher, TrainConfig, Trainer};
use candle_core::{DType, Device};

use crate::common::{max_diff, says};
use crate::models::damaged_teacher;
use crate::train::{config, steps, teacher, texts, trainer};

#[test]
fn a_model_never_mixes_with_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let write = |config: TrainConfig, run: &str| {
        let trainer = trainer(config, None, &path(run));
        trainer.check_writable(path("model")).and_then(|()| trainer.write(path("model"), DType::F32))
    };
    write(config(), "first").unwrap();
    let first = std::fs::read(path("model/model.safetensors")).unwrap();
    std::fs::write(path("model/README.md"), "mine").unwrap();
    let other = "model: holds the model of another run, with other settings, texts or teacher";
    says(write(config().with_num_attention_heads(4), "other"), &[other]);
    says(write(config().with_seed(1), "second"), &[other]);
    assert!(std::fs::read(path("model/model.safetensors")).unwrap() == first);
    // The same run with more steps.
    let mut longer = trainer(config().with_steps(30), None, &path("first"));
    longer.step().unwrap();
    longer.write(path("model"), DType::F32).unwrap();
    assert!(std::fs::read(path("model/model.safetensors")).unwrap() != first);
    assert_eq!(std::fs::read(path("model/README.md")).unwrap(), b"mine");
    // Another version of this crate wrote the other files.
    std::fs::write(path("model/config.json"), "{}").unwrap();
    says(longer.check_writable(path("model")), &["config.json: belongs to another model"]);
}

/// A folder is written to only if it is new, empty, or this run's own.
#[test]
fn a_foreign_folder_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let trainer = trainer(config(), None, &path("run"));
    let refuses = |name: &str, part: &str| {
        says(Trainer::check(&config(), &texts(), None, path("run"), Some(&path(name))), &[name, part]);
        says(trainer.check_writable(path(name)), &[name, part]);
        says(trainer.write(path(name), DType::F32), &[name, part]);
    };
    std::fs::create_dir(path("notes")).unwrap();
    std::fs::write(path("notes/notes.txt"), "mine").unwrap();
    refuses("notes", "is a folder that this run did not make");
    std::fs::write(path("file"), "mine").unwrap();
    refuses("file", "is a file, expected a folder");
    // A model without the mark, as an earlier version of this crate wrote it.
    trainer.write(path("model"), DType::F32).unwrap();
    let weights = path("model/model.safetensors");
    let tensors = candle_core::safetensors::load(&weights, &Device::Cpu).unwrap();
    candle_core::safetensors::save(&tensors, &weights).unwrap();
    refuses("model", "its weights lack the mark of a run, as do those that earlier versions wrote");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(path("nowhere"), path("link")).unwrap();
        refuses("link", "is a link that leads nowhere, expected a folder");
        std::fs::create_dir(path("empty")).unwrap();
        std::os::unix::fs::symlink(path("empty"), path("other link")).unwrap();
        trainer.write(path("other link"), DType::F32).unwrap();
        assert!(path("empty/config.json").exists() && path("other link").is_symlink());
        trainer.write(path("empty"), DType::F16).unwrap();
    }
    assert_eq!(std::fs::read_dir(path("notes")).unwrap().count(), 1);
    assert_eq!(std::fs::read(path("file")).unwrap(), b"mine");
}

/// Short texts give fewer tokens than were asked for, and the run is resumed by the same configuration.
#[test]
fn the_vocabulary_is_what_the_texts_give() {
    let folder = tempfile::tempdir().unwrap();
    let asked = config().with_vocab_size(5_000);
    let mut whole = trainer(asked.clone(), None, folder.path());
    let found = whole.config().vocab_size;
    assert!((50..500).contains(&found), "{found}");
    whole.step().unwrap();
    whole.save().unwrap();
    let mut resumed = trainer(asked, None, folder.path());
    assert_eq!((resumed.config().vocab_size, resumed.steps_done()), (found, 1));
    assert_eq!(steps(&mut resumed, 100), steps(&mut whole, 100));
    // The vocabulary of exactly this size is the same.
    let other = tempfile::tempdir().unwrap();
    let mut exact = trainer(config().with_vocab_size(found), None, other.path());
    exact.step().unwrap();
    assert_eq!(steps(&mut exact, 100).len(), 19);
    let difference = max_diff(&exact.encode(&texts()).unwrap(), &resumed.encode(&texts()).unwrap());
    assert_eq!(difference, 0.0);
}

/// A run with more steps goes on, at the learning rate of the longer run.
#[test]
fn a_finished_run_is_prolonged() {
    let folder = tempfile::tempdir().unwrap();
    let mut short = trainer(config(), None, folder.path());
    let last = steps(&mut short, 100)[19];
    short.save().unwrap();
    let longer = config().with_steps(40).with_warmup_steps(4);
    let mut long = trainer(longer.clone(), None, folder.path());
    assert_eq!((long.steps_done(), long.prolonged_from()), (20, Some(20)));
    let steps = steps(&mut long, 100);
    assert_eq!((steps.len(), steps[0].number), (20, 21));
    assert!(steps[0].learning_rate > 10.0 * last.learning_rate, "{last:?}, {:?}", steps[0]);
    long.save().unwrap();
    let again = trainer(longer, None, folder.path());
    assert_eq!((again.steps_done(), again.prolonged_from()), (40, None));
}

/// Nothing of a teacher that gives NaN is kept, and what an earlier version kept is refused.
#[test]
fn a_teacher_that_is_not_finite_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    damaged_teacher(&path("teacher"));
    let damaged = Teacher::open(path("teacher"), DType::F32).unwrap();
    let new = |teacher: &Teacher| Trainer::new(config(), &texts(), Some(teacher), path("run"), None).map(|_| ());
    let error = new(&damaged).unwrap_err();
    assert!(matches!(error, candle_attention::Error::NotFinite { .. }), "{error}");
    assert_eq!(std::fs::read_dir(path("run")).unwrap().count(), 0);

    let good = teacher();
    new(&good).unwrap();
    let kept = std::fs::read_dir(path("run")).unwrap().next().unwrap().unwrap().path();
    let mut tensors = candle_core::safetensors::load(&kept, &Device::Cpu).unwrap();
    let damaged = (&tensors["embeddings"] * f64::NAN).unwrap();
    tensors.insert("embeddings".to_string(), damaged);
    candle_core::safetensors::save(&tensors, &kept).unwrap();
    says(new(&good), &["teacher-", "its embeddings of the teacher hold NaN or an infinity; remove the file"]);
}
