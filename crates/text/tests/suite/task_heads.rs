//! Heads: models against transformers (`tests/golden/encoders.py`), texts against what its pipelines and the
//! CrossEncoder of sentence-transformers say of a head made of the tiny BERT's own tensors.

use std::path::Path;

use candle_attention::AttentionMask;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{
    EncodeOptions, FillMask, MaskedLm, SequenceClassifier, TaskHead, Text, TextClassifier, TextModelConfig,
    TokenClassificationHead,
};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::{assert_close, fixture, says};
use crate::models::{FOX, cross, folder};

const CPU: Device = Device::Cpu;
const MODEL: f64 = 2e-5;

/// `[ids, types, logits]` and lengths of a golden file; types of zeros where it has none.
fn golden(name: &str) -> ([Tensor; 3], Vec<usize>) {
    let golden = Checkpoint::open(fixture(&format!("encoders/{name}/golden.safetensors"))).unwrap();
    let get = |name: &str, dtype| golden.tensor(name, &CPU).unwrap().to_dtype(dtype).unwrap();
    let lengths = get("lengths", DType::I64).to_vec1::<i64>().unwrap().iter().map(|&n| n as usize).collect();
    let ids = get("ids", DType::U32);
    let types = if golden.contains("types") { get("types", DType::U32) } else { ids.zeros_like().unwrap() };
    ([ids, types, get("logits", DType::F32)], lengths)
}

fn open(name: &str) -> (TextModelConfig, Checkpoint) {
    let folder = fixture(&format!("encoders/{name}"));
    (TextModelConfig::from_file(folder.join("config.json")).unwrap(), Checkpoint::open(folder).unwrap())
}

fn classifier(name: &str, labels: &[&str]) {
    let ([ids, types, want], lengths) = golden(name);
    let (config, checkpoint) = open(name);
    for (dtype, tolerance) in [(DType::F32, MODEL), (DType::F64, MODEL), (DType::BF16, 8e-2)] {
        let head = SequenceClassifier::load(&config, checkpoint.at("", dtype, &CPU)).unwrap();
        assert_eq!(head.labels(), labels);
        assert_close(name, &head.forward(&ids, Some(&types), &lengths).unwrap(), &want, tolerance);
    }
    says(MaskedLm::load(&config, checkpoint.at("", DType::F32, &CPU)), &["is missing", "no head for masked"]);
}

fn masked(name: &str) {
    let ([ids, types, want], lengths) = golden(name);
    let (config, checkpoint) = open(name);
    let head = MaskedLm::load(&config, checkpoint.at("", DType::F32, &CPU)).unwrap();
    let got = head.forward(&ids, Some(&types), &AttentionMask::lengths(&lengths)).unwrap();
    for (row, &length) in lengths.iter().enumerate() {
        let tokens = |t: &Tensor| t.get(row).unwrap().narrow(0, 0, length).unwrap();
        assert_close(name, &tokens(&got), &tokens(&want), MODEL);
    }
    let head = SequenceClassifier::load(&config, checkpoint.at("", DType::F32, &CPU));
    says(head, &["is missing", "no head for sequence classification"]);
}

fn tokens(name: &str, labels: &[&str]) {
    let ([ids, types, want], lengths) = golden(name);
    let (config, checkpoint) = open(name);
    let head = TokenClassificationHead::load(&config, checkpoint.at("", DType::F32, &CPU)).unwrap();
    assert_eq!(head.labels(), labels);
    let got = head.forward(&ids, Some(&types), &AttentionMask::lengths(&lengths)).unwrap();
    for (row, &length) in lengths.iter().enumerate() {
        let tokens = |t: &Tensor| t.get(row).unwrap().narrow(0, 0, length).unwrap();
        assert_close(name, &tokens(&got), &tokens(&want), MODEL);
    }
    let folder = fixture(&format!("encoders/{name}"));
    assert_eq!(TaskHead::from_folder(&folder).unwrap(), TaskHead::TokenClassification);
    let other = SequenceClassifier::load(&config, checkpoint.at("", DType::F32, &CPU));
    assert!(other.is_err(), "{name}: the head classifies no texts");
}

macro_rules! heads {
    ($($name:ident $check:ident($($labels:expr)?);)*) => {$(
        #[test]
        fn $name() {
            $check(stringify!($name) $(, &$labels)?);
        }
    )*};
}

