use candle_core::Tensor;

use crate::checkpoint::detect::{BIAS_KV, SCORE, SINKS, detect};
use crate::checkpoint::norms::read_norms;
use crate::checkpoint::position_weights::read_position;
use crate::checkpoint::source::{WeightSource, wrong_shape};
use crate::config::{AttentionConfig, Scoring};
use crate::error::{Error, Result};
use crate::families::layout::{Layout, LinearNames, QkvNames, Stored};
use crate::weights::{AttentionWeights, FusedOrder, LinearWeights, QkvWeights};

impl AttentionWeights {
    /// Reads the layer that `source` points at, in whatever layout it is.
    ///
    /// Biases are read where the checkpoint has them; `config.bias` and `config.add_bias_kv` are for fresh layers.
    ///
    /// # Errors
    /// Those of [`detect`]; a tensor whose shape does not fit the configuration, named.
    pub fn read<S: WeightSource>(config: &AttentionConfig, source: &S) -> Result<(Self, &'static Layout)> {
        config.validate()?;
        let layout = detect(source)?;
        let sizes = Sizes::new(config);
        let one_input = || {
            let [q, k, v] = sizes.inputs;
            if q == k && q == v {
                return Ok(q);
            }
            let allowed = format!("query_size = {q}: the checkpoint's fused layout `{}` has one", layout.name);
            let (field, found) = if q != k { ("key_size", k) } else { ("value_size", v) };
            Err(Error::config(field, found, allowed))
        };
        let all_rows = (0..3).map(|i| sizes.rows(i).0 * sizes.rows(i).1).sum();
        let qkv = match layout.qkv {
            QkvNames::Split(names) => {
                let read = |i: usize| read_linear(source, names[i], sizes.rows(i), sizes.inputs[i], true);
                QkvWeights::Split(Box::new([read(0)?, read(1)?, read(2)?]))
            }
            QkvNames::Fused(names, order) => {
                let dense = read_linear(source, names, (all_rows, 1), one_input()?, true)?;
                match order {
                    FusedOrder::Blocks => QkvWeights::Packed(dense),
                    order => QkvWeights::Ordered(dense, order),
                }
            }
            QkvNames::FusedSplitBias(weight, biases, order) => {
                let weight = source.get(weight, &[all_rows, one_input()?])?;
                let rows = [0, 1, 2].map(|i| sizes.rows(i).0 * sizes.rows(i).1);
                let bias = |name: &str, i: usize| source.get(name, &[rows[i]]).map(Some);
                let biases = [bias(biases[0], 0)?, None, bias(biases[1], 2)?];
                if order == FusedOrder::Blocks {
                    let part = |i: usize| {
                        let weight = weight.narrow(0, rows[..i].iter().sum(), rows[i])?;
                        Ok::<_, Error>(LinearWeights { weight, bias: biases[i].clone() })
                    };
                    QkvWeights::Split(Box::new([part(0)?, part(1)?, part(2)?]))
                } else {
                    QkvWeights::OrderedSplitBias { weight, biases, order }
                }
            }
            QkvNames::Pair(q, kv) => {
                let [_, k_size, v_size] = sizes.inputs;
                if k_size != v_size {
                    let allowed = format!("key_size = {k_size}: layout `{}` makes both from one input", layout.name);
                    return Err(Error::config("value_size", v_size, allowed));
                }
                let rows = [1, 2].map(|i| sizes.rows(i).0 * sizes.rows(i).1);
                let q = read_linear(source, q, sizes.rows(0), sizes.inputs[0], true)?;
                let kv = read_linear(source, kv, (rows[0] + rows[1], 1), k_size, true)?;
                let part = |start: usize, len: usize| {
                    let bias = kv.bias.as_ref().map(|bias| bias.narrow(0, start, len)).transpose()?;
                    Ok::<_, Error>(LinearWeights { weight: kv.weight.narrow(0, start, len)?, bias })
                };
                QkvWeights::Split(Box::new([q, part(0, rows[0])?, part(rows[0], rows[1])?]))
            }
            QkvNames::SplitFusedBias(weights, bias) => {
                QkvWeights::Split(read_fused_bias(source, weights, bias, &sizes)?)
            }
        };
        let o = read_linear(source, layout.o, sizes.rows_of_output, config.resolved_output_size(), false)?;
        check_rotary(source, config)?;
        let weights = Self {
            qkv,
            o,
            bias_kv: read_bias_kv(source, &sizes)?,
            score: read_score(source, config)?,
            qk_norm: read_norms(source, config)?,
            sinks: match source.contains(SINKS) {
                true => Some(source.get(SINKS, &[config.num_attention_heads])?),
                false => None,
            },
            position: read_position(source, config, layout)?,
        };
        Ok((weights, layout))
    }
}

