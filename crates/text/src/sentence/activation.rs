//! The activations of dense modules: those of `torch.nn` that need no argument.

use candle_core::{Result, Tensor};
use candle_nn::ops::{leaky_relu, sigmoid};

pub(crate) type Activation = fn(&Tensor) -> Result<Tensor>;

/// The activation of a class such as `torch.nn.modules.activation.Tanh`, with the class's own parameters; `None` if it is
/// not one of torch's, or not among these.
pub(crate) fn activation(class: &str) -> Option<Activation> {
    // Other libraries may have other functions of the same name; sentence-transformers does not run them either.
    let name = class.strip_prefix("torch.")?.rsplit('.').next()?;
    Some(match name {
        "Identity" => |xs| Ok(xs.clone()),
        "Tanh" => Tensor::tanh,
        "ReLU" => Tensor::relu,
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
fn hard_sigmoid(xs: &Tensor) -> Result<Tensor> {
    ((xs / 6.0)? + 0.5)?.clamp(0f32, 1f32)
}

/// `ln(1 + e^x)`, as `max(x, 0) + ln(1 + e^-|x|)`, which does not overflow.
fn softplus(xs: &Tensor) -> Result<Tensor> {
    xs.relu()? + (xs.abs()?.neg()?.exp()? + 1.0)?.log()?
}
