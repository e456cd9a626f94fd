//! A checkpoint as candle's `VarBuilder`, for the rest of a model.

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder};

use crate::checkpoint::open::Checkpoint;
use crate::checkpoint::source::WeightSource;

impl Checkpoint {
    /// The whole checkpoint as a [`VarBuilder`], which reads tensors in `dtype` onto `device`: the layers of this crate and
    /// those of candle then share one open file.
    ///
    /// ```
    /// use candle_attention::checkpoint::Checkpoint;
    /// use candle_attention::{AttentionConfig, MultiHeadAttention};
    /// use candle_core::{DType, Device};
    ///
    /// let checkpoint = Checkpoint::open("weights")?;
    /// let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    /// let layer = vb.pp("encoder.layer.0");
    /// let attention = MultiHeadAttention::load(&AttentionConfig::new(128, 4), layer.pp("attention"))?;
    /// let norm = candle_attention::norm::layer_norm(128, 1e-12, layer.pp("attention.output.LayerNorm"))?;
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    ///
    /// A float dtype is read from stored floats only: quantized weights need scales that a cast would leave out.
    pub fn var_builder(&self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(Backend(self.clone())), dtype, device.clone())
    }
}

struct Backend(Checkpoint);

impl SimpleBackend for Backend {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        if dtype.is_float() {
            return Ok(self.0.at("", dtype, device).get(name, shape.dims())?);
        }
        let tensor = self.get_unchecked(name, dtype, device)?;
        match *tensor.shape() == shape {
            true => Ok(tensor),
            false => Err(candle_core::Error::UnexpectedShape {
                msg: format!("shape mismatch for {name}"),
                expected: shape,
                got: tensor.shape().clone(),
            }),
        }
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> candle_core::Result<Tensor> {
        if dtype.is_float() {
            let source = self.0.at("", dtype, device);
            let shape = source.shape(name)?.unwrap_or_default();
            return Ok(source.get(name, &shape)?);
        }
        self.0.tensor(name, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}
