//! The modules of sentence-transformers after the transformer, routers, and static embeddings, against that library and
//! model2vec; and models in memory.

use std::path::Path;

use candle_attention::{Error, Quantization, Result};
use candle_attention_text::{
    CrossEncoder, EncodeOptions, EntityOptions, FillMask, M3Encoder, ModelFiles, MultiVectorEncoder, SentenceEncoder,
    SparseEncoder, Task, TextClassifier, TokenClassifier, fingerprint,
};
use candle_core::{DType, Device, Tensor};

use crate::common::{Golden, LAYER, assert_close, fixture, max_diff, numbers, says};
use crate::models::modules_folder as folder;

const CPU: Device = Device::Cpu;

fn load(folder: &Path) -> Result<SentenceEncoder> {
    SentenceEncoder::from_folder(folder, DType::F32, &CPU)
}

fn texts() -> Vec<String> {
    serde_json::from_str(&std::fs::read_to_string(fixture("tiny_sentences.json")).unwrap()).unwrap()
}

/// Compares with the golden `name`, for several batch sizes; a text alone has the same bits.
fn equals(encoder: &SentenceEncoder, name: &str, options: &EncodeOptions) {
    let texts = texts();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let want = Golden::open("sentence_modules.safetensors").get(name);
    let all = encoder.encode(&texts, options).unwrap();
    println!("{name}: differs by at most {:e}", max_diff(&all, &want));
    assert_close(name, &all, &want, 2.0 * LAYER);
    for batch_size in [1, 3] {
        assert_eq!(numbers(&encoder.encode(&texts, &options.with_batch_size(batch_size)).unwrap()), numbers(&all));
    }
}

#[test]
fn modules_in_any_order_equal_those_of_sentence_transformers() {
    let folder = folder("chain");
    let encoder = load(folder.path()).unwrap();
    assert_eq!(encoder.embedding_size(), 6);
    assert!(encoder.routes().is_empty());
    equals(&encoder, "chain", &EncodeOptions::default());
    // Truncation follows the last module.
    let short = encoder.encode(&["a cat"], &EncodeOptions::default().with_truncate_dim(4)).unwrap();
    assert_eq!(short.dims(), [1, 4]);
    let edit = |file: &str, from: &str, to: &str| {
        let path = folder.path().join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(&path, text.replace(from, to)).unwrap();
        let result = load(folder.path());
        std::fs::write(&path, text).unwrap();
        result
    };
    says(edit("3_LayerNorm/config.json", "20", "19"), &["3_LayerNorm/config.json", "dimension is 19, expected 20"]);
    says(
        edit(
            "4_Normalize/config.json",
            "\"module_input_name\": \"sentence_embedding\"",
            "\"module_input_name\": \"x\"",
        ),
        &["4_Normalize/config.json", "works on `x`, expected `sentence_embedding`"],
    );
    says(
        edit("6_Dense/config.json", "torch.nn.modules.activation.SiLU", "my.activations.SiLU"),
        &["6_Dense/config.json", "`my.activations.SiLU` is not one this version knows"],
    );
    says(edit("modules.json", "LayerNorm\"", "WeightedLayerPooling\""), &["module `WeightedLayerPooling`"]);
    std::fs::remove_file(folder.path().join("7_Dense/model.safetensors")).unwrap();
    says(load(folder.path()), &["7_Dense", "neither `model.safetensors` nor"]);
}

#[test]
fn activations_of_dense_modules_equal_those_of_torch() {
    let golden = Golden::open("sentence_modules.safetensors");
    let folder = crate::models::tiny();
    let modules = r#"[{"path":"","type":"sentence_transformers.models.Transformer"},
        {"path":"1_Pooling","type":"sentence_transformers.models.Pooling"},
        {"path":"2_Dense","type":"sentence_transformers.models.Dense"}]"#;
    std::fs::write(folder.path().join("modules.json"), modules).unwrap();
    let dense = folder.path().join("2_Dense");
    std::fs::create_dir(&dense).unwrap();
    let weights = ["weight", "bias"].map(|name| (format!("linear.{name}"), golden.get(&format!("activation.{name}"))));
    candle_core::safetensors::save(&weights.into(), dense.join("model.safetensors")).unwrap();
    let mut checked = 0;
    for name in golden.0.names() {
        let class = match name.strip_prefix("activation.") {
            Some("weight" | "bias") | None => continue,
            Some("Identity") => "torch.nn.modules.linear.Identity".to_string(),
            Some(class) => format!("torch.nn.modules.activation.{class}"),
        };
        let config = format!(r#"{{"in_features": 24, "out_features": 12, "activation_function": "{class}"}}"#);
        std::fs::write(dense.join("config.json"), config).unwrap();
        equals(&load(folder.path()).unwrap(), name, &EncodeOptions::default());
        checked += 1;
    }
    assert_eq!(checked, 21);
}

