//! Every model type of transformers is right or refused, as `docs/model-types.md` lists them: the layers of those that
//! are right agree with transformers (`tests/golden/model_types.py`), and no layer of the others loads.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use candle_attention::checkpoint::{Checkpoint, ModelAttention, config_from_json};
use candle_attention::{
    AttentionInputs, AttentionMask, AttentionOptions, CallInput, Error, KeyValueSource, KeyValues, Position,
    ProjectionBias,
};
use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};

use crate::common::{Files, LAYER, family};

const CPU: Device = Device::Cpu;

#[derive(serde::Deserialize)]
struct Case {
    name: String,
    prefix: String,
}

/// A tiny model of transformers: its configuration, its weights, and what went into and out of its attention.
pub(crate) struct Walked {
    checkpoint: Checkpoint,
    config: Value,
    cases: Vec<Case>,
    /// Prefixes of layers that do not load.
    refused: Vec<String>,
}

impl Walked {
    fn open(path: &Path) -> Self {
        Self::new(Checkpoint::open(path).unwrap())
    }

    pub fn new(checkpoint: Checkpoint) -> Self {
        let metadata = checkpoint.metadata();
        Self {
            config: serde_json::from_str(&metadata["config"]).unwrap(),
            cases: serde_json::from_str(&metadata["cases"]).unwrap(),
            refused: metadata.get("refused").map_or(Vec::new(), |refused| serde_json::from_str(refused).unwrap()),
            checkpoint,
        }
    }

    fn get(&self, case: &Case, part: &str) -> Option<Tensor> {
        let name = format!("golden.{}.{part}", case.name);
        self.checkpoint.contains(&name).then(|| self.checkpoint.tensor(&name, &Device::Cpu).unwrap())
    }

    /// The output of a call that gives what the layer requires, but for `without`.
    fn output(&self, case: &Case, model: &ModelAttention, without: Option<CallInput>) -> Result<Tensor, Error> {
        let gives = |input: CallInput| model.layer.config().requires.contains(&input) && without != Some(input);
        let xs = self.get(case, "input").unwrap();
        let key = self.get(case, "key").unwrap_or_else(|| xs.clone());
        let value = self.get(case, "value").unwrap_or_else(|| key.clone());
        let mut mask = model.mask().clone();
        let fits = |mask: &Tensor| without != Some(CallInput::Mask) && mask.dims()[3] == key.dims()[1];
        let given = self.get(case, "mask").filter(fits);
        let scores = [true, false].map(|scaled| CallInput::ScoreBias { scaled });
        if let Some(given) = given {
            // A mask of numbers could also be the bias.
            let has_bias = scores.into_iter().any(|input| model.layer.config().requires.contains(&input));
            let keep = || AttentionMask::keep(&given.ge(-1.0)?);
            mask = mask.and(if has_bias { keep()? } else { AttentionMask::additive(&given)? });
        }
        // Windows that a short text does not reach hide nothing.
        if gives(CallInput::Mask) && self.get(case, "mask").is_none() {
            mask = mask.and(AttentionMask::keep(&Tensor::ones((1, 1, xs.dims()[1], key.dims()[1]), DType::U8, &CPU)?)?);
        }
        let (bias, cos, sin) = (self.get(case, "score_bias"), self.get(case, "cos"), self.get(case, "sin"));
        let mut options = AttentionOptions::default();
        if let Some(bias) = bias.as_ref().filter(|_| scores.into_iter().any(gives)) {
            options = options.with_score_bias(bias);
        }
        if let Some(cos_sin) = cos.as_ref().zip(sin.as_ref()).filter(|_| gives(CallInput::CosSin)) {
            options = options.with_cos_sin([cos_sin.0, cos_sin.1]);
        }
        let positions = self.get(case, "positions").map(|numbers| numbers.to_dtype(DType::I64).unwrap());
        if let Some(positions) = positions.as_ref().filter(|_| gives(CallInput::Positions)) {
            options = options.with_positions(positions);
        }
        if gives(CallInput::Grid) {
            // All images of the walk are square.
            options = options.with_grid([xs.dims()[1].isqrt(); 2]);
        }
        let types = self.get(case, "token_types").map(|numbers| numbers.to_dtype(DType::I64).unwrap());
        if let Some(types) = &types {
            options = options.with_token_types(types);
        }
        let shared_mask = mask.clone();
        // What went into the projections includes the vectors: those of the keys are what the values lack.
        let vectors = if key.dims() == value.dims() { (&key - &value)? } else { key.zeros_like()? };
        let object_queries = (&xs * 0.5)?;
        let plain = (&xs - &object_queries)?;
        let inputs = if model.layer.config().requires.contains(&CallInput::PositionVectors) {
            AttentionInputs::new(&plain, &value, &value, mask)
        } else {
            AttentionInputs::new(&xs, &key, &value, mask)
        };
        let shared = self.shared_keys(case, model)?;
        let inputs = match &shared {
            Some(key_values) => AttentionInputs::shared(&xs, key_values, shared_mask),
            None if gives(CallInput::PositionVectors) => inputs.with_position_vectors(&object_queries, &vectors),
            None => inputs,
        };
        model.layer.attend_with(&inputs, &options).map(|attended| attended.output)
    }

