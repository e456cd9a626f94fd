mod cached;
mod fresh;
mod inputs;
pub(crate) mod ragged;
mod row_positions;
mod transform;

use candle_core::{DType, Module, Tensor};

use crate::checkpoint::{AttentionWeights, NormWeights, WeightSource};
use crate::config::{AttentionConfig, Scoring};
use crate::error::{Error, Result};
use crate::mask::AttentionMask;
use crate::mask::check::CallShape;
use crate::position::Position;
use crate::projection::{Dense, Qkv, accumulate_in};
use crate::sdpa::{self, Attended, Call, Plan, SdpaOptions};
pub use inputs::{AttentionInputs, AttentionOptions};

/// Multi-head attention: `concat_h(softmax(Q_h K_hᵀ · scale + M) V_h) W_O`.
///
/// `Q = X_q W_Qᵀ + b_Q`, and likewise K and V, are cut into heads of `head_dim` numbers; `scale` is `head_dim^-0.5`
/// unless set; `M` is the mask ([Vaswani 2017](https://arxiv.org/abs/1706.03762)). Key-value heads may be fewer than
/// query heads ([Ainslie 2023](https://arxiv.org/abs/2305.13245)); scoring may be additive instead of a product
/// ([`Scoring`]).
///
/// # Shapes
/// queries `(b, s_q, query_size)`, keys `(b, s_kv, key_size)`, values `(b, s_kv, value_size)` → `(b, s_q, output_size)`;
/// weights `(b, h, s_q, s_kv)`. All four sizes are `hidden_size` unless set. A learned or zero extra key
/// (`add_bias_kv`, `add_zero_attn`) comes last and makes the weights one column wider each.
/// # DTypes
/// f16, bf16, f32, f64: that of the weights, which the inputs must share. On the CPU half types are computed in f32 from
/// the projections to the output, which is rounded once; with instructions for bf16 (AMX, AVX512-BF16) the operands of
/// each product are rounded to bf16, sums and softmax stay f32. On a GPU the softmax is in f32.
/// # Masks
/// [`AttentionMask`]: true = attend. A query that sees nothing gets zeros before the output projection.
/// # Backends
/// On the CPU, layers of fixed weights run fused kernels that keep no score matrix; whatever tracks a gradient, returns
/// weights or drops some takes candle's differentiable operations, as do other devices. [`plan`](Self::plan) says which.
/// # Gradients
/// Every operation is differentiable; a parameter that is a variable gets its gradient whatever the mask or scoring.
/// # Errors
/// A tensor of the wrong shape, dtype or device, named, with what was expected.
///
/// # Example
/// ```
/// use candle_attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
/// use candle_core::{DType, Device, Module, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
///
/// let device = Device::Cpu;
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &device);
/// let attention = MultiHeadAttention::new(&AttentionConfig::new(8, 2), vb)?;
///
/// let xs = Tensor::randn(0f32, 1., (2, 5, 8), &device)?;
/// assert_eq!(attention.forward(&xs)?.dims(), [2, 5, 8]);
///
/// let memory = Tensor::randn(0f32, 1., (2, 7, 8), &device)?;
/// let mask = AttentionMask::lengths(&[7, 3]);
/// assert_eq!(attention.attend(&xs, &memory, &memory, &mask)?.dims(), [2, 5, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct MultiHeadAttention {
    config: AttentionConfig,
    qkv: Qkv,
    o_proj: Dense,
    bias_kv: Option<[Tensor; 2]>,
    score: Option<Tensor>,
    qk_norm: Option<[NormWeights; 2]>,
    sinks: Option<Tensor>,
    relative_bias: Option<Tensor>,
}

impl MultiHeadAttention {
    /// The layer of a checkpoint, in any layout of [`LAYOUTS`](crate::checkpoint::LAYOUTS): `source` is a `VarBuilder`
    /// or a [`Checkpoint::at`](crate::checkpoint::Checkpoint::at) whose prefix is that of the layer.
    ///
    /// # Errors
    /// See [`AttentionWeights::read`].
    pub fn load<S: WeightSource>(config: &AttentionConfig, source: S) -> Result<Self> {
        let (weights, _) = AttentionWeights::read(config, &source)?;
        Self::from_weights(config, weights)
    }

