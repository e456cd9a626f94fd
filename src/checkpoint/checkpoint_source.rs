//! A checkpoint as a source of weights: a prefix, a compute type and a device.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor, Var};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::{Init, VarBuilder, VarMap};

use crate::checkpoint::detect::{check_prefix, nothing_below};
use crate::checkpoint::open::{Checkpoint, Stored};
use crate::checkpoint::source::{AnySource, WeightSource, below, join, wrong_shape};
use crate::checkpoint::trainer_names::unwrapped;
use crate::ensure;
use crate::error::{Error, Result};
use crate::ops::{ComputeType, Quantization};

/// A prefix of a [`Checkpoint`], with the compute type and device to read in.
#[derive(Clone)]
pub struct CheckpointSource {
    checkpoint: Checkpoint,
    prefix: String,
    dtype: DType,
    device: Device,
    quantize: Quantize,
    round: Option<ByName<DType>>,
    /// Whether tensors are views of a single zero, in place of their data.
    has_shapes_alone: bool,
}

type ByName<T> = Arc<dyn Fn(&str) -> Option<T> + Send + Sync>;

impl fmt::Debug for CheckpointSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checkpoint, prefix, dtype, device, quantize, .. } = self;
        let mut shown = f.debug_struct("CheckpointSource");
        shown.field("checkpoint", checkpoint).field("prefix", prefix).field("dtype", dtype);
        shown.field("device", device).field("quantize", quantize).finish_non_exhaustive()
    }
}

/// The weights that loaders quantize.
#[derive(Clone)]
enum Quantize {
    Nothing,
    /// Those that the checkpoint holds in few bits, in their own format.
    AsStored,
    /// All of them.
    All(Quantization),
    /// Those for whose full names the function has a format.
    ByName(ByName<Quantization>),
}

impl fmt::Debug for Quantize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::AsStored => f.write_str("AsStored"),
            Self::All(format) => write!(f, "All({format})"),
            Self::ByName(_) => f.write_str("ByName"),
        }
    }
}

impl WeightSource for CheckpointSource {
    fn root(&self) -> Self {
        Self { prefix: String::new(), ..self.clone() }
    }

    fn child(&self, name: &str) -> Self {
        Self { prefix: join(&self.prefix, name), ..self.clone() }
    }

    fn full_name(&self, name: &str) -> String {
        join(&self.prefix, name)
    }

    fn names_below(&self, prefix: &str) -> Option<Vec<String>> {
        let prefix = self.full_name(prefix);
        if prefix.is_empty() {
            return Some(self.checkpoint.names().map(str::to_string).collect());
        }
        let start = format!("{prefix}.");
        let names = self.checkpoint.names_from(&start);
        Some(names.map_while(|name| name.strip_prefix(&start)).map(str::to_string).collect())
    }

    fn contains(&self, name: &str) -> bool {
        self.checkpoint.contains(&self.full_name(name))
    }

    fn shape(&self, name: &str) -> Result<Option<Vec<usize>>> {
        Ok(Some(self.checkpoint.entry(&self.full_name(name))?.shape.to_vec()))
    }

    fn gives_own_tensors(&self) -> bool {
        true
    }

    fn quantization(&self, name: &str) -> Option<Quantization> {
        let name = self.full_name(name);
        match &self.quantize {
            Quantize::Nothing => None,
            Quantize::AsStored => self.checkpoint.stored_quantization(&name),
            Quantize::All(format) => Some(*format),
            Quantize::ByName(format) => format(&name),
        }
    }

    fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let full_name = self.check_all(name, shape)?;
        if self.has_shapes_alone {
            return self.zeros(shape);
        }
        self.convert(&full_name, self.checkpoint.tensor(&full_name, &Device::Cpu)?)
    }

    fn get_reshaped(&self, name: &str, stored: &[usize], shape: &[usize]) -> Result<Tensor> {
        let tensor = self.get(name, stored)?;
        // To reshape a view would copy it.
        if self.has_shapes_alone { self.zeros(shape) } else { Ok(tensor.reshape(shape)?) }
    }

    fn get_rows(&self, name: &str, shape: [usize; 2], on_rows: &mut dyn FnMut(Tensor) -> Result<()>) -> Result<()> {
        let full_name = self.check_all(name, &shape)?;
        if self.has_shapes_alone {
            return on_rows(self.zeros(&shape)?);
        }
        self.checkpoint.each_rows(&full_name, &mut |rows| on_rows(self.convert(&full_name, rows)?))
    }
}

