//! Runs that are resumed with another number of threads.
//!
//! It is fixed when a process starts, so the test program starts itself.

use std::path::Path;
use std::process::Command;

use candle_attention_text::train::{Teacher, TrainConfig, Trainer};
use candle_core::DType;

use crate::common::fixture;

const RUN: &str = "CANDLE_ATTENTION_TEST_RUN";
const STEPS: &str = "CANDLE_ATTENTION_TEST_STEPS";

/// Large enough for products on several threads.
fn trainer(run: &Path, teacher: Option<&Teacher>) -> Trainer {
    let texts: Vec<String> =
        (0..300).map(|i| format!("the cat {} sat on {} mats and {} sofas", i % 97, i % 89, i % 83)).collect();
    let config = TrainConfig::default().with_vocab_size(120).with_hidden_size(if teacher.is_some() { 24 } else { 128 });
    let config = config.with_num_hidden_layers(1).with_intermediate_size(192).with_max_position_embeddings(24);
    let config = config.with_max_length(24).with_batch_size(64).with_steps(20).with_warmup_steps(2);
    Trainer::new(config, &texts, teacher, run, None).unwrap()
}

/// Not a test by itself: a process that trains for some steps, saves, and prints the losses.
#[test]
#[ignore = "run by the tests of this module"]
fn training() {
    let (Some(run), Ok(steps)) = (std::env::var_os(RUN), std::env::var(STEPS)) else { return };
    let run = Path::new(&run);
    let teacher = run.to_string_lossy().contains("teacher").then(|| Teacher::open(fixture("tiny-bert"), DType::F32));
    let teacher = teacher.map(|teacher| teacher.unwrap());
    let mut trainer = trainer(run, teacher.as_ref());
    for _ in 0..steps.parse().unwrap() {
        let step = trainer.step().unwrap().unwrap();
        println!("step {} {:08x} {:016x};", step.number, step.loss.to_bits(), step.grad_norm.to_bits());
    }
    trainer.save().unwrap();
}

/// The losses of some steps in a process of its own.
fn train(run: &Path, steps: usize, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "resume::training", "--ignored", "--nocapture"]);
    command.env(RUN, run).env(STEPS, steps.to_string()).envs(environment.iter().copied());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    output.lines().filter_map(|line| Some(line[line.find("step ")?..].to_string())).collect()
}

/// The run of one process, and runs that are resumed by others.
#[test]
fn a_run_resumes_to_the_bit_with_any_number_of_threads() {
    for (kind, isa) in [("masked", None), ("teacher", None), ("masked", Some("portable"))] {
        let folder = tempfile::tempdir().unwrap();
        let run = |name: &str| folder.path().join(format!("{kind}-{name}"));
        let isa = isa.map(|isa| ("CANDLE_ATTENTION_ISA", isa));
        let part = |name: &str, threads: &str, steps: usize| {
            let environment: Vec<_> = [("RAYON_NUM_THREADS", threads)].into_iter().chain(isa).collect();
            train(&run(name), steps, &environment)
        };
        let whole = part("whole", "1", 8);
        assert_eq!(whole.matches("step ").count(), 8, "{whole}");
        let parts = [part("parts", "2", 3), part("parts", "3", 1), part("parts", "1", 2), part("parts", "7", 2)];
        assert_eq!(parts.concat(), whole, "{kind}");
        let saved = |name: &str| std::fs::read(run(name).join("run.safetensors")).unwrap();
        assert!(saved("parts") == saved("whole"), "{kind}");
    }
}
