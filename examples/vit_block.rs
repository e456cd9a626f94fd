//! The first block of a vision transformer, composed around `MultiHeadAttention`.

#[allow(dead_code)] // Every program uses a part of it.
mod tokens;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_attention::checkpoint::{Checkpoint, WeightSource};
use candle_attention::norm::Norm;
use candle_attention::{MultiHeadAttention, NormKind};
use candle_attention_cli::shared::{Result, about, print};
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::{Activation, Conv2d, Conv2dConfig, Linear};
use clap::Parser;
use tokens::Config;

/// Embeds the patches of images, runs the first block of a ViT on them and prints the shape of the result.
///
/// The model in tests/fixtures has random weights: only the shape says something.
///
/// Example: vit_block tests/fixtures/compose/vit tests/fixtures/compose/vit/golden.safetensors
#[derive(Parser)]
#[command(name = "vit_block", verbatim_doc_comment)]
struct Arguments {
    /// The folder of a ViTModel: config.json and model.safetensors
    model: PathBuf,
    /// A safetensors file with `pixels` (b, 3, height, width)
    images: PathBuf,
}

/// One token per square of `patch_size` pixels, after a `[CLS]` token for the whole image.
pub struct Embeddings {
    projection: Conv2d,
    cls_token: Tensor,
    position_embeddings: Tensor,
    /// The shape of an image: channels, height and width.
    image: [usize; 3],
}

impl Embeddings {
    /// pixels `(b, 3, height, width)` → `(b, 1 + patches, hidden_size)`.
    pub fn forward(&self, pixels: &Tensor) -> Result<Tensor> {
        let [channels, height, width] = self.image;
        if pixels.rank() != 4 || pixels.dims()[1..] != self.image {
            let expected = format!("(b, {channels}, {height}, {width}), as config.json has the images");
            return Err(format!("`pixels` has shape {:?}, expected {expected}", pixels.dims()).into());
        }
        let patches = self.projection.forward(pixels)?.flatten_from(2)?.transpose(1, 2)?; // (b, patches, hidden_size)
        let (b, _, hidden_size) = patches.dims3()?;
        let cls = self.cls_token.broadcast_as((b, 1, hidden_size))?;
        Ok(Tensor::cat(&[&cls, &patches], 1)?.broadcast_add(&self.position_embeddings)?)
    }
}

/// `xs + attention(norm(xs))`, then `xs + mlp(norm(xs))`.
pub struct Block {
    norm_before: Norm,
    attention: MultiHeadAttention,
    norm_after: Norm,
    intermediate: Linear,
    output: Linear,
    activation: Activation,
}

impl Block {
    /// xs `(b, s, hidden_size)`.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        // No mask and no positions in the layer: every patch attends to every patch.
        let xs = (xs + self.attention.forward(&self.norm_before.forward(xs)?)?)?;
        let hidden = self.intermediate.forward(&self.norm_after.forward(&xs)?)?.apply(&self.activation)?;
        Ok((xs + self.output.forward(&hidden)?)?)
    }
}

/// Loads the embeddings and the first block of the model in a folder.
pub fn load(folder: &Path) -> Result<(Embeddings, Block)> {
    let config = Config::from_folder(folder)?;
    config.expect("model_type", "vit")?;
    let (checkpoint, device) = (Checkpoint::open(folder)?, Device::Cpu);
    let weights = checkpoint.at("", DType::F32, &device);
    let weight = |name: &str| weights.get(name, &weights.shape(name)?.unwrap_or_default());
    let weight_and_bias = |name: &str| -> Result<(Tensor, Tensor)> {
        Ok((weight(&format!("{name}.weight"))?, weight(&format!("{name}.bias"))?))
    };
    let linear = |name: &str| weight_and_bias(name).map(|(weight, bias)| Linear::new(weight, Some(bias)));
    let (eps, size) = (config.number("layer_norm_eps")?, config.size("hidden_size")?);
    let (image, patch) = (config.size("image_size")?, config.size("patch_size")?);
    if patch == 0 {
        return Err(config.wrong("patch_size", "at least 1"));
    }
    let norm = |name: &str| Norm::load(NormKind::Layer, true, size, eps, &weights.child(name));

    let (patch_weight, patch_bias) = weight_and_bias("embeddings.patch_embeddings.projection")?; // (hidden_size, 3, patch, patch)
    let stride = Conv2dConfig { stride: patch, ..Conv2dConfig::default() };
    let embeddings = Embeddings {
        projection: Conv2d::new(patch_weight, Some(patch_bias), stride),
        cls_token: weight("embeddings.cls_token")?,
        position_embeddings: weight("embeddings.position_embeddings")?,
        image: [config.size("num_channels")?, image, image],
    };
    let block = Block {
        norm_before: norm("encoder.layer.0.layernorm_before")?,
        attention: checkpoint.attention_with("encoder.layer.0.attention", &config.json, DType::F32, &device)?.layer,
        norm_after: norm("encoder.layer.0.layernorm_after")?,
        intermediate: linear("encoder.layer.0.intermediate.dense")?,
        output: linear("encoder.layer.0.output.dense")?,
        activation: serde_json::from_value(config.json["hidden_act"].clone())
            .map_err(|_| config.wrong("hidden_act", "an activation that candle supports"))?,
    };
    Ok((embeddings, block))
}

fn main() -> ExitCode {
    candle_attention_cli::shared::program::run(|| {
        let Arguments { model, images } = Arguments::parse();
        let (embeddings, block) = load(&model)?;
        let pixels = Checkpoint::open(&images)?.tensor("pixels", &Device::Cpu)?.to_dtype(DType::F32)?;
        let embedded = embeddings.forward(&pixels).map_err(|e| about(&images, &e))?;
        let output = block.forward(&embedded)?;
        let mut out = print::stdout();
        writeln!(out, "pixels {:?} → patches {:?}", pixels.dims(), output.dims())?;
        Ok(out.flush()?)
    })
}