heads! {
    bert_cross_encoder classifier(["LABEL_0"]);
    roberta_classifier classifier(["contradiction", "entailment", "neutral"]);
    distilbert_classifier classifier(["NEGATIVE", "POSITIVE"]);
    electra_classifier classifier(["LABEL_0", "LABEL_1"]);
    modernbert_classifier classifier(["LABEL_0", "LABEL_1", "LABEL_2"]);
    albert_classifier classifier(["LABEL_0", "LABEL_1"]);
    deberta_v2_cross_encoder classifier(["LABEL_0"]);
    deberta_mlm masked();
    roberta_token_classifier tokens(["LABEL_0", "LABEL_1", "LABEL_2"]);
    distilbert_token_classifier tokens(["O", "B-PER", "I-PER"]);
    electra_token_classifier tokens(["LABEL_0", "LABEL_1"]);
    albert_token_classifier tokens(["LABEL_0", "LABEL_1"]);
    mpnet_token_classifier tokens(["LABEL_0", "LABEL_1"]);
    modernbert_token_classifier tokens(["LABEL_0", "LABEL_1", "LABEL_2"]);
    nomic_bert_token_classifier tokens(["LABEL_0", "LABEL_1"]);
    bert_mlm masked();
    roberta_mlm masked();
    distilbert_mlm masked();
    modernbert_mlm masked();
    albert_mlm masked();
    electra_mlm masked();
    gte_mlm masked();
    new_mlm masked();
}

#[test]
fn gte_classifier_equals_transformers() {
    let ([ids, types, want], lengths) = golden("gte_classifier");
    let (config, checkpoint) = open("gte_classifier");
    let source = checkpoint.at("", DType::F32, &CPU);
    let head = SequenceClassifier::load(&config, source.clone()).unwrap();
    assert_close("gte", &head.forward(&ids, Some(&types), &lengths).unwrap(), &want, MODEL);
    says(MaskedLm::load(&config, source), &["`lm_head.dense.weight` is missing", "no head for masked"]);
}

/// Decoders read the last token, and have no head for masked language modeling.
#[test]
fn decoder_classifiers_equal_transformers() {
    for (name, labels) in [("qwen3_classifier", 3), ("gemma3_text_classifier", 1)] {
        let ([ids, _, want], lengths) = golden(name);
        let (config, checkpoint) = open(name);
        for dtype in [DType::F32, DType::F64] {
            let head = SequenceClassifier::load(&config, checkpoint.at("", dtype, &CPU)).unwrap();
            assert_eq!(head.labels().len(), labels);
            assert_close(name, &head.forward(&ids, None, &lengths).unwrap(), &want, MODEL);
            // Padding at the end of a text is not read; without any token left, the first one is.
            let padded =
                Tensor::cat(&[ids.clone(), Tensor::full(config.pad_token_id, (3, 2), &CPU).unwrap()], 1).unwrap();
            let longer: Vec<usize> = lengths.iter().map(|length| length + 1).collect();
            let head = head.frozen().unwrap();
            let got = head.forward(&padded, None, &longer).unwrap();
            let causal = config.model_type == "qwen3";
            assert!(!causal || crate::common::max_diff(&got, &head.forward(&ids, None, &lengths).unwrap()) < MODEL);
            let empty = head.forward(&padded, None, &[0, 1, 1]);
            says(empty, &["the number of tokens of text 0 is 0"]);
        }
        says(MaskedLm::load(&config, checkpoint.at("", DType::F32, &CPU)), &["model_type", "masked-language head"]);
    }
}

const COUNT: &str = "one two three four five six seven eight nine ten";

