//! Rerankers that are decoders, in whole folders, against the CrossEncoder of sentence-transformers
//! (`tests/golden/rerankers.py`).

use std::path::Path;

use candle_attention::Error;
use candle_attention_text::{CrossEncoder, EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::{Golden, assert_close, fixture, says};
use crate::sentence_models::copied;

const CPU: Device = Device::Cpu;
const MODEL: f64 = 2e-5;

fn pairs() -> Vec<(String, String)> {
    serde_json::from_slice(&std::fs::read(fixture("rerankers.json")).unwrap()).unwrap()
}

fn open(folder: &Path) -> Result<CrossEncoder, Error> {
    CrossEncoder::from_folder(folder, DType::F32, &CPU)
}

fn scores(encoder: &CrossEncoder, options: &EncodeOptions) -> Vec<f32> {
    let pairs = pairs();
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(query, document)| (query.as_str(), document.as_str())).collect();
    encoder.scores(&pairs, options).unwrap()
}

/// The scores with and without a prompt, ragged and padded; a pair alone has the bits that it has in a batch.
fn model(name: &str) {
    let (golden, pairs) = (Golden::open("rerankers.safetensors"), pairs());
    let folder = fixture(&format!("rerankers/{name}"));
    let ragged = open(&folder).unwrap();
    let padded = CrossEncoder::from_folder(&folder, DType::F64, &CPU).unwrap();
    for prompt in [None, Some("web")] {
        let mut options = EncodeOptions::default();
        options.prompt_name = prompt;
        let case = prompt.map_or(name.to_string(), |prompt| format!("{name}.{prompt}"));
        let want = golden.get(&case);
        let got = scores(&ragged, &options);
        for (what, scores) in [("ragged", got.clone()), ("padded", scores(&padded, &options))] {
            assert_close(&format!("{case}, {what}"), &Tensor::new(scores, &CPU).unwrap(), &want, MODEL);
        }
        for ((query, document), score) in pairs.iter().zip(got) {
            assert_eq!(ragged.scores(&[(query, document)], &options).unwrap(), [score], "{case}: {query}");
        }
    }
    let mut options = EncodeOptions::default();
    options.prompt_name = Some("other");
    says(ragged.scores(&[("a", "b")], &options), &["prompt_name is other", "expected web"]);
}

#[test]
fn qwen3() {
    model("qwen3");
}

#[test]
fn llama() {
    model("llama");
}

#[test]
fn qwen3_head() {
    model("qwen3_head");
}

