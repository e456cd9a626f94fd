//! Encoders of every kind: pre-norm and post-norm, gated feed-forward, rotary positions, relative biases.

use std::path::Path;

use candle_attention::AttentionMask;
use candle_attention::checkpoint::Checkpoint;
use candle_attention_text::{TextModel, TextModelConfig};
use candle_core::{DType, Device, Tensor};

use crate::cases::DTYPES;
use crate::judge::{Verdict, What, largest, to_cpu};

const MODELS: [&str; 9] = [
    "tiny-bert",
    "encoders/albert",
    "encoders/distilbert",
    "encoders/electra",
    "encoders/gte",
    "encoders/modernbert",
    "encoders/mpnet",
    "encoders/nomic_bert",
    "encoders/roberta",
];

/// Padded and ragged batches, against the same model in f64 on the CPU.
pub fn padded_and_ragged(device: &Device) {
    let mut verdict = Verdict::default();
    for (name, dtype) in MODELS.into_iter().flat_map(|name| DTYPES.map(|dtype| (name, dtype))) {
        // Relative to the working directory: the program may run on another machine than the one that built it.
        let folder = Path::new("tests/fixtures").join(name);
        let config = TextModelConfig::from_file(folder.join("config.json")).unwrap();
        let checkpoint = Checkpoint::open(&folder).unwrap();
        let model = |dtype, device: &Device| TextModel::load(&config, checkpoint.at("", dtype, device)).unwrap();
        let (on_device, judge) = (model(dtype, device), rounded(&config, &checkpoint, dtype));

        let lengths = [5, 13, 2];
        let (b, longest) = (lengths.len(), 13);
        let id = |i: usize| 3 + i as u32 * 7 % (config.vocab_size as u32 - 3);
        let ids = Tensor::from_iter((0..b * longest).map(id), &Device::Cpu).unwrap().reshape((b, longest)).unwrap();
        let mask = AttentionMask::lengths(&lengths);
        let want = judge.forward(&ids, None, &mask).unwrap();
        let got = on_device.forward(&ids.to_device(device).unwrap(), None, &mask).unwrap();
        let text = |hidden: &Tensor, i: usize| hidden.get(i).unwrap().narrow(0, 0, lengths[i]).unwrap();
        let wants: Vec<_> = (0..b).map(|i| text(&want, i)).collect();
        for (i, want) in wants.iter().enumerate() {
            let got = text(&got, i);
            verdict.compare(&format!("{name}, text {i}"), What::Encoder, dtype, &got, want, largest(want));
        }

        let texts: Vec<u32> =
            (0..b).flat_map(|i| ids.get(i).unwrap().to_vec1::<u32>().unwrap()[..lengths[i]].to_vec()).collect();
        let got = on_device.forward_ragged(&texts, &vec![0; texts.len()], &lengths).unwrap();
        let want = Tensor::cat(&wants, 0).unwrap();
        // Ragged outputs are f32 for any model.
        let got = to_cpu(&got).to_dtype(dtype).unwrap();
        verdict.compare(&format!("{name}, ragged"), What::Encoder, dtype, &got, &want, largest(&want));
    }
    verdict.end(device);
}

/// The model in f64, with its weights rounded to `dtype`.
fn rounded(config: &TextModelConfig, checkpoint: &Checkpoint, dtype: DType) -> TextModel {
    let names = checkpoint.names();
    let tensors = names.map(|name| {
        let tensor = checkpoint.tensor(name, &Device::Cpu).unwrap();
        (name.to_string(), tensor.to_dtype(dtype).unwrap().to_dtype(DType::F64).unwrap())
    });
    let vb = candle_nn::VarBuilder::from_tensors(tensors.collect(), DType::F64, &Device::Cpu);
    TextModel::load(config, vb).unwrap()
}
