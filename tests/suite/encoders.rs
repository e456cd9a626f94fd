//! BERT's kin, whole models, against transformers (`tests/golden/encoders.py`).

use candle_attention::AttentionMask;
use candle_attention::checkpoint::Checkpoint;
use candle_attention::encoder::{BertConfig, BertModel};
use candle_core::{DType, Device, Tensor};

use crate::common::{assert_close, fixture, says};

const CPU: Device = Device::Cpu;
/// Two layers, each to 1e-5.
const MODEL: f64 = 2e-5;

fn encoder(name: &str) {
    let folder = fixture(&format!("encoders/{name}"));
    let config = BertConfig::from_file(folder.join("config.json")).unwrap();
    let model = BertModel::load(&config, &Checkpoint::open(&folder).unwrap().at("", DType::F32, &CPU)).unwrap();
    let golden = Checkpoint::open(folder.join("golden.safetensors")).unwrap();
    let get = |name: &str, dtype| golden.tensor(name, &CPU).unwrap().to_dtype(dtype).unwrap();
    let (ids, want) = (get("ids", DType::U32), get("hidden", DType::F32));
    let types = golden.contains("types").then(|| get("types", DType::U32));
    let lengths: Vec<usize> =
        get("lengths", DType::I64).to_vec1::<i64>().unwrap().iter().map(|&n| n as usize).collect();

    let got = model.forward(&ids, types.as_ref(), &AttentionMask::lengths(&lengths)).unwrap();
    let tokens = |t: &Tensor, row: usize| t.get(row).unwrap().narrow(0, 0, lengths[row]).unwrap();
    for row in 0..lengths.len() {
        assert_close(&format!("{name}, row {row}"), &tokens(&got, row), &tokens(&want, row), MODEL);
    }
    // Without padding, where the model has no biases of positions.
    assert_eq!(model.runs_ragged(), name != "mpnet");
    if model.runs_ragged() {
        let flat = |t: &Tensor| -> Vec<u32> {
            (0..lengths.len()).flat_map(|row| tokens(t, row).to_vec1::<u32>().unwrap()).collect()
        };
        let ids = flat(&ids);
        let types = types.as_ref().map_or_else(|| vec![0; ids.len()], flat);
        let got = model.forward_ragged(&ids, &types, &lengths).unwrap();
        let want = Tensor::cat(&(0..lengths.len()).map(|row| tokens(&want, row)).collect::<Vec<_>>(), 0).unwrap();
        assert_close(&format!("{name}, ragged"), &got, &want, MODEL);
    }
    let too_long = Tensor::ones((1, config.max_tokens() + 1), DType::U32, &CPU).unwrap();
    says(model.forward(&too_long, None, &AttentionMask::none()), &["ids has shape", "by max_position_embeddings"]);
}

macro_rules! encoders {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            encoder(stringify!($name));
        }
    )*};
}

encoders! {
    roberta
    xlm_roberta
    electra
    distilbert
    mpnet
    albert
}