fn with_template(template: &str) -> tempfile::TempDir {
    let folder = copied("rerankers/qwen3");
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

/// A folder without modules is a reranker of `yes` and `no` if it is a language model; and a template may want its
/// texts as parts of messages.
#[test]
fn other_files_of_one_model_give_equal_scores() {
    let want = scores(&open(&fixture("rerankers/qwen3")).unwrap(), &EncodeOptions::default());
    let folder = copied("rerankers/qwen3");
    for file in ["modules.json", "sentence_bert_config.json"] {
        std::fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert_eq!(scores(&open(folder.path()).unwrap(), &EncodeOptions::default()), want);
    let template = std::fs::read_to_string(folder.path().join("chat_template.jinja")).unwrap();
    let parts = template.replace("message.content", "message.content[0].text");
    std::fs::write(folder.path().join("chat_template.jinja"), parts).unwrap();
    assert_eq!(scores(&open(folder.path()).unwrap(), &EncodeOptions::default()), want);
}

#[test]
fn options_of_the_template_reach_it() {
    let want = scores(&open(&fixture("rerankers/qwen3")).unwrap(), &EncodeOptions::default());
    let folder = copied("rerankers/qwen3");
    let path = folder.path().join("sentence_bert_config.json");
    let mut keys: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut state = |options: Value| {
        keys["processing_kwargs"] = options;
        std::fs::write(&path, keys.to_string()).unwrap();
        open(folder.path())
    };
    let thinking = state(json!({"chat_template": {"add_generation_prompt": true}})).unwrap();
    assert_ne!(scores(&thinking, &EncodeOptions::default()), want);
    says(state(json!({"text": {"truncation": false}})), &["`processing_kwargs.text.truncation` is false"]);
    says(state(json!({"chat_template": {"truncation": false}})), &["`processing_kwargs.chat_template.truncation`"]);
}

#[test]
fn templates_that_could_grow_or_lose_a_text_are_refused() {
    let refused = |template: &str, parts: &[&str]| says(open(with_template(template).path()), parts);
    let both = "{{ messages[0].content }} {{ messages[1].content }}";
    assert!(open(with_template(both).path()).is_ok());
    refused("{{ messages[0].content }}", &["the chat template is without it", "the role `document`"]);
    refused(&format!("{{% set a = 'x' * 999999 %}}{both}"), &["an operator `*`"]);
    refused(&format!("{{{{ messages[0].content ~ '~' }}}}{both}"), &["an operator `~`"]);
    refused(&format!("{{% set a %}}{both}{{% endset %}}"), &["a `set` without a value"]);
    refused(&format!("{{% macro a() %}}{{% endmacro %}}{both}"), &["a statement `macro`"]);
    refused(&format!("{both}{{{{ messages[0].content | replace('a', 'bb') }}}}"), &["the chat template is", "replace"]);
    refused(&format!("{both}{{% for a in messages %}}"), &["the chat template is"]);
    refused(&format!("{{# {{{{ ' #}}{{{{ 'a' * 9 }}}}{both}"), &["an operator `*`"]);
    refused(&format!("{{{{ {{'a': {{}}}} * 9 }}}}{both}"), &["an operator `{`"]);
    for list in ["[a, a]", "(a, a)", "a, a", "none or (a, a)", "none or [a]"] {
        refused(&format!("{{% set a = {list} %}}{both}"), &["the chat template is a list"]);
    }
    refused(&format!("{{{{ messages | trim }}}}{both}"), &["`trim` of something that is not a text"]);
    let nested = "{% for a in messages %}".repeat(20) + "x" + &"{% endfor %}".repeat(20);
    refused(&format!("{both}{nested}"), &["the chat template is", "fuel"]);
    refused(&"x".repeat(1 << 17), &["chat_template.jinja", "expected at most"]);
    // To minijinja `{#}` opens a comment, which ends at the next `#}`.
    refused(&format!("{{#}}{{{{ \"#}}{{% set a = 'x' * 9 %}}{{#\" }}}}#}}{both}"), &["an operator `*`"]);
    refused(&format!("{{{{ 'a\\' }}}} b' }}}}{both}"), &["an escaped quote in 'a"]);
    assert!(open(with_template(&format!("{{{{ 'a\\n' }}}}{both}")).path()).is_ok());
    for call in ["loop(messages)", "not loop(a)", "a.items()", "(a)(a)", "a[0]()", "'is'('a')"] {
        refused(&format!("{{% set b = {call} %}}{both}"), &["the chat template is a call of"]);
    }
    assert!(open(with_template(&format!("{both}{{{{ messages[0].role is not eq('a', ) }}}}")).path()).is_ok());
}

/// Parser and compiler of minijinja recurse along such rows, and rayon's threads have stacks of 2 MB.
#[test]
fn templates_that_are_nested_deep_are_refused() {
    let both = "{{ messages[0].content }} {{ messages[1].content }}";
    let rows =
        ["-", "not ", "a or ", "a if ", "a.", "a|", "a|list|", "a is "].map(|part| part.repeat(5_000 / part.len()));
    for row in rows.iter().chain([&"[0]".repeat(2_000), &"()".repeat(2_000)]) {
        let template = format!("{both}{{{{{row}a}}}}");
        let refuse = || {
            says(
                open(with_template(&template).path()),
                &["the number of words and signs in a statement of the chat template", "expected at most 200"],
            )
        };
        std::thread::scope(|scope| scope.spawn(refuse).join().unwrap());
    }
    let branches = "{% if a %}".to_string() + &"{% elif a %}".repeat(1_000) + "{% endif %}";
    says(
        open(with_template(&format!("{both}{branches}")).path()),
        &["the number of statements of the chat template", "expected at most 200"],
    );
    // As many as are allowed are compiled on a stack of 512 KiB.
    let most =
        both.to_string() + &format!("{{{{ {}1 }}}}", "-".repeat(197)) + "{% if a %}" + &"{% elif a %}".repeat(190);
    let folder = with_template(&(most + "{% endif %}"));
    let load = || assert!(open(folder.path()).is_ok());
    std::thread::scope(|scope| {
        std::thread::Builder::new().stack_size(1 << 19).spawn_scoped(scope, load).unwrap().join().unwrap()
    });
}

#[test]
fn models_that_are_no_rerankers_are_refused() {
    let changed = |file: &str, with: Value| {
        let folder = copied("rerankers/qwen3");
        let path = folder.path().join(file);
        let mut keys: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for (key, value) in with.as_object().unwrap() {
            keys[key] = value.clone();
        }
        std::fs::write(path, keys.to_string()).unwrap();
        folder
    };
    let token = changed("1_LogitScore/config.json", json!({"true_token_id": 5000}));
    says(open(token.path()), &["the largest of the tokens that are scored", "5000"]);
    let input = changed("1_LogitScore/config.json", json!({"module_input_name": "scores"}));
    says(open(input.path()), &["module_input_name is `scores`"]);
    says(open(changed("config.json", json!({"final_logit_softcapping": 30.0})).path()), &["final_logit_softcapping"]);
    says(open(changed("config.json", json!({"tie_word_embeddings": false})).path()), &["lm_head.weight"]);
    // A sentence encoder reads texts as they are.
    let folder = copied("rerankers/qwen3");
    std::fs::remove_file(folder.path().join("modules.json")).unwrap();
    says(SentenceEncoder::from_folder(folder.path(), DType::F32, &CPU), &["chat template"]);
}