impl CheckpointSource {
    /// This source with zeros in the place of all data, which is not read.
    pub(crate) fn with_shapes_alone(self) -> Self {
        Self { has_shapes_alone: true, ..self }
    }

    /// A view of a single zero: a header may claim more elements than memory holds.
    fn zeros(&self, shape: &[usize]) -> Result<Tensor> {
        Ok(Tensor::zeros((), self.dtype, &self.device)?.broadcast_as(shape)?)
    }

    /// Checks that a tensor of this shape can be read as the source is to, and returns its full name.
    fn check_all(&self, name: &str, shape: &[usize]) -> Result<String> {
        if !self.device.is_cpu()
            && let Some(format) = self.quantization(name)
        {
            let expected = "the CPU: other devices run f32, f16 or bf16";
            let found = format!("{:?}", self.device.location());
            return Err(Error::value(format!("the device of {format} weights"), found, expected));
        }
        if !matches!(self.dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64) {
            let what = format!("what tensor `{}` is read as", self.full_name(name));
            return Err(Error::dtype(what, self.dtype, "f16, bf16, f32 or f64"));
        }
        self.check(name, shape)
    }

    /// A tensor, or rows of it, in the dtype and on the device of the source.
    fn convert(&self, full_name: &str, tensor: Tensor) -> Result<Tensor> {
        let tensor = match self.round.as_ref().and_then(|round| round(full_name)) {
            Some(dtype) => tensor.to_dtype(dtype)?,
            None => tensor,
        };
        // Cast on the CPU first: the device may lack the stored dtype (f64 on Metal).
        Ok(tensor.to_dtype(self.dtype)?.to_device(&self.device)?)
    }

    /// This source, of which loaders quantize the weights for whose full names `format` returns a format, such as
    /// `encoder.layer.0.attention.self.query.weight`, and no others: projections and tables of embeddings; those of
    /// queries, keys and values of a layer only together. It is read in f32.
    ///
    /// ```
    /// use candle_attention::checkpoint::{Checkpoint, WeightSource};
    /// use candle_attention::Quantization;
    /// use candle_core::{DType, Device};
    ///
    /// let source = Checkpoint::open("weights")?.at("", DType::F32, &Device::Cpu);
    /// let source = source.with_quantization(|name| name.starts_with("encoder.layer").then_some(Quantization::Int8));
    /// assert_eq!(source.quantization("embeddings.word_embeddings.weight"), None);
    /// # Ok::<(), candle_attention::Error>(())
    /// ```
    #[must_use]
    pub fn with_quantization(self, format: impl Fn(&str) -> Option<Quantization> + Send + Sync + 'static) -> Self {
        Self { quantize: Quantize::ByName(Arc::new(format)), dtype: DType::F32, ..self }
    }

    /// This source, of which tensors for whose full names `dtype` returns a dtype are rounded to it when they are
    /// read, as if they were stored in it.
    #[must_use]
    pub fn with_rounding(self, dtype: impl Fn(&str) -> Option<DType> + Send + Sync + 'static) -> Self {
        Self { round: Some(Arc::new(dtype)), ..self }
    }

    /// Checks that there is a floating-point tensor of this shape, and returns its full name.
    pub(crate) fn check(&self, name: &str, shape: &[usize]) -> Result<String> {
        let full_name = self.full_name(name);
        let entry = self.checkpoint.entry(&full_name)?;
        ensure!(*entry.shape == *shape, wrong_shape(full_name, &entry.shape, shape));
        self.check_dtype(name)?;
        Ok(full_name)
    }

    /// Checks that there is a floating-point tensor of this name.
    pub(crate) fn check_dtype(&self, name: &str) -> Result<()> {
        use safetensors::Dtype::{BF16, F16, F32, F64};
        let name = self.full_name(name);
        let entry = self.checkpoint.entry(&name)?;
        if let Some(stored) = &entry.gguf {
            stored.kind.check(&name)?;
        }
        match entry.dtype {
            F16 | BF16 | F32 | F64 => Ok(()),
            // Quantized weights need scales that a cast would leave out.
            dtype => Err(Error::tensor(name, format!("has dtype {dtype:?}"), "f16, bf16, f32 or f64")),
        }
    }
}