/// The shapes that a configuration asks for.
struct Sizes {
    /// `(heads, numbers a head)` of query, key and value.
    heads: [(usize, usize); 3],
    inputs: [usize; 3],
    rows_of_output: (usize, usize),
}

impl Sizes {
    fn new(config: &AttentionConfig) -> Self {
        let (h, h_kv) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        let (d, d_v) = (config.resolved_head_dim(), config.resolved_value_head_dim());
        let inputs = [config.resolved_query_size(), config.resolved_key_size(), config.resolved_value_size()];
        Self { heads: [(h, d), (h_kv, d), (h_kv, d_v)], inputs, rows_of_output: (h, d_v) }
    }

    fn rows(&self, i: usize) -> (usize, usize) {
        self.heads[i]
    }
}

/// Reads a projection between heads `(count, size)` and a plain width, as `(out, in)`. `into_heads`: the heads are the
/// output, else the input.
fn read_linear<S: WeightSource>(
    source: &S,
    names: LinearNames,
    (count, size): (usize, usize),
    width: usize,
    into_heads: bool,
) -> Result<LinearWeights> {
    let heads = count * size;
    let out = if into_heads { heads } else { width };
    let bias = |shape: &[usize]| match source.contains(names.bias) {
        true => Ok(Some(source.get(names.bias, shape)?.reshape(out)?)),
        false => Ok::<_, Error>(None),
    };
    let (out, input) = if into_heads { (heads, width) } else { (width, heads) };
    match names.stored {
        Stored::OutIn => {
            return Ok(LinearWeights { weight: source.get(names.weight, &[out, input])?, bias: bias(&[out])? });
        }
        Stored::InOut => {
            let weight = source.get(names.weight, &[input, out])?.t()?;
            return Ok(LinearWeights { weight, bias: bias(&[out])? });
        }
        Stored::Kernel => {}
    }
    // A kernel is [in, out]; Flax and Keras may keep the heads as a dimension of their own.
    let per_head = match source.shape(names.weight)? {
        Some(shape) => shape.len() == 3,
        // Where shapes are known only by asking for the right one, ask.
        None => source.get(names.weight, &if into_heads { [width, count, size] } else { [count, size, width] }).is_ok(),
    };
    let (shape, bias_shape) = match (per_head, into_heads) {
        (false, true) => (vec![width, heads], vec![heads]),
        (false, false) => (vec![heads, width], vec![width]),
        (true, true) => (vec![width, count, size], vec![count, size]),
        (true, false) => (vec![count, size, width], vec![width]),
    };
    let kernel = source.get(names.weight, &shape)?.reshape(((), out))?;
    Ok(LinearWeights { weight: kernel.t()?, bias: bias(&bias_shape)? })
}

fn read_fused_bias<S: WeightSource>(
    source: &S,
    weights: [&str; 3],
    bias: &str,
    sizes: &Sizes,
) -> Result<Box<[LinearWeights; 3]>> {
    let rows = [0, 1, 2].map(|i| sizes.rows(i).0 * sizes.rows(i).1);
    let bias = source.contains(bias).then(|| source.get(bias, &[rows.iter().sum()])).transpose()?;
    let read = |i: usize| {
        let weight = source.get(weights[i], &[rows[i], sizes.inputs[i]])?;
        let start = rows[..i].iter().sum();
        let bias = bias.as_ref().map(|bias| bias.narrow(0, start, rows[i])).transpose()?;
        Ok::<_, Error>(LinearWeights { weight, bias })
    };
    Ok(Box::new([read(0)?, read(1)?, read(2)?]))
}

fn read_bias_kv<S: WeightSource>(source: &S, sizes: &Sizes) -> Result<Option<[Tensor; 2]>> {
    let [k, v] = BIAS_KV;
    let there = BIAS_KV.map(|name| source.contains(name));
    if there == [false, false] {
        return Ok(None);
    }
    let read = |name: &str, i: usize| {
        let rows = sizes.rows(i).0 * sizes.rows(i).1;
        Ok::<_, Error>(source.get(name, &[1, 1, rows])?.reshape(rows)?)
    };
    Ok(Some([read(k, 1)?, read(v, 2)?]))
}

/// ESM keeps the frequencies of its rotation in the layer.
const FREQUENCIES: &str = "self.rotary_embeddings.inv_freq";

fn check_rotary<S: WeightSource>(source: &S, config: &AttentionConfig) -> Result<()> {
    if source.contains(FREQUENCIES) && !config.position.scheme().has_frequency_buffer() {
        let allowed = format!("rotary: the checkpoint holds `{}`", source.full_name(FREQUENCIES));
        return Err(Error::config("position", format!("{:?}", config.position), allowed));
    }
    Ok(())
}