    /// The keys and values of the layer that has those of this one, if it is another one.
    fn shared_keys(&self, case: &Case, model: &ModelAttention) -> Result<Option<KeyValues>, Error> {
        let KeyValueSource::Shared { layer } = model.layer.config().key_value_source else { return Ok(None) };
        let Some(other) = layer else {
            let [keys, values] = ["keys", "values"].map(|part| self.get(case, &format!("shared_{part}")).unwrap());
            return Ok(Some(KeyValues::new(&keys, &values)?));
        };
        let number = case.prefix.split('.').find(|part| part.parse::<usize>().is_ok()).unwrap();
        let prefix = case.prefix.replacen(&format!(".{number}."), &format!(".{other}."), 1);
        let other = self.cases.iter().find(|case| case.prefix == prefix).unwrap();
        let model = self.checkpoint.attention_with(&other.prefix, &self.config, DType::F32, &Device::Cpu)?;
        let xs = self.get(other, "input").unwrap();
        let inputs = AttentionInputs::self_attention(&xs, model.mask());
        Ok(Some(model.layer.attend_sharing(&inputs, &AttentionOptions::default())?.1))
    }

    /// The prefixes of all cases, each with its verdict.
    pub fn verdicts(&self) -> impl Iterator<Item = (&str, Value)> {
        self.cases.iter().map(|case| (case.prefix.as_str(), self.verdict(case)))
    }

    /// What this crate makes of one case: `{"right": difference}`, `{"wrong": difference}`, `{"refused": reason}`, or
    /// `{"not compared": true}` of a layer that loads and that the walk did not meet. The difference is relative to
    /// outputs larger than 1; `share` is that to the largest output.
    fn verdict(&self, case: &Case) -> Value {
        let model = match self.checkpoint.attention_with(&case.prefix, &self.config, DType::F32, &Device::Cpu) {
            Ok(model) => model,
            Err(error) => return json!({"refused": error.to_string()}),
        };
        let Some(mut want) = self.get(case, "output") else { return json!({"not compared": true}) };
        for input in &model.layer.config().requires {
            let missing = self.output(case, &model, Some(*input));
            assert!(matches!(missing, Err(Error::MissingInput { .. })), "{} without {input}: {missing:?}", case.prefix);
        }
        let mut got = match self.output(case, &model, None) {
            Ok(output) => output,
            Err(error) => return json!({"refused": format!("in a call: {error}")}),
        };
        let position = model.layer.config().position.to_string();
        let requires: Vec<String> = model.requires().iter().map(ToString::to_string).collect();
        let mask = model.mask().to_string();
        let said = json!({"layout": model.layout.name(), "mask": mask, "position": position, "requires": requires});
        if got.dims() != want.dims() {
            return json!({"wrong": "another shape", "as": said});
        }
        // Those that are no padding.
        if let Some(tokens) = self.get(case, "tokens").map(|numbers| numbers.to_dtype(DType::U32).unwrap()) {
            (got, want) = (got.index_select(&tokens, 1).unwrap(), want.index_select(&tokens, 1).unwrap());
        }
        let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (got, want) = (flat(&got), flat(&want));
        let most = |of: fn(f32, f32) -> f32| {
            // The larger one, or what is no number.
            let larger = |a: f64, b: f64| if a >= b || a.is_nan() { a } else { b };
            got.iter().zip(&want).map(|(g, w)| f64::from(of(*g, *w))).fold(0.0, larger)
        };
        let off = most(|g, w| (g - w).abs() / w.abs().max(1.0));
        let share = most(|g, w| (g - w).abs()) / most(|_, w| w.abs()).max(f64::MIN_POSITIVE);
        let verdict = if off <= LAYER { "right" } else { "wrong" };
        json!({verdict: off, "share": share, "as": said})
    }
}

