//! The dense module: a linear layer with an activation.

use std::path::Path;

use candle_attention::checkpoint::{AnySource, WeightSource};
use candle_attention::ops::Linear;
use candle_attention::weights::LinearWeights;
use candle_attention::{Error, Result};
use candle_core::{DType, Device, Tensor};
use candle_nn::ops::{leaky_relu, sigmoid};

use crate::folder::{ModelFolder, yes};
use crate::model::mlp::linear;
use crate::model::places::load_all;

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
        let source = AnySource::new(&folder.checkpoint(path)?.at("", DType::F32, device));
        load_all(&source, |source| Self::read(source, &config, activation))
    }

    /// Reads the weights of a module.
    fn read(source: &AnySource, config: &DenseConfig, activation: Activation) -> Result<Self> {
        let (width, out) = (config.in_features, config.out_features);
        let packed = |name: &str, has_bias: bool| {
            let mut linear = linear(source, name, out, width, has_bias)?;
            linear.pack()?;
            Ok::<_, Error>(linear)
        };
        let residual = if !config.use_residual {
            Residual::None
        } else if out == width {
            Residual::Input
        } else {
            Residual::Linear(packed("residual", false)?)
        };
        Ok(Self { linear: packed("linear", config.bias)?, activation, residual })
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
            Ok::<_, Error>(linear.forward_in_dtype(&xs.to_dtype(DType::F32)?.unsqueeze(1)?, xs.dtype())?.squeeze(1)?)
        };
        let ys = (self.activation)(&apply(&self.linear)?)?;
        Ok(match &self.residual {
            Residual::None => ys,
            Residual::Input => (ys + xs)?,
            Residual::Linear(residual) => (ys + apply(residual)?)?,
        })
    }
}

/// An activation of `torch.nn` that needs no argument.
type Activation = fn(&Tensor) -> candle_core::Result<Tensor>;

/// The activation of a class such as `torch.nn.modules.activation.Tanh`, with the class's own parameters; `None` if it
/// is not one of torch's, or not among these.
fn activation(class: &str) -> Option<Activation> {
    // Other libraries may have other functions of the same name; sentence-transformers does not run them either.
    let name = class.strip_prefix("torch.")?.rsplit('.').next()?;
    Some(match name {
        "Identity" => |xs| Ok(xs.clone()),
        "Tanh" => Tensor::tanh,
        // Unlike `Tensor::relu`, it keeps NaN.
        "ReLU" => |xs| xs.maximum(0f64),
        "GELU" => Tensor::gelu_erf,
        "SiLU" => Tensor::silu,
        "Sigmoid" => sigmoid,
        "ELU" | "CELU" => |xs| xs.elu(1.0),
        "SELU" => |xs| xs.elu(SELU_ALPHA)? * SELU_SCALE,
        "LeakyReLU" => |xs| leaky_relu(xs, 0.01),
        "ReLU6" => |xs| xs.clamp(0f32, 6f32),
        "Hardtanh" => |xs| xs.clamp(-1f32, 1f32),
        "Hardsigmoid" => hard_sigmoid,
        "Hardswish" => |xs| xs * hard_sigmoid(xs)?,
        "Softplus" => softplus,
        "Mish" => |xs| xs * softplus(xs)?.tanh()?,
        "LogSigmoid" => |xs| softplus(&xs.neg()?)?.neg(),
        "Softsign" => |xs| xs / (xs.abs()? + 1.0)?,
        "Tanhshrink" => |xs| xs - xs.tanh()?,
        "Softshrink" => |xs| xs - xs.clamp(-0.5f32, 0.5f32)?,
        "Hardshrink" => |xs| xs * xs.abs()?.gt(0.5f64)?.to_dtype(xs.dtype())?,
        _ => return None,
    })
}

/// The constants of SELU ([Klambauer 2017](https://arxiv.org/abs/1706.02515)).
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// `min(max(x / 6 + 1/2, 0), 1)`.
fn hard_sigmoid(xs: &Tensor) -> candle_core::Result<Tensor> {
    ((xs / 6.0)? + 0.5)?.clamp(0f32, 1f32)
}

/// `ln(1 + e^x)`, as `max(x, 0) + ln(1 + e^-|x|)`, which does not overflow.
fn softplus(xs: &Tensor) -> candle_core::Result<Tensor> {
    xs.relu()? + (xs.abs()?.neg()?.exp()? + 1.0)?.log()?
}
