//! Models of a hub, by the program.

#[allow(dead_code, unused_imports, reason = "the suites of all packages share it")]
#[path = "../../../../tests/common/mod.rs"]
mod common;
#[allow(dead_code, unused_imports, reason = "the suite uses all of it")]
#[path = "../suite/programs.rs"]
mod programs;
#[allow(dead_code, reason = "the tests of the text package use all of it")]
#[path = "../../../text/tests/hub/server.rs"]
mod server;

use programs::{fails, program, succeeds};
use server::{Hub, ID};

#[test]
fn four_processes_bring_one_model_at_once() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let start = || {
        let mut command = crate::programs::program("encode");
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", cache.path());
        command.args(["--model", ID, "--json", "hello world"]).stdout(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let processes: Vec<_> = (0..4).map(|_| start()).collect();
    let outputs: Vec<_> = processes.into_iter().map(|process| process.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success() && output.stdout == outputs[0].stdout));
}

/// The address, the cache and the token of the hub come from the environment; afterwards the model runs offline.
#[test]
fn encode_downloads_from_the_hub_and_then_runs_offline() {
    let hub = Hub::start();
    let cache = tempfile::tempdir().unwrap();
    let encode = || {
        let mut command = program("encode");
        command.env("HF_ENDPOINT", &hub.endpoint).env("HF_HOME", cache.path()).env("HF_TOKEN", "hf_word");
        command.args(["--model", "tiny/bert", "--json", "hello world"]);
        command
    };
    fails(encode().env("HF_HUB_OFFLINE", "1"), "is not in the cache, and offline mode is on");
    assert_eq!(hub.request_count(), 0);
    let online = succeeds(&mut encode());
    assert!(hub.saw_only_token("hf_word"));
    let before = hub.request_count();
    for variable in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        for on in ["1", "true", "ON", "Yes"] {
            assert_eq!(succeeds(encode().env(variable, on)), online);
        }
    }
    assert_eq!(hub.request_count(), before);
    assert_eq!(succeeds(encode().env("HF_HUB_OFFLINE", "0")), online);
    assert!(hub.request_count() > before);
    fails(encode().args(["--revision", "dev"]), "no revision `dev`");
}