#[test]
fn cross_encoder_scores_and_ranks_pairs() {
    let one = json!({"id2label": {"0": "LABEL_0"}});
    let plain = folder(1, one.clone());
    let encoder = cross(plain.path()).unwrap();
    // Cut at 16 tokens: the second text, the first, an empty one, both alike.
    let pairs = [("the cat sat", "on the mat"), ("hello world", FOX), (FOX, "hello"), ("a", ""), (COUNT, COUNT)];
    let want = [0.439909f32, 0.5210761, 0.6873816, 0.7259424, 0.5048603];
    let options = EncodeOptions::default();
    let tensor = |numbers: &[f32]| Tensor::new(numbers, &CPU).unwrap();
    for batch_size in [1, 2, 8] {
        let got = encoder.scores(&pairs, &options.with_batch_size(batch_size)).unwrap();
        assert_close("scores", &tensor(&got), &tensor(&want), 1e-5);
    }
    let ranked = encoder.rank("the cat sat", &["on the mat", "hello", "a dog runs"], &options).unwrap();
    assert_eq!(ranked.iter().map(|ranked| ranked.index).collect::<Vec<_>>(), [1, 2, 0]);
    let scores: Vec<f32> = ranked.iter().map(|ranked| ranked.score).collect();
    assert_close("ranked", &tensor(&scores), &tensor(&[0.584386, 0.510868, 0.439909]), 1e-5);
    assert!(encoder.scores(&[], &options).unwrap().is_empty());
    assert!(encoder.rank("the cat sat", &[], &options).unwrap().is_empty());
    says(encoder.scores(&pairs, &options.with_prompt_name("query")), &["prompt_name is query", "none"]);

    // No sigmoid, in each of the places that say so.
    let identity = "torch.nn.modules.linear.Identity";
    let logit = |folder: &Path| cross(folder).unwrap().scores(&pairs[..1], &options).unwrap()[0];
    let want = (want[0] / (1.0 - want[0])).ln();
    for with in [
        json!({"sentence_transformers": {"activation_fn": identity}}),
        json!({"sbert_ce_default_activation_function": identity}),
    ] {
        let mut keys = one.clone();
        keys.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
        assert!((logit(folder(1, keys).path()) - want).abs() < 1e-4);
    }
    let own = plain.path().join("config_sentence_transformers.json");
    std::fs::write(&own, json!({"activation_fn": identity}).to_string()).unwrap();
    assert!((logit(plain.path()) - want).abs() < 1e-4);
    std::fs::write(&own, json!({"activation_fn": "torch.nn.modules.activation.Tanh"}).to_string()).unwrap();
    says(cross(plain.path()), &["config_sentence_transformers.json", "activation.Tanh"]);

    let logit = encoder.logits(&pairs[..1], &options).unwrap();
    assert!(encoder.has_sigmoid() && encoder.num_labels() == 1 && encoder.max_seq_length() == 16);
    assert!((logit[0][0] - want).abs() < 1e-4);

    // Several labels: logits without an activation, no scores.
    let three = folder(3, json!({}));
    let encoder = cross(three.path()).unwrap();
    assert!(!encoder.has_sigmoid() && encoder.num_labels() == 3);
    let classifier = TextClassifier::from_folder(three.path(), DType::F32, &CPU).unwrap();
    assert_eq!(encoder.logits(&pairs, &options).unwrap(), classifier.logits(&pairs, &options).unwrap());
    says(encoder.scores(&pairs, &options), &["the head of a cross-encoder is 3 labels", "TextClassifier"]);
    says(encoder.rank("the cat sat", &["on the mat"], &options), &["3 labels"]);
    says(cross(&fixture("tiny-bert")), &["module `Pooling` after the transformer"]);
}

/// All tokens of a pair have one type where the tokenizer gives none.
#[test]
fn types_of_a_pair_are_those_that_the_tokenizer_gives() {
    let folder = folder(1, json!({"id2label": {"0": "LABEL_0"}}));
    let path = folder.path().join("tokenizer_config.json");
    let stated: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let score = |more: Value| {
        let mut stated = stated.clone();
        stated.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        std::fs::write(&path, stated.to_string()).unwrap();
        let pair = [("the cat sat", "on the mat")];
        cross(folder.path()).unwrap().scores(&pair, &EncodeOptions::default()).unwrap()[0]
    };
    let usual = score(json!({"tokenizer_class": "BertTokenizer"}));
    let (with, without) =
        (json!(["input_ids", "token_type_ids", "attention_mask"]), json!(["input_ids", "attention_mask"]));
    assert_eq!(score(json!({"model_input_names": with})), usual);
    let without = score(json!({"model_input_names": without}));
    assert!((without - usual).abs() > 1e-4);
    // The general class of transformers 5.
    assert_eq!(score(json!({"tokenizer_class": "TokenizersBackend"})), without);
    assert_eq!(score(json!({"tokenizer_class": "TokenizersBackend", "model_input_names": with})), usual);
}