fn read_score<S: WeightSource>(source: &S, config: &AttentionConfig) -> Result<Option<Tensor>> {
    match (config.scoring, source.contains(SCORE)) {
        (Scoring::ScaledDotProduct, false) => Ok(None),
        (Scoring::ScaledDotProduct, true) => {
            let allowed = format!("additive: the checkpoint holds `{}`", source.full_name(SCORE));
            Err(Error::config("scoring", "scaled dot product", allowed))
        }
        (Scoring::Additive, _) => {
            Ok(Some(source.get(SCORE, &[config.num_attention_heads, config.resolved_head_dim()])?))
        }
    }
}

/// The configuration that fits the weights that `source` points at, given the number of heads, which no tensor tells
/// unless the layout keeps heads apart.
///
/// In a fused layout the query rows are taken to be as many as the output projection's columns, and keys and values to
/// share the rest.
///
/// # Errors
/// Those of [`detect`]; sizes that the number of heads does not divide.
pub fn infer_config<S: WeightSource>(source: &S, num_attention_heads: usize) -> Result<AttentionConfig> {
    let layout = detect(source)?;
    let shape = |name: &str| {
        let unknown = || Error::Tensor {
            name: source.full_name(name),
            found: "has an unknown shape".to_string(),
            expected: "a source that knows shapes".to_string(),
        };
        source.shape(name)?.ok_or_else(unknown)
    };
    // (rows, columns) as [out, in], whatever the orientation.
    let out_in = |name: &str, stored: Stored, into_heads: bool| -> Result<(usize, usize)> {
        let shape = shape(name)?;
        match (shape.as_slice(), stored, into_heads) {
            (&[out, input], Stored::OutIn, _) | (&[input, out], _, _) => Ok((out, input)),
            (&[input, h, d], Stored::Kernel, true) => Ok((h * d, input)),
            (&[h, d, out], Stored::Kernel, false) => Ok((out, h * d)),
            _ => Err(wrong_rank(source.full_name(name), &shape)),
        }
    };
    let o = out_in(layout.o.weight, layout.o.stored, false)?;
    let into = |names: LinearNames| out_in(names.weight, names.stored, true);
    let [q, k, v] = match layout.qkv {
        QkvNames::Split(names) => [into(names[0])?, into(names[1])?, into(names[2])?],
        QkvNames::SplitFusedBias(names, _) => {
            let into = |name: &str| out_in(name, Stored::OutIn, true);
            [into(names[0])?, into(names[1])?, into(names[2])?]
        }
        QkvNames::Fused(..) | QkvNames::FusedSplitBias(..) => {
            let (name, stored) = match layout.qkv {
                QkvNames::Fused(names, _) => (names.weight, names.stored),
                _ => (layout.required()[0], Stored::OutIn),
            };
            let (rows, input) = out_in(name, stored, true)?;
            let rest = rows.checked_sub(o.1).filter(|rest| rest.is_multiple_of(2));
            let rest = rest.filter(|rest| *rest > 0 || num_attention_heads == 0);
            let rest = rest.ok_or_else(|| wrong_shape(source.full_name(name), &[rows, input], &[3 * o.1, input]))?;
            [(o.1, input), (rest / 2, input), (rest / 2, input)]
        }
        QkvNames::Pair(q, kv) => {
            let (rows, input) = into(kv)?;
            [into(q)?, (rows / 2, input), (rows / 2, input)]
        }
    };
    let per_head = |total: usize, heads: usize, of: &str| match heads > 0 && total.is_multiple_of(heads) {
        true => Ok(total / heads),
        false => Err(Error::config("num_attention_heads", num_attention_heads, format!("a divisor of {total}, {of}"))),
    };
    if num_attention_heads == 0 && q.0 == 0 {
        // All pruned: nothing tells how large they were, or asks for it. This size has room for any rotation.
        return Ok(AttentionConfig::new(o.0, 0)
            .with_head_dim(256)
            .with_query_size(q.1)
            .with_key_size(k.1)
            .with_value_size(v.1));
    }
    let head_dim = per_head(q.0, num_attention_heads, "the rows of the query projection")?;
    let heads_kv = per_head(k.0, head_dim, "the rows of the key projection")?;
    let mut config = AttentionConfig::new(o.0, num_attention_heads)
        .with_head_dim(head_dim)
        .with_num_key_value_heads(heads_kv)
        .with_value_head_dim(per_head(v.0, heads_kv, "the rows of the value projection")?)
        .with_query_size(q.1)
        .with_key_size(k.1)
        .with_value_size(v.1);
    if source.contains(SCORE) {
        config = config.with_scoring(Scoring::Additive);
    }
    config.validate()?;
    Ok(config)
}

fn wrong_rank(name: String, shape: &[usize]) -> Error {
    Error::Tensor { name, found: format!("has shape {shape:?}"), expected: "a projection's weight".to_string() }
}
