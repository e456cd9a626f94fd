//! The command `bench`: what it prints, never how fast.

use candle_attention_kernels::Blas;
use serde_json::Value;

use crate::models::tiny;
use crate::programs::{fails, program, succeeds};

#[test]
fn bench_prints_one_object() {
    let said = succeeds(program("bench").args(["--json", "--threads", "2"]));
    assert_eq!(said.lines().count(), 1);
    let report: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["candle_attention"], env!("CARGO_PKG_VERSION"));
    assert_eq!(report["model"], "the embedded model");
    assert_eq!((&report["device"], &report["threads"]), (&"cpu".into(), &2.into()));
    assert_eq!(report["system"], format!("{} {}", std::env::consts::OS, std::env::consts::ARCH));
    for key in ["processor", "instruction_set"] {
        assert!(!report[key].as_str().unwrap().is_empty(), "{key}: {said}");
    }
    assert_eq!(report["library"], serde_json::json!(Blas::linked().map(|library| library.name)));
    assert!(!cfg!(unix) || report["peak_memory_bytes"].as_u64().unwrap() > 1 << 20, "{said}");
    let results = report["results"].as_array().unwrap();
    let dtypes: Vec<&str> = results.iter().map(|result| result["dtype"].as_str().unwrap()).collect();
    assert_eq!(dtypes, ["f32", "f16", "bf16", "int8"]);
    assert_eq!(results[0]["least_cosine_to_f32"].as_f64().unwrap().round(), 1.0);
    for result in results {
        assert!(result["least_cosine_to_f32"].as_f64().unwrap() > 0.99, "{result}");
        let speeds = result["speeds"].as_array().unwrap();
        assert_eq!(speeds.iter().map(|speed| speed["texts"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 8, 64]);
        for speed in speeds {
            assert!(
                speed["tokens"].as_u64() > speed["texts"].as_u64() && speed["runs"].as_u64().unwrap() >= 5,
                "{speed}"
            );
            for key in ["milliseconds", "texts_per_second", "tokens_per_second"] {
                assert!(speed[key].as_f64().unwrap() > 0.0, "{key}: {speed}");
            }
        }
    }
}

#[test]
fn bench_prints_a_table_and_a_line_to_share() {
    let tiny = tiny();
    let bench = |more: &[&str]| {
        let mut command = program("bench");
        command.arg("--model").arg(tiny.path()).args(more);
        command
    };
    let said = succeeds(&mut bench(&["--dtype", "bf16"]));
    let rows: Vec<&str> = said.lines().filter(|line| line.starts_with("bf16 ")).collect();
    let last = said.lines().last().unwrap();
    assert!(rows.len() == 3 && said.contains("\nTo share it, copy this line"), "{said}");
    assert!(last.starts_with("| ") && last.ends_with(" |") && last.matches(" | ").count() == 5, "{said}");
    fails(&mut bench(&["--dtype", "int4"]), "f32, f64, f16, bf16, int8, q8_0, q4_0");
    fails(program("bench").args(["--model", "/no/such/folder"]), "/no/such/folder");
    fails(program("bench").args(["a text"]), "unexpected argument 'a text'");
}