    /// The layer made of these tensors.
    ///
    /// On the CPU, weights that are no variables are taken to be fixed: at the first call they are packed for the
    /// kernels, and a later change in place would not be seen.
    ///
    /// # Errors
    /// An invalid configuration; a tensor that does not fit it.
    pub fn from_weights(config: &AttentionConfig, weights: AttentionWeights) -> Result<Self> {
        config.validate()?;
        let AttentionWeights { qkv, o, bias_kv, score, qk_norm, sinks, relative_bias } = weights;
        let (rows, inputs) = qkv_sizes(config);
        let qkv = Qkv::new(qkv, rows, inputs, config.num_key_value_heads())?;
        let context = config.num_attention_heads * config.value_head_dim();
        let o_proj = Dense::new("o_proj", o, config.output_size(), context)?;
        let fits = |name: &str, tensor: &Tensor, want: &[usize]| match tensor.dims() == want {
            true => sdpa::same_dtype_and_device(name, tensor, qkv.weight()),
            false => Err(Error::shape(name, tensor.dims(), format!("{want:?}"))),
        };
        fits("o_proj weight", o_proj.weight(), &[config.output_size(), context])?;
        if let Some([k, v]) = &bias_kv {
            fits("bias_k", k, &rows[1..2])?;
            fits("bias_v", v, &rows[2..])?;
        }
        if let Some(score) = &score {
            fits("score weight", score, &[config.num_attention_heads, config.head_dim()])?;
        }
        if score.is_some() != (config.scoring == Scoring::Additive) {
            return Err(Error::config(
                "scoring",
                format!("{:?}", config.scoring),
                "additive if, and only if, there is a score vector",
            ));
        }
        if let Some(sinks) = &sinks {
            fits("sinks", sinks, &[config.num_attention_heads])?;
        }
        if qk_norm.is_some() != config.qk_norm.is_some() {
            let found = if qk_norm.is_some() { "none" } else { "set" };
            return Err(Error::config("qk_norm", found, "set if, and only if, there are norms"));
        }
        match (&config.position, &relative_bias) {
            (Position::RelativeBuckets(relative), Some(table)) => {
                fits("relative_bias", table, &[relative.num_buckets, config.num_attention_heads])?;
            }
            (Position::RelativeBuckets(_), None) => {
                let why = "the configuration asks for relative buckets; a table that layers share is given as a weight";
                let name = "relative_attention_bias.weight".to_string();
                return Err(Error::MissingTensor { name, why: why.to_string() });
            }
            (_, Some(_)) => return Err(Error::config("position", "another", "relative buckets: there is a table")),
            (_, None) => {}
        }
        Ok(Self { config: config.clone(), qkv, o_proj, bias_kv, score, qk_norm, sinks, relative_bias })
    }