#[test]
fn text_classifier_sorts_labels_by_probability() {
    let names = json!({"0": "no", "1": "maybe", "2": "yes"});
    let load = |with: Value| TextClassifier::from_folder(folder(3, with).path(), DType::F32, &CPU);
    let classifier = load(json!({"id2label": names})).unwrap();
    let options = EncodeOptions::default();
    let texts: [Text; 3] =
        ["the cat sat on the mat".into(), "hello world".into(), ("the cat sat", "on the mat").into()];
    let want = [
        [("no", 0.67221296f32), ("maybe", 0.17650624), ("yes", 0.15128079)],
        [("no", 0.820285), ("yes", 0.09558887), ("maybe", 0.08412652)],
        [("no", 0.44882038), ("maybe", 0.35929143), ("yes", 0.19188821)],
    ];
    for (got, want) in classifier.classify(&texts, &options).unwrap().iter().zip(want) {
        assert_eq!(got.len(), 3);
        for (got, (label, score)) in got.iter().zip(want) {
            assert!(got.label == label && (got.score - score).abs() < 1e-5, "{got:?}, want {label} {score}");
        }
    }
    assert_eq!(classifier.labels(), ["no", "maybe", "yes"]);

    let logits = classifier.logits(&texts[..1], &options).unwrap();
    let scores = |problem: &str| {
        let labels = load(json!({"problem_type": problem})).unwrap().classify(&texts[..1], &options).unwrap();
        labels[0].iter().find(|label| label.label == "LABEL_1").unwrap().score
    };
    assert_eq!(scores("regression"), logits[0][1]);
    assert!((scores("multi_label_classification") - 1.0 / (1.0 + (-logits[0][1]).exp())).abs() < 1e-6);
    says(load(json!({"problem_type": "ranking"})), &["problem_type = ranking", "regression"]);
    says(load(json!({"id2label": {"0": "a", "1": "b"}})), &["id2label = 2 labels", "3 of them"]);
    says(load(json!({"model_type": "nomic_bert"})), &["model_type = nomic_bert", "classification head"]);
}

#[test]
fn fill_mask_predicts_tokens_for_masks() {
    let folder = folder(0, json!({}));
    let model = FillMask::from_folder(folder.path(), DType::F32, &CPU).unwrap();
    assert_eq!(model.mask_token(), "[MASK]");
    let texts = ["the [MASK] sat on the mat", "the [MASK] sat on the [MASK]"];
    type Best = [(&'static str, u32, f32); 3];
    let want: [&[Best]; 2] = [
        &[[("7", 46, 0.04989031), ("text", 61, 0.04985943), ("##x", 92, 0.04158136)]],
        &[
            [("text", 61, 0.04321323), ("##c", 71, 0.04092315), ("7", 46, 0.03384163)],
            [("##x", 92, 0.04444684), ("more", 64, 0.04197217), ("7", 46, 0.04184667)],
        ],
    ];
    let together = model.fill_masks(&texts, 3, &EncodeOptions::default()).unwrap();
    for ((text, got), want) in texts.iter().zip(&together).zip(want) {
        assert_eq!(&model.fill_mask(text, 3).unwrap(), got);
        assert_eq!(got.len(), want.len());
        for (got, (token, id, score)) in got.iter().flatten().zip(want.iter().flatten()) {
            let right = (got.token.as_str(), got.id) == (*token, *id) && (got.score - score).abs() < 1e-6;
            assert!(right, "{got:?}, want {token} {id} {score}");
        }
    }
    says(model.fill_mask("the cat", 3), &["the number of holes in a text is 0", "[MASK]"]);
    let long = format!("{COUNT} {COUNT} [MASK]");
    says(model.fill_mask(&long, 3), &["within the maximum length"]);

    let edited = std::fs::read_to_string(folder.path().join("tokenizer.json")).unwrap().replace("[MASK]", "[HOLE]");
    std::fs::write(folder.path().join("tokenizer.json"), edited).unwrap();
    says(FillMask::from_folder(folder.path(), DType::F32, &CPU), &["tokenizer.json", "no mask token"]);
}