#[test]
fn queries_and_documents_take_their_routes() {
    let (early, late) = (folder("router"), folder("router_late"));
    let encoder = load(early.path()).unwrap();
    assert_eq!((encoder.routes(), encoder.embedding_size()), (vec!["document", "query"], 7));
    let plain = EncodeOptions::default();
    equals(&encoder, "router", &plain);
    equals(&encoder, "router.query", &encoder.query_options(plain));
    equals(&encoder, "router.document", &encoder.document_options(plain));
    says(
        encoder.encode(&["a"], &plain.with_task(Task::Named("passage"))),
        &["the task is passage", "document or query"],
    );
    // Only the transformer has vectors of tokens.
    assert_eq!(encoder.encode_tokens(&["a cat"], &plain).unwrap()[0].dims(), [4, 24]);
    let of_query = encoder.encode_tokens(&["a cat"], &plain.with_task(Task::Query));
    says(of_query, &["the first module of the model is StaticEmbedding, expected Transformer"]);

    let encoder = load(late.path()).unwrap();
    equals(&encoder, "router_late.query", &plain.with_task(Task::Query));
    equals(&encoder, "router_late.document", &plain.with_task(Task::Document));
    says(encoder.encode(&["a"], &plain), &["the task is not set", "query or document"]);
    // All files of the routes are part of the model.
    let before = fingerprint(late.path()).unwrap();
    let dense = late.path().join("2_Router/query_0_Dense/config.json");
    std::fs::write(&dense, std::fs::read_to_string(&dense).unwrap() + " ").unwrap();
    assert_ne!(fingerprint(late.path()).unwrap(), before);
}

#[test]
fn a_wrong_router_is_refused() {
    let folder = folder("router");
    let path = folder.path().join("router_config.json");
    let right: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let with = |pointer: &str, value: serde_json::Value| {
        let mut wrong = right.clone();
        *wrong.pointer_mut(pointer).unwrap() = value;
        std::fs::write(&path, wrong.to_string()).unwrap();
        load(folder.path())
    };
    let cases = [
        ("/parameters/default_route", serde_json::json!("passage"), "default_route `passage` is not a route"),
        ("/parameters/route_mappings", serde_json::json!({"('a', None)": "query"}), "route_mappings is not empty"),
        ("/structure/query", serde_json::json!(["nothing"]), "types does not list the module `nothing`"),
        ("/structure/query", serde_json::json!([]), "the first module is `Normalize`"),
        ("/structure/query", serde_json::json!(vec!["query_1_Dense"; 40]), "the route `query` has 41 modules"),
        ("/structure", serde_json::json!({}), "0 routes, expected 1 to 16"),
        (
            "/types/query_0_StaticEmbedding",
            serde_json::json!("sentence_transformers.models.Router"),
            "none of them a router",
        ),
        ("/types/query_0_StaticEmbedding", serde_json::json!("a.BoW"), "the first module is `a.BoW`"),
    ];
    for (pointer, value, reason) in cases {
        says(with(pointer, value), &[reason]);
    }
    let mut wrong = right.clone();
    wrong["types"]["../../etc"] = "a.Dense".into();
    wrong["structure"]["query"][1] = "../../etc".into();
    std::fs::write(&path, wrong.to_string()).unwrap();
    says(load(folder.path()), &["router_config.json", "`../../etc` leads out of the folder"]);
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(load(folder.path()), Err(Error::Io { .. })));
}