    /// The layer's weights, to be written in any layout
    /// ([`write_layers`](crate::checkpoint::write_layers)).
    ///
    /// # Errors
    /// If the device cannot put them in order.
    pub fn weights(&self) -> Result<AttentionWeights> {
        Ok(AttentionWeights {
            qkv: self.qkv.weights()?,
            o: self.o_proj.weights(),
            bias_kv: self.bias_kv.clone(),
            score: self.score.clone(),
            qk_norm: self.qk_norm.clone(),
            sinks: self.sinks.clone(),
            relative_bias: self.relative_bias.clone(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// Self-attention; with `train`, dropout is applied.
    ///
    /// Call it on the layer itself: candle gives every `Module` a `ModuleT` whose `forward_t` leaves `train` unused, and
    /// generic code such as `candle_nn::seq_t` takes that one. There, wrap the layer in a closure.
    ///
    /// # Errors
    /// If `xs` does not fit.
    pub fn forward_t(&self, xs: &Tensor, train: bool) -> candle_core::Result<Tensor> {
        let mask = AttentionMask::none();
        let inputs = AttentionInputs::self_attention(xs, &mask);
        self.attend_with(&inputs, &AttentionOptions::default().with_train(train)).map(|attended| attended.output)
    }

    /// Attention of `queries` to `keys` and `values` under `mask`: `(b, s_q, output_size)`.
    ///
    /// # Errors
    /// If an input or the mask does not fit, named.
    pub fn attend(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        mask: &AttentionMask,
    ) -> candle_core::Result<Tensor> {
        let inputs = AttentionInputs { query: queries, key: keys, value: values, mask };
        self.attend_with(&inputs, &AttentionOptions::default()).map(|attended| attended.output)
    }

    /// Attention with everything that can be asked of it: see [`AttentionOptions`].
    ///
    /// # Errors
    /// As [`attend`](Self::attend); a forced backend that cannot run the call.
    pub fn attend_with(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> candle_core::Result<Attended> {
        Ok(self.run(inputs, options)?)
    }

    /// Which backend would run this call, the reason against each other one, and the scratch memory needed.
    ///
    /// # Errors
    /// As [`attend_with`](Self::attend_with).
    pub fn plan(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> candle_core::Result<Plan> {
        Ok(self.plan_of(inputs, options)?)
    }

    fn plan_of(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<Plan> {
        self.check(inputs)?;
        let s_kv = inputs.key.dim(1)?;
        let mask = self.positioned(inputs, s_kv, None)?;
        let inputs = AttentionInputs { mask: &mask, ..*inputs };
        let options = self.sdpa_options(&inputs, options);
        let call = self.call(&inputs, &options, s_kv)?;
        inputs.mask.check(call.shape)?;
        Plan::new(&call, &options)
    }

    /// The attention of a call of this layer over `s_kv` keys.
    fn call(&self, inputs: &AttentionInputs, options: &SdpaOptions, s_kv: usize) -> Result<Call> {
        let config = &self.config;
        let (b, s_q, _) = inputs.query.dims3()?;
        let norms = self.qk_norm.iter().flatten().flat_map(|norm| [Some(&norm.weight), norm.bias.as_ref()]).flatten();
        let tracked = [inputs.query, inputs.key, inputs.value].into_iter().chain(self.bias_kv.iter().flatten());
        let tracked =
            tracked.chain(&self.score).chain(&self.sinks).chain(&self.relative_bias).chain(norms).any(Tensor::track_op);
        let mut call = Call {
            shape: CallShape { b, h: config.num_attention_heads, s_q, s_kv },
            h_kv: config.num_key_value_heads(),
            d: config.head_dim(),
            d_v: config.value_head_dim(),
            dtype: accumulate_in(self.qkv.weight()),
            on_cpu: inputs.query.device().is_cpu(),
            tracks_gradient: tracked || self.qkv.tracks_gradient() || inputs.mask.tracks_gradient(),
        };
        // What would be rounded before its next product anyway is not kept wider.
        if self.qkv.weight().dtype() == DType::BF16
            && sdpa::runs_on_cpu_kernel(&call, options)
            && self.qkv.rounds_to_bf16()?
        {
            call.dtype = DType::BF16;
        }
        Ok(call)
    }

    fn run(&self, inputs: &AttentionInputs, options: &AttentionOptions) -> Result<Attended> {
        self.check(inputs)?;
        let s_kv = inputs.key.dim(1)?;
        let mask = self.positioned(inputs, s_kv, None)?;
        let inputs = &AttentionInputs { mask: &mask, ..*inputs };
        let options = self.sdpa_options(inputs, options);
        let call = self.call(inputs, &options, s_kv)?;
        if let Some((lengths, band)) = inputs.mask.as_padding()
            && self.runs_unpadded(inputs, &call, &options)
        {
            inputs.mask.check(call.shape)?;
            return Ok(Attended { output: self.unpadded(inputs.query, lengths, &band)?, weights: None });
        }
        let [q, k, v] = self.project(inputs, call.dtype, &[0])?;
        let [k, v] = [self.append(k, 0)?, self.append(v, 1)?];
        self.finish(sdpa::attend(&q, &k, &v, &options)?, inputs)
    }

    /// The output projection.
    fn finish(&self, attended: Attended, inputs: &AttentionInputs) -> Result<Attended> {
        let (b, s_q, h, d_v) = attended.output.dims4()?;
        let dtype = inputs.query.dtype();
        let output = self.o_proj.forward(&attended.output.reshape((b, s_q, h * d_v))?, dtype)?;
        let weights = attended.weights.map(|weights| weights.to_dtype(dtype)).transpose()?;
        Ok(Attended { output, weights })
    }

    fn sdpa_options<'a>(&'a self, inputs: &AttentionInputs<'a>, options: &AttentionOptions) -> SdpaOptions<'a> {
        SdpaOptions {
            scale: Some(self.config.scale()),
            appended_keys: usize::from(self.bias_kv.is_some()) + usize::from(self.config.add_zero_attn),
            softcap: self.config.softcap,
            sinks: self.sinks.as_ref(),
            additive: self.score.as_ref(),
            dropout: if options.train { self.config.dropout } else { 0.0 },
            return_weights: options.return_weights,
            backend: options.backend,
            ..SdpaOptions::new(inputs.mask)
        }
    }

    /// Queries, keys and values by head, `(b, s, h, d)` in `dtype`. `starts`: the position of the first token, of all rows
    /// or of each.
    fn project(&self, inputs: &AttentionInputs, dtype: DType, starts: &[usize]) -> Result<[Tensor; 3]> {
        let sizes = [self.config.head_dim(), self.config.head_dim(), self.config.value_head_dim()];
        let xs = [inputs.query, inputs.key, inputs.value];
        if self.is_untransformed() {
            return self.qkv.forward(xs, sizes, dtype);
        }
        // Rounded once, after the transformations.
        let wide = self.qkv.forward(xs, sizes, accumulate_in(self.qkv.weight()))?;
        let [q, k, v] = self.transform(wide, starts)?;
        Ok([q.to_dtype(dtype)?, k.to_dtype(dtype)?, v.to_dtype(dtype)?])
    }

    /// `xs` `(b, s, h_kv, d)` with the learned row of `bias_kv` (0: key, 1: value) and the row of zeros after it.
    fn append(&self, xs: Tensor, which: usize) -> Result<Tensor> {
        let (b, s, h_kv, d) = xs.dims4()?;
        // candle cannot join an empty tensor to another.
        let mut rows = if s == 0 { Vec::new() } else { vec![xs.clone()] };
        if let Some(bias) = &self.bias_kv {
            rows.push(bias[which].to_dtype(xs.dtype())?.reshape((1, 1, h_kv, d))?.broadcast_as((b, 1, h_kv, d))?);
        }
        if self.config.add_zero_attn {
            rows.push(Tensor::zeros((b, 1, h_kv, d), xs.dtype(), xs.device())?);
        }
        match rows.as_slice() {
            [] => Ok(xs),
            [only] => Ok(only.clone()),
            _ => Ok(Tensor::cat(&rows, 1)?),
        }
    }

    fn check(&self, inputs: &AttentionInputs) -> Result<()> {
        let AttentionInputs { query, key, value, .. } = *inputs;
        let sizes = [self.config.query_size(), self.config.key_size(), self.config.value_size()];
        let named = [("query", query, sizes[0]), ("key", key, sizes[1]), ("value", value, sizes[2])];
        for (name, tensor, size) in named {
            if tensor.rank() != 3 || tensor.dims()[2] != size {
                let s = if name == "query" { "s_q" } else { "s_kv" };
                return Err(Error::shape(name, tensor.dims(), format!("(b, {s}, {size})")));
            }
            sdpa::same_dtype_and_device(name, tensor, self.qkv.weight())?;
        }
        let (b, s_kv) = (query.dims()[0], key.dims()[1]);
        for (name, tensor, size) in [("key", key, sizes[1]), ("value", value, sizes[2])] {
            if tensor.dims()[..2] != [b, s_kv] {
                return Err(Error::shape(name, tensor.dims(), format!("[{b}, {s_kv}, {size}]")));
            }
        }
        Ok(())
    }
}

impl Module for MultiHeadAttention {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        self.forward_t(xs, false)
    }
}

/// `(outputs, inputs)` of the query, key and value projections.
fn qkv_sizes(config: &AttentionConfig) -> ([usize; 3], [usize; 3]) {
    let h_kv = config.num_key_value_heads();
    let rows =
        [config.num_attention_heads * config.head_dim(), h_kv * config.head_dim(), h_kv * config.value_head_dim()];
    (rows, [config.query_size(), config.key_size(), config.value_size()])
}
