//! The dense module: a linear layer with an activation.

use std::path::Path;

use candle_attention::checkpoint::WeightSource;
use candle_attention::ops::Linear;
use candle_attention::weights::LinearWeights;
use candle_attention::{Error, Result};
use candle_core::{DType, Device, Tensor};

use crate::folder::ModelFolder;
use crate::sentence::activation::{Activation, activation};

/// The largest number of features that a dense module may have. The widest published one has 4,096.
const MAX_DENSE_FEATURES: usize = 1 << 24;

#[derive(serde::Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    #[serde(default = "tanh")]
    activation_function: String,
    #[serde(default)]
    use_residual: bool,
}

fn yes() -> bool {
    true
}

fn tanh() -> String {
    "torch.nn.modules.activation.Tanh".to_string()
}

/// `activation(x Wᵀ + b)`, plus `x` or `x Rᵀ` with a residual.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    linear: Linear,
    activation: Activation,
    residual: Residual,
}

#[derive(Debug, Clone)]
enum Residual {
    None,
    Input,
    /// Where the sizes of input and output differ.
    Linear(Linear),
}

impl Dense {
    /// Reads the module of a folder, for vectors of `width`.
    pub fn load(folder: ModelFolder, path: &Path, width: usize, device: &Device) -> Result<Self> {
        let file = path.join("config.json");
        let config: DenseConfig = folder.json(&file)?;
        if config.in_features != width {
            return Err(Error::file(file, format!("in_features is {}, expected {width}", config.in_features)));
        }
        if !(1..=MAX_DENSE_FEATURES).contains(&config.out_features) {
            let reason = format!("out_features is {}, expected 1 to {MAX_DENSE_FEATURES}", config.out_features);
            return Err(Error::file(file, reason));
        }
        let name = &config.activation_function;
        let activation = activation(name)
            .ok_or_else(|| Error::file(&file, format!("activation_function `{name}` is not one this version knows")))?;
        // In f32 whatever the model's dtype: it works on pooled vectors, which are f32.
        let source = folder.checkpoint(path)?.at("", DType::F32, device);
        let out = config.out_features;
        let linear = |name: &str, has_bias: bool| {
            let source = source.child(name);
            let bias = has_bias.then(|| source.get("bias", &[out])).transpose()?;
            let weights = LinearWeights::new(source.get("weight", &[out, width])?, bias);
            let mut linear = Linear::new("dense module", weights, out, width)?;
            linear.pack()?;
            Ok::<_, Error>(linear)
        };
        let residual = match config.use_residual {
            false => Residual::None,
            true if out == width => Residual::Input,
            true => Residual::Linear(linear("residual", false)?),
        };
        Ok(Self { linear: linear("linear", config.bias)?, activation, residual })
    }

    /// The weight `(out, width)` of `source` alone, without bias or activation (ColBERT).
    pub fn inline(source: &dyn WeightSource, width: usize) -> Result<Self> {
        let out = match source.shape("weight")?.as_deref() {
            Some([out, _]) if (1..=MAX_DENSE_FEATURES).contains(out) => *out,
            other => {
                let found = format!("has shape {:?}", other.unwrap_or_default());
                let expected = format!("[1 to {MAX_DENSE_FEATURES}, {width}]");
                return Err(Error::Tensor { name: source.full_name("weight"), found, expected });
            }
        };
        let weight = source.get("weight", &[out, width])?.to_dtype(DType::F32)?;
        let mut linear = Linear::new("dense layer", LinearWeights::new(weight, None), out, width)?;
        linear.pack()?;
        Ok(Self { linear, activation: |xs| Ok(xs.clone()), residual: Residual::None })
    }

    pub fn out_features(&self) -> usize {
        self.linear.out_features()
    }

    /// `(b, in_features)` → `(b, out_features)`, in the dtype of the input.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let apply = |linear: &Linear| {
            Ok::<_, Error>(linear.forward(&xs.to_dtype(DType::F32)?.unsqueeze(1)?, xs.dtype())?.squeeze(1)?)
        };
        let ys = (self.activation)(&apply(&self.linear)?)?;
        Ok(match &self.residual {
            Residual::None => ys,
            Residual::Input => (ys + xs)?,
            Residual::Linear(residual) => (ys + apply(residual)?)?,
        })
    }
}