#[test]
fn static_embeddings_equal_those_of_sentence_transformers_and_model2vec() {
    let plain = EncodeOptions::default();
    let folder_of_static = folder("static");
    let encoder = load(folder_of_static.path()).unwrap();
    assert_eq!((encoder.embedding_size(), encoder.max_seq_length()), (10, 9));
    equals(&encoder, "static", &plain);
    let cut = std::sync::Mutex::new(Vec::new());
    let on_truncated = |i: usize| cut.lock().unwrap().push(i);
    let texts = ["a", "a b c d e f g h i j"];
    let embeddings = encoder.encode(&texts, &plain.with_on_truncated(&on_truncated)).unwrap();
    assert_eq!((embeddings.dims(), cut.into_inner().unwrap()), ([2, 10].as_slice(), vec![1]));
    assert_eq!(encoder.encode(&[], &plain).unwrap().dims(), [0, 10]);
    says(encoder.encode_tokens(&["a"], &plain), &["StaticEmbedding, expected Transformer"]);
    says(encoder.encode(&["a"], &plain.with_max_length(0)), &["max_length = 0"]);

    // In few bits, where the width takes the format.
    let golden = Golden::open("sentence_modules.safetensors").get("static");
    let all = self::texts();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let few = |format: Quantization| {
        let encoder = SentenceEncoder::from_folder(folder_of_static.path(), format, &CPU).unwrap();
        max_diff(&encoder.encode(&all, &plain).unwrap(), &golden)
    };
    let (int8, q8_0) = (few(Quantization::Int8), few(Quantization::Q8_0));
    assert!(int8 > 2.0 * LAYER && int8 < 0.02 && q8_0 < 2.0 * LAYER, "{int8} {q8_0}");

    for name in ["model2vec", "model2vec_shared", "model2vec_int8", "model2vec_int8_shared"] {
        let folder = folder(name);
        equals(&load(folder.path()).unwrap(), name, &plain);
        // Without the file of sentence-transformers the folder alone says the same.
        std::fs::remove_file(folder.path().join("modules.json")).unwrap();
        equals(&load(folder.path()).unwrap(), name, &plain);
    }
    // Integers are not quantized once more.
    let int8 = SentenceEncoder::from_folder(folder("model2vec_int8").path(), Quantization::Int8, &CPU).unwrap();
    equals(&int8, "model2vec_int8", &plain);
    // The libraries differ where a token is unknown, which model2vec leaves out, and agree on the other texts.
    let golden = Golden::open("sentence_modules.safetensors");
    let (ours, theirs) = (golden.get("model2vec_shared"), golden.get("model2vec_shared.st"));
    let rows = |t: &Tensor| t.to_vec2::<f32>().unwrap();
    let same: Vec<bool> = rows(&ours).iter().zip(&rows(&theirs)).map(|(a, b)| (a[0] - b[0]).abs() < 2e-3).collect();
    assert_eq!(same, [true, true, true, true, false, true, true, true]);
}

#[test]
fn a_damaged_table_is_refused() {
    let folder = folder("model2vec_shared");
    let path = folder.path().join("model.safetensors");
    let tensors = candle_core::safetensors::load(&path, &CPU).unwrap();
    let with = |name: &str, tensor: Tensor| {
        let mut changed = tensors.clone();
        changed.insert(name.to_string(), tensor);
        candle_core::safetensors::save(&changed, &path).unwrap();
        load(folder.path())
    };
    let size = tensors["mapping"].elem_count();
    let far = Tensor::full(30i64, size, &CPU).unwrap();
    says(
        with("mapping", far),
        &["model.safetensors", "`mapping` of token 0 is 30, expected a row of `embeddings`, 0 to 29"],
    );
    says(with("mapping", Tensor::full(-1i64, size, &CPU).unwrap()), &["`mapping` of token 0 is -1"]);
    says(with("mapping", Tensor::zeros(size, DType::F32, &CPU).unwrap()), &["`mapping` has dtype f32"]);
    says(with("weights", Tensor::ones(3, DType::F32, &CPU).unwrap()), &["the number of `weights` is 3"]);
    says(with("embeddings", Tensor::ones(3, DType::F32, &CPU).unwrap()), &["embeddings has shape [3]"]);
    says(with("embeddings", Tensor::ones((30, 2), DType::U8, &CPU).unwrap()), &["`embeddings` has dtype U8"]);
    // A table with fewer rows than the tokenizer has tokens is an error for a text that needs them.
    let short = with("mapping", Tensor::zeros(20, DType::I64, &CPU).unwrap()).unwrap();
    says(short.encode(&["hello"], &EncodeOptions::default()), &["the id of token `", "the table of vectors"]);
    let nan = with("embeddings", Tensor::full(f32::NAN, (30, 10), &CPU).unwrap()).unwrap();
    says(nan.encode(&["a"], &EncodeOptions::default()), &["NaN or an infinity in the embedding of text 0, `a`"]);
}

/// All files of a folder.
fn in_memory(folder: &Path) -> ModelFiles {
    let (mut files, mut folders) = (ModelFiles::new(), vec![folder.to_path_buf()]);
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().replace('\\', "/");
            if !name.contains("golden") {
                files = files.with(name, std::fs::read(&path).unwrap()).unwrap();
            }
        }
    }
    files
}

