//! The `Dense` module of sentence-transformers, on pooled vectors or on those of tokens.

use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::{Checkpoint, WeightSource};
use crate::error::{Error, Result};
use crate::io::json;
use crate::ops::Linear;
use crate::weights::LinearWeights;

/// The largest number of features that a dense module may have. The widest published one has 4,096.
const MAX_DENSE_FEATURES: usize = 1 << 24;

/// What dense modules read and write after pooling.
const POOLED: &str = "sentence_embedding";

/// What they read and write in multi-vector models.
const TOKENS: &str = "token_embeddings";

#[derive(serde::Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    bias: bool,
    #[serde(default = "tanh")]
    activation_function: String,
    module_input_name: Option<String>,
    module_output_name: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

fn tanh() -> String {
    "torch.nn.modules.activation.Tanh".to_string()
}

/// `activation(linear(x))`, plus the residual where there is one: `x`, or its projection if the sizes differ.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    linear: Linear,
    activation: fn(&Tensor) -> candle_core::Result<Tensor>,
    residual: Residual,
}

#[derive(Debug, Clone)]
enum Residual {
    None,
    Input,
    Projected(Linear),
}

impl Dense {
    /// Reads the module in the folder `path`, for pooled vectors of `width`.
    pub fn load(path: &Path, width: usize, device: &Device) -> Result<Self> {
        Self::load_for(POOLED, path, width, device)
    }

    /// The same for the vectors of tokens.
    pub fn load_for_tokens(path: &Path, width: usize, device: &Device) -> Result<Self> {
        Self::load_for(TOKENS, path, width, device)
    }

    /// The weight `(out, width)` of `source` alone, without bias or activation (ColBERT).
    pub fn inline<S: WeightSource>(source: &S, width: usize) -> Result<Self> {
        let out = match source.shape("weight")?.as_deref() {
            Some([out, _]) if (1..=MAX_DENSE_FEATURES).contains(out) => *out,
            other => {
                let found = format!("has shape {:?}", other.unwrap_or_default());
                let expected = format!("[1 to {MAX_DENSE_FEATURES}, {width}]");
                return Err(Error::Tensor { name: source.full_name("weight"), found, expected });
            }
        };
        let weight = source.get("weight", &[out, width])?.to_dtype(DType::F32)?;
        let mut linear = Linear::new("dense layer", LinearWeights { weight, bias: None }, out, width)?;
        linear.pack()?;
        Ok(Self { linear, activation: |xs| Ok(xs.clone()), residual: Residual::None })
    }

    fn load_for(vectors: &'static str, path: &Path, width: usize, device: &Device) -> Result<Self> {
        let file = path.join("config.json");
        let config: DenseConfig = json(&file)?;
        if config.in_features != width {
            return Err(Error::file(file, format!("in_features is {}, expected {width}", config.in_features)));
        }
        let out = config.out_features;
        if !(1..=MAX_DENSE_FEATURES).contains(&out) {
            let reason = format!("out_features is {out}, expected 1 to {MAX_DENSE_FEATURES}");
            return Err(Error::file(file, reason));
        }
        let names =
            [("module_input_name", &config.module_input_name), ("module_output_name", &config.module_output_name)];
        for (key, name) in names {
            if let Some(name) = name.as_deref().filter(|name| *name != vectors) {
                return Err(Error::file(file, format!("{key} is `{name}`, expected `{vectors}`")));
            }
        }
        let activation = match config.activation_function.rsplit('.').next().unwrap_or_default() {
            "Identity" => |xs: &Tensor| Ok(xs.clone()),
            "Tanh" => Tensor::tanh,
            "ReLU" => Tensor::relu,
            "GELU" => Tensor::gelu_erf,
            "SiLU" => Tensor::silu,
            other => {
                return Err(Error::file(file, format!("activation_function `{other}` is not one this version knows")));
            }
        };
        // In f32 whatever the model's dtype: it works on pooled vectors, which are f32.
        let root = Checkpoint::open(path)?.at("", DType::F32, device);
        let linear = |name: &str, bias: bool| -> Result<Linear> {
            let source = root.child(name);
            let bias = bias.then(|| source.get("bias", &[out])).transpose()?;
            let weights = LinearWeights { weight: source.get("weight", &[out, width])?, bias };
            let mut linear = Linear::new("dense module", weights, out, width)?;
            linear.pack()?;
            Ok(linear)
        };
        let residual = match config.use_residual {
            false => Residual::None,
            true if out == width => Residual::Input,
            true => Residual::Projected(linear("residual", false)?),
        };
        Ok(Self { linear: linear("linear", config.bias)?, activation, residual })
    }

    /// The size of the vectors that it returns.
    pub fn output_size(&self) -> usize {
        self.linear.out_features()
    }

    /// xs `(b, in)` → `(b, out)`.
    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let wide = xs.to_dtype(DType::F32)?.unsqueeze(1)?;
        let apply = |linear: &Linear| -> Result<Tensor> { Ok(linear.forward(&wide, xs.dtype())?.squeeze(1)?) };
        let ys = (self.activation)(&apply(&self.linear)?)?;
        Ok(match &self.residual {
            Residual::None => ys,
            Residual::Input => (ys + xs)?,
            Residual::Projected(projection) => (ys + apply(projection)?)?,
        })
    }
}