/// The rows of `docs/model-types.md`: each model type with its verdict.
fn table() -> BTreeMap<String, String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/model-types.md")).unwrap();
    let mut rows = BTreeMap::new();
    for line in text.lines() {
        let Some((name, rest)) = line.strip_prefix("| `").and_then(|row| row.split_once("` | ")) else { continue };
        let verdict = rest.split(" |").next().unwrap().to_string();
        assert!(rows.insert(name.to_string(), verdict).is_none(), "`{name}` is in two rows");
    }
    assert!(rows.len() > 800, "{} rows", rows.len());
    rows
}

/// The fixtures of model types.
fn fixtures() -> Files {
    Files::open_all("model_types")
}

fn safetensors(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_str().unwrap().to_string()
}

#[test]
fn every_model_type_that_is_right_agrees_with_transformers() {
    let mut wrong = Vec::new();
    let (mut held, mut in_part) = (BTreeSet::new(), BTreeSet::new());
    let model_types = fixtures();
    for (name, checkpoint) in model_types.all() {
        let walked = Walked::new(checkpoint);
        assert!(!walked.cases.is_empty() || !walked.refused.is_empty(), "{name}");
        for case in &walked.cases {
            let verdict = walked.verdict(case);
            if verdict.get("right").is_none() {
                wrong.push(format!("{name} {}: {verdict}", case.prefix));
            }
        }
        for prefix in &walked.refused {
            if walked.checkpoint.attention_with(prefix, &walked.config, DType::F32, &Device::Cpu).is_ok() {
                wrong.push(format!("{name} {prefix}: it loads, and is refused in the table"));
            }
            in_part.insert(name.to_string());
        }
        held.insert(name.to_string());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let own = held.clone();
    // The others are run by `families.rs`, or as sections of a model type.
    for (_, checkpoint) in Files::open("families.safetensors").all().chain(model_types.all()) {
        let config = checkpoint.metadata()["config"].clone();
        let config: Value = serde_json::from_str(&config).unwrap();
        // Some sections of a configuration are model types without a model of their own.
        let sections = config.as_object().into_iter().flat_map(|keys| keys.values()).chain([&config]);
        held.extend(sections.filter_map(|section| Some(section.get("model_type")?.as_str()?.to_string())));
    }
    for (name, verdict) in table() {
        let right = ["right", "in part"].contains(&verdict.as_str());
        assert!(!right || held.contains(&name), "`{name}` is {verdict} in the table and has no fixture");
        assert!(right || !own.contains(&name), "`{name}` has a fixture and is {verdict} in the table");
        assert!(
            verdict != "right" || !in_part.contains(&name),
            "`{name}` has refused layers and is right in the table"
        );
    }
}

/// transformers draws at random what a file lacks; here a layer is refused, but where nothing depends on the tensor.
#[test]
fn a_layer_without_one_of_its_tensors_is_right_or_refused() {
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for (name, checkpoint) in fixtures().all() {
        let metadata = checkpoint.metadata().clone().into_iter().collect::<HashMap<_, _>>();
        let read = |name: &str| (name.to_string(), checkpoint.tensor(name, &CPU).unwrap());
        let mut tensors: HashMap<String, Tensor> = checkpoint.names().map(read).collect();
        let walked = Walked::new(checkpoint);
        for case in &walked.cases {
            let below = format!("{}.", case.prefix);
            let names: Vec<String> = tensors.keys().filter(|name| name.starts_with(&below)).cloned().collect();
            for missing in names {
                let tensor = tensors.remove(&missing).unwrap();
                let file = safetensors::serialize(&tensors, Some(metadata.clone())).unwrap();
                let verdict = Walked::new(Checkpoint::from_bytes(file).unwrap()).verdict(case);
                tensors.insert(missing.clone(), tensor);
                refused += usize::from(verdict.get("refused").is_some());
                if verdict.get("wrong").is_some() {
                    wrong.push(format!("{name} without `{missing}`: {verdict}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 1000, "{refused}");
}

#[test]
fn a_model_type_that_is_refused_loads_no_layer() {
    let checkpoint = family("llama");
    let source = checkpoint.at("model.layers.0.self_attn", DType::F32, &Device::Cpu);
    for (name, verdict) in table().into_iter().filter(|(_, verdict)| verdict == "refused") {
        let config = json!({"model_type": name, "num_attention_heads": 4, "num_key_value_heads": 2});
        match config_from_json(&config, &source) {
            Err(Error::UnknownFamily { .. } | Error::UnsupportedFamily { .. }) => {}
            other => panic!("`{name}` is {verdict} in the table: {other:?}"),
        }
    }
}

/// Its first files state the rotation as their own code had it.
#[test]
fn sarvam_reads_the_rotation_of_its_first_files() {
    let sarvam = Walked::new(fixtures().checkpoint("sarvam_mla"));
    let load = |kind: &str| {
        let mut config = sarvam.config.clone();
        config.as_object_mut().unwrap().remove("rope_parameters");
        config["rope_theta"] = json!(50.0);
        let original = "original_max_position_embeddings";
        config["rope_scaling"] = json!({"type": kind, "factor": 8.0, "mscale_all_dim": 0.8, original: 8});
        let model = sarvam.checkpoint.attention_with(&sarvam.cases[0].prefix, &config, DType::F32, &CPU)?;
        Ok::<_, Error>(format!("{:?}", model.layer.config()))
    };
    assert_eq!(load("deepseek_yarn").unwrap(), load("yarn").unwrap());
    assert!(load("other_yarn").is_err());
}

/// Its walk has a text without an image.
#[test]
fn git_is_right_for_text_and_says_so() {
    let git = Walked::new(fixtures().checkpoint("git"));
    let load = |prefix: &str| git.checkpoint.attention_with(prefix, &git.config, DType::F32, &Device::Cpu).unwrap();
    let text = load("git.encoder.layer.0.attention");
    assert_eq!(text.mask().to_string(), "causal");
    assert!(text.note.unwrap().contains("tokens of an image"));
    assert_eq!(load("git.image_encoder.vision_model.encoder.layers.0.self_attn").note, None);
}

/// A mask of padding does not say which tokens the text sees, and the number of patches not how many rows there are.
#[test]
fn a_mask_of_padding_and_a_number_of_patches_say_too_little() {
    let missing = |name: &str, mask: fn(usize) -> AttentionMask| {
        let walked = Walked::new(fixtures().checkpoint(name));
        let case = walked.cases.iter().find(|case| walked.get(case, "input").is_some_and(|xs| xs.dim(1).unwrap() > 1));
        let case = case.unwrap();
        let model = walked.checkpoint.attention_with(&case.prefix, &walked.config, DType::F32, &CPU).unwrap();
        let xs = walked.get(case, "input").unwrap();
        let inputs = AttentionInputs::self_attention(&xs, mask(xs.dim(0).unwrap()));
        let called = model.layer.attend_with(&inputs, &AttentionOptions::default());
        match called {
            Ok(_) => None,
            Err(Error::MissingInput { input, .. }) => Some(input),
            Err(error) => panic!("{name}: {error}"),
        }
    };
    for name in ["aimv2_text_model", "videoprism_text_model"] {
        assert_eq!(missing(name, |b| AttentionMask::lengths(&vec![3; b])).as_deref(), Some("a mask"), "{name}");
        assert_eq!(missing(name, |b| AttentionMask::prefix_lm(&vec![3; b])), None, "{name}");
    }
    assert_eq!(missing("paddleocr_vl_vision", |_| AttentionMask::full()).as_deref(), Some("a grid"));
}

/// A family that is right in one part or with one value of a key is refused in the others.
#[test]
fn a_part_or_a_value_that_a_family_cannot_run_is_refused() {
    let config = |name: &str, change: fn(&mut Value)| {
        let walked = Walked::new(fixtures().checkpoint(name));
        let mut config = walked.config;
        change(&mut config);
        let prefix = walked.cases.iter().map(|case| &case.prefix).find(|prefix| !prefix.contains("cross")).unwrap();
        walked.checkpoint.attention_with(prefix, &config, DType::F32, &Device::Cpu).map(|_| ())
    };
    config("big_bird", |_| {}).unwrap();
    let others: [fn(&mut Value); 2] =
        [|c| c["attention_type"] = json!("block_sparse"), |c| c["attention_type"] = Value::Null];
    for other in others {
        assert!(matches!(config("big_bird", other), Err(Error::UnsupportedKey { key, .. }) if key == "attention_type"));
    }
    let integers = config("ibert", |c| c["quant_mode"] = json!(true));
    assert!(matches!(integers, Err(Error::UnsupportedKey { key, .. }) if key == "quant_mode"));
    config("ibert", |c| c["quant_mode"] = json!(false)).unwrap();

    // Of BigBird-Pegasus the encoder alone has blocks.
    let pegasus = Walked::new(fixtures().checkpoint("bigbird_pegasus"));
    let mut sparse = pegasus.config.clone();
    sparse["attention_type"] = json!("block_sparse");
    let load = |part: &str| {
        let prefix = pegasus.cases.iter().map(|case| &case.prefix).find(|prefix| prefix.contains(part)).unwrap();
        pegasus.checkpoint.attention_with(prefix, &sparse, DType::F32, &CPU).map(|_| ())
    };
    assert!(matches!(load("encoder.layers"), Err(Error::UnsupportedKey { key, .. }) if key == "attention_type"));
    load("decoder.layers").unwrap();

    let perceiver = Walked::new(fixtures().checkpoint("perceiver"));
    let prefix = "perceiver.decoder.decoding_cross_attention.attention";
    match config_from_json(&perceiver.config, &perceiver.checkpoint.at(prefix, DType::F32, &Device::Cpu)) {
        Err(Error::UnsupportedFamily { model_type, why }) => {
            assert_eq!(model_type, "perceiver");
            assert!(why.contains("`decoder`") && why.contains("a number of heads"), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// They are not those of the other parts.
#[test]
fn heads_of_a_part_are_stated() {
    let parts = [("florence_vision", "num_groups"), ("vjepa2", "pred_num_attention_heads")];
    for (name, key) in parts {
        let walked = Walked::new(fixtures().checkpoint(name));
        let mut config = walked.config.clone();
        config.as_object_mut().unwrap().remove(key).unwrap();
        let load = |case: &Case| walked.checkpoint.attention_with(&case.prefix, &config, DType::F32, &CPU).err();
        let errors: Vec<String> = walked.cases.iter().filter_map(load).map(|error| error.to_string()).collect();
        assert!(errors.iter().any(|error| error.contains(&format!("{key} = absent"))), "{name}: {errors:?}");
    }
}

/// Settings that transformers reads in another way than this crate would, or not at all.
#[test]
fn settings_that_would_be_read_in_another_way_are_refused() {
    let settings = [
        ("clvp_encoder", "rope_theta", Some(json!(30.0))),
        ("nemotron3_5_transcribe_asr_audio", "rope_parameters", None),
        ("zoedepth", "use_shared_relative_position_bias", Some(json!(true))),
    ];
    for (name, key, value) in settings {
        let walked = Walked::new(fixtures().checkpoint(name));
        let mut config = walked.config.clone();
        let backbone =
            if config.get("backbone_config").is_some() { &mut config["backbone_config"] } else { &mut config };
        match value {
            Some(value) => backbone[key] = value,
            None => drop(backbone.as_object_mut().unwrap().remove(key).unwrap()),
        }
        let prefix = &walked.cases[0].prefix;
        let error = walked.checkpoint.attention_with(prefix, &config, DType::F32, &CPU).unwrap_err().to_string();
        assert!(error.contains(key), "{name}: {error}");
    }
}

/// It masks later patches itself, whatever its configuration states.
#[test]
fn timesfm_is_causal() {
    let timesfm = Walked::new(fixtures().checkpoint("timesfm"));
    let mut config = timesfm.config.clone();
    config["is_causal"] = json!(false);
    let prefix = &timesfm.cases[0].prefix;
    let model = timesfm.checkpoint.attention_with(prefix, &config, DType::F32, &CPU).unwrap();
    assert_eq!(model.mask().to_string(), "causal");
}

/// Prints what this crate makes of each file in the folder `MODEL_TYPES` and of each model type in `NAMES`, for the
/// scripts that write the table and that flip keys.
#[test]
#[ignore = "a part of tests/golden/model_types.py and flip_keys.py"]
fn walk() {
    let folder = std::env::var("MODEL_TYPES").unwrap();
    for path in safetensors(Path::new(&folder)) {
        let walked = Walked::open(&path);
        for case in &walked.cases {
            let verdict = catch_unwind(AssertUnwindSafe(|| walked.verdict(case)));
            let verdict = verdict.unwrap_or_else(|_| json!({"wrong": "a panic"}));
            println!("{}", json!({"model_type": stem(&path), "prefix": case.prefix, "verdict": verdict}));
        }
    }
    let checkpoint = family("llama");
    let source = checkpoint.at("model.layers.0.self_attn", DType::F32, &Device::Cpu);
    for name in std::env::var("NAMES").unwrap_or_default().split(',') {
        let family = match config_from_json(&json!({"model_type": name}), &source) {
            Err(Error::UnknownFamily { .. }) => json!({"unknown": true}),
            Err(Error::UnsupportedFamily { why, .. }) => json!({"unsupported": why}),
            _ => json!({}),
        };
        println!("{}", json!({"model_type": name, "family": family}));
    }
}

/// Prints which biases, norms and sinks the layers of the fixtures have, and those of each file in the folder
/// `LAYER_TENSORS`, for the script that writes `src/families/layer_tensors.txt`.
#[test]
#[ignore = "a part of tests/golden/layer_tensors.py"]
fn prints_layer_tensors() {
    let print = |name: &str, walked: &Walked| {
        for case in &walked.cases {
            // What the present table refuses is read as of a version whose classes are not known.
            let mut later = walked.config.clone();
            later["transformers_version"] = json!("6.0.0");
            let load = |config| walked.checkpoint.attention_with(&case.prefix, config, DType::F32, &CPU);
            let Ok(model) = load(&walked.config).or_else(|_| load(&later)) else { continue };
            let (config, weights) = (model.layer.config(), model.layer.weights().unwrap());
            let holds = |name: &str| weights.parameters.iter().any(|(held, _)| held == name);
            let ProjectionBias { q, k, v, o, .. } = config.bias;
            let (table, sides) = match &config.position {
                Position::RelativeBias2d(relative) => (relative.computed.is_none(), false),
                Position::RelativeKey2d(_) => (false, true),
                _ => (false, false),
            };
            let gate = config.output_gate().is_some_and(|gate| gate.bias);
            let has = [(q, 'q'), (k, 'k'), (v, 'v'), (o, 'o'), (gate, 'g'), (table, 't'), (sides, 'r')];
            let has = has.into_iter().chain(
                [
                    ("q_norm.weight", 'n'),
                    ("q_norm.bias", 'b'),
                    ("k_norm.bias", 'c'),
                    ("attn_sub_norm.bias", 'i'),
                    ("sinks", 's'),
                ]
                .map(|(name, letter)| (holds(name), letter)),
            );
            let letters: String = has.filter(|(has, _)| *has).map(|(_, letter)| letter).collect();
            println!("layer_tensors {name} {} -{letters}", config.model_type.unwrap_or_default());
        }
    };
    let (model_types, families) = (fixtures(), Files::open("families.safetensors"));
    model_types.all().chain(families.all()).for_each(|(name, checkpoint)| print(name, &Walked::new(checkpoint)));
    for path in safetensors(Path::new(&std::env::var("LAYER_TENSORS").unwrap())) {
        print(&stem(&path), &Walked::open(&path));
    }
}

/// Keys that neither the config class of a model nor its code has are ignored, as in transformers.
#[test]
fn keys_that_no_config_class_knows_change_nothing() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/family_defaults.json");
    let classes: BTreeMap<String, Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let strange = json!({
        "d_model": 77, "dim": 77, "n_embd": 77, "head_dim": 77, "num_key_value_heads": 77, "sliding_window": 3,
        "rotary_dim": 2, "clip_qkv": 0.5, "attn_logit_softcapping": 2.0, "attention_multiplier": 2.0, "gating": true,
        "no_rope_layers": [0, 0, 0, 0], "attention_chunk_size": 2, "logn_attention_scale": true,
    });
    let mut changed = 0;
    for (name, checkpoint) in fixtures().all().chain(Files::open("families.safetensors").all()) {
        let walked = Walked::new(checkpoint);
        let mut config = walked.config.clone();
        changed += add_unknown(&mut config, &classes, &strange, &[]);
        for case in &walked.cases {
            let read = |config: &Value| config_from_json(config, &walked.checkpoint.at(&case.prefix, DType::F32, &CPU));
            // Files of timm state no family.
            let Some(_) = config.get("model_type") else { continue };
            let plain = read(&walked.config).unwrap().config;
            let added = read(&config).unwrap_or_else(|error| panic!("{name} {}: {error}", case.prefix)).config;
            // Masks of chunks compare by identity.
            assert_eq!(format!("{added:?}"), format!("{plain:?}"), "{name} {}", case.prefix);
        }
    }
    assert!(changed > 2000, "{changed}");
}

/// Adds the keys of `strange` that no class of a section or of what it is in knows; returns how many.
fn add_unknown(json: &mut Value, classes: &BTreeMap<String, Value>, strange: &Value, around: &[Value]) -> usize {
    let Some(class) = json.get("model_type").and_then(|name| classes.get(name.as_str()?)) else { return 0 };
    let known = [around, &[class["knows"].clone()]].concat();
    let mut added = 0;
    let keys = json.as_object_mut().unwrap();
    for section in keys.values_mut() {
        added += add_unknown(section, classes, strange, &known);
    }
    for (key, value) in strange.as_object().unwrap() {
        let is_known = known.iter().any(|keys| keys.as_array().unwrap().iter().any(|known| known == key));
        if !is_known && !keys.contains_key(key) {
            keys.insert(key.clone(), value.clone());
            added += 1;
        }
    }
    added
}