#[test]
fn models_in_memory_give_the_same_bits_as_on_disk() {
    let plain = EncodeOptions::default();
    for name in ["chain", "router", "static", "model2vec"] {
        let folder = folder(name);
        let (disk, memory) = (load(folder.path()).unwrap(), in_memory(folder.path()));
        let memory = SentenceEncoder::from_files(&memory, DType::F32, &CPU).unwrap();
        let encode = |encoder: &SentenceEncoder| numbers(&encoder.encode_query(&["a cat", "hello"], &plain).unwrap());
        assert_eq!(encode(&memory), encode(&disk), "{name}");
    }
    let with_tokenizer = |name: &str| {
        let tokenizer = std::fs::read(fixture("tiny-bert/tokenizer.json")).unwrap();
        in_memory(&fixture("encoders").join(name)).with("tokenizer.json", tokenizer).unwrap()
    };
    // Their vocabularies have fewer tokens than the tokenizer: ids of these are refused, so only special tokens are
    // used.
    let classifier = TextClassifier::from_files(&with_tokenizer("distilbert_classifier"), DType::F32, &CPU).unwrap();
    assert_eq!(classifier.classify(&[""], &plain).unwrap()[0].len(), 2);
    let cross = CrossEncoder::from_files(&with_tokenizer("bert_cross_encoder"), DType::F32, &CPU).unwrap();
    assert_eq!(cross.scores(&[("", "")], &plain).unwrap().len(), 1);
    let fill = FillMask::from_files(&with_tokenizer("bert_mlm"), DType::F32, &CPU).unwrap();
    assert_eq!(fill.fill_mask("[MASK]", 3).unwrap()[0].len(), 3);
}

#[test]
fn other_encoders_in_memory_give_the_same_bits_as_on_disk() {
    let plain = EncodeOptions::default();
    let texts = ["a cat", "the dog sleeps"];
    let vectors = |all: Vec<Tensor>| all.iter().map(numbers_of_rows).collect::<Vec<_>>();

    for name in ["splade", "inference_free"] {
        let folder = fixture("sparse").join(name);
        let disk = SparseEncoder::from_folder(&folder, DType::F32, &CPU).unwrap();
        let memory = SparseEncoder::from_files(&in_memory(&folder), DType::F32, &CPU).unwrap();
        let encode = |encoder: &SparseEncoder| encoder.encode_document(&texts, &plain).unwrap();
        assert_eq!(encode(&memory), encode(&disk), "{name}");
    }
    for name in ["modern", "pylate", "stanford"] {
        let folder = fixture("multi_vector").join(name);
        let disk = MultiVectorEncoder::from_folder(&folder, DType::F32, &CPU).unwrap();
        let memory = MultiVectorEncoder::from_files(&in_memory(&folder), DType::F32, &CPU).unwrap();
        let encode = |encoder: &MultiVectorEncoder| vectors(encoder.encode_query(&texts, &plain).unwrap());
        assert_eq!(encode(&memory), encode(&disk), "{name}");
    }
    let folder = fixture("sparse/bge_m3");
    let disk = M3Encoder::from_folder(&folder, DType::F32, &CPU).unwrap();
    let memory = M3Encoder::from_files(&in_memory(&folder), DType::F32, &CPU).unwrap();
    let encode = |encoder: &M3Encoder| {
        let all = encoder.encode_all(&texts, &plain).unwrap();
        all.into_iter().map(|one| (one.sparse, numbers_of_rows(&one.tokens))).collect::<Vec<_>>()
    };
    assert_eq!(encode(&memory), encode(&disk));

    let folder = fixture("token_classifier/bert");
    let disk = TokenClassifier::from_folder(&folder, DType::F32, &CPU).unwrap();
    let memory = TokenClassifier::from_files(&in_memory(&folder), DType::F32, &CPU).unwrap();
    let entities = |of: &TokenClassifier| of.entities(&texts, &EntityOptions::default(), &plain).unwrap();
    assert_eq!(entities(&memory), entities(&disk));
}

fn numbers_of_rows(rows: &Tensor) -> Vec<f32> {
    rows.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn files_in_memory_take_the_checks_of_files_on_disk() {
    let from = |files: &ModelFiles| SentenceEncoder::from_files(files, DType::F32, &CPU);
    says(from(&ModelFiles::new()), &["config.json: the file is not among those in memory"]);
    let tiny = || in_memory(&fixture("tiny-bert"));
    let with = |name: &str, bytes: &'static [u8]| from(&tiny().with(name, bytes).unwrap());
    says(with("config.json", b"{"), &["config.json: EOF"]);
    says(with("tokenizer.json", b"{}"), &["tokenizer.json"]);
    says(with("modules.json", br#"[{"path": "../x", "type": "a.Transformer"}]"#), &["`../x` leads out of the folder"]);
    says(ModelFiles::new().with("a/model.safetensors", b"12345678"), &["a/model.safetensors: not a valid safetensors"]);
    says(ModelFiles::new().with("a/../../model.bin", b"x"), &["a/../../model.bin", "not the name of a file"]);
    says(ModelFiles::new().with("", b"x"), &["not the name of a file"]);
    says(ModelFiles::new().with("model-00001-of-00002.safetensors", b"x"), &["the weights in one file"]);
    let long = vec![b' '; (1 << 24) + 1];
    says(
        from(&tiny().with("config.json", long).unwrap()),
        &["config.json", "16777217 bytes, expected at most 16777216"],
    );
}