impl Checkpoint {
    /// The weights below `prefix`, which may be empty, to be read onto `device` in a dtype, or in a
    /// [`Quantization`](crate::Quantization): what loaders quantize of them is projections and tables of embeddings.
    ///
    /// A weight that the checkpoint holds in few bits itself is dequantized in a dtype, and stays so on the CPU in
    /// `ComputeType::default()` and if its format is the one that is asked for; one that it holds in a float dtype
    /// stays so then.
    ///
    /// Few bits reach what is loaded from this source: attention layers,
    /// [`ops::Linear::load`](crate::ops::Linear::load), text models. The parts of a model that read a
    /// [`var_builder`](Self::var_builder) are in its dtype.
    pub fn at(&self, prefix: &str, compute_type: impl Into<ComputeType>, device: &Device) -> CheckpointSource {
        let compute_type = compute_type.into();
        let quantize = match compute_type.quantization() {
            Some(format) if !device.is_cpu() || !self.stores(format) => Quantize::All(format),
            _ if compute_type.keeps_stored() && device.is_cpu() => Quantize::AsStored,
            _ => Quantize::Nothing,
        };
        let stated = prefix.trim_end_matches('.');
        // Names are read without the wrappers of trainers, unless two tensors would get one name.
        let (plain, is_stored) = (unwrapped(stated), |name: &str| below(stated, name).is_some());
        let prefix = if plain != stated && self.names().any(is_stored) { stated.to_string() } else { plain };
        let (checkpoint, dtype, device) = (self.clone(), compute_type.dtype(), device.clone());
        CheckpointSource { checkpoint, prefix, dtype, device, quantize, round: None, has_shapes_alone: false }
    }

    /// Whether it holds a weight in the format.
    fn stores(&self, format: Quantization) -> bool {
        self.names().any(|name| self.stored_quantization(name) == Some(format))
    }

    /// The format of a stored weight of few bits that is packed as it is.
    fn stored_quantization(&self, name: &str) -> Option<Quantization> {
        match self.lookup(name) {
            Ok(Stored::Quantized(weight)) => weight.packed_format(self.shards()),
            Ok(Stored::Plain(_, entry)) => entry.gguf.as_ref().and_then(|gguf| gguf.packed_format()),
            _ => None,
        }
    }

    /// Every f16, bf16, f32 or f64 tensor below `prefix` as a trainable variable, under its full name, quantized
    /// weights dequantized; integers and booleans are left out. What is loaded from a
    /// [`VarMapSource`](crate::checkpoint::VarMapSource) of the map, or from `VarBuilder::from_varmap(&map, dtype,
    /// device)`, is trainable, and `map.save` writes it under the same names.
    ///
    /// # Errors
    /// If nothing that can learn is below `prefix`, or a tensor cannot be read.
    pub fn to_varmap(&self, prefix: &str, dtype: DType, device: &Device) -> Result<VarMap> {
        use safetensors::Dtype::{BOOL, I8, I16, I32, I64, U8, U16, U32, U64};
        let source = self.at(prefix, dtype, device);
        let (map, mut any) = (VarMap::new(), false);
        for name in source.names().into_iter().flatten() {
            let full_name = source.full_name(&name);
            let entry = self.entry(&full_name)?;
            if !matches!(entry.dtype, BOOL | I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64) {
                let variable = Var::from_tensor(&source.get(&name, &entry.shape)?)?;
                let mut data = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                data.insert(full_name, variable);
                any = true;
            }
        }
        if any { Ok(map) } else { Err(nothing_below(&source.prefix, &self.names().collect::<Vec<_>>())) }
    }

    /// Checks that there is a tensor below `prefix`.
    ///
    /// # Errors
    /// [`Error::MissingTensor`](crate::Error::MissingTensor), which names the attention layers that there are.
    pub fn check_prefix(&self, prefix: &str) -> Result<()> {
        check_prefix(&AnySource::new(&self.at(prefix, DType::F32, &Device::Cpu)))
    }

    /// The whole checkpoint as a [`VarBuilder`], which reads tensors in `dtype` onto `device`: the layers of this crate
    /// and those of candle then share one open file.
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
    /// A float dtype is read from stored floats and from quantized weights of a known format only: a cast of integers
    /// would leave out their scales.
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
        if *tensor.shape() == shape {
            Ok(tensor)
        } else {
            Err(candle_core::Error::UnexpectedShape {
                msg: format!("shape mismatch for {name}"),
                expected: shape,
                got: tensor.shape().clone(),
            })
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
