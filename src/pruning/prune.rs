//! A smaller attention layer, with the projections of the heads that are kept.

use std::collections::HashSet;

use candle_core::Tensor;

use crate::attention::MultiHeadAttention;
use crate::config::{AttentionConfig, KeyValueSource, NormOver};
use crate::error::{Error, Result};
use crate::tensor;
use crate::tensor::{Freeze, MapTensors};
use crate::weights::{AttentionWeights, HeadKind, LatentWeights, LinearWeights, Parameter, Parameters, QkvWeights};

impl MultiHeadAttention {
    /// The layer without these heads, which count from 0: the same output as with a
    /// [`head_mask`](crate::AttentionOptions::head_mask) of 0 for them, for less work ([Michel
    /// 2019](https://arxiv.org/abs/1905.10650)). Without any head, the output is the bias of the output projection.
    ///
    /// Key-value heads that no query head uses any more are removed too. If the remaining query heads no longer share
    /// the key-value heads evenly, some key-value heads are duplicated, and the layer may become larger; to avoid that,
    /// prune whole groups of query heads, or the same number of heads from each group.
    ///
    /// The new weights are copies and no variables; of a quantized layer they are the dequantized ones, in f32.
    /// To train the pruned layer, write it and load it as variables.
    ///
    /// # Errors
    /// [`Error::Value`] for a head that does not exist, for a layer with a norm over all heads together, whose mean
    /// depends on every head, for a norm of the context with a bias, which a head of zeros has, and for a layer with
    /// the keys and values of another layer, or a function as its mask, which counts heads.
    pub fn prune_heads(&self, heads: &[usize]) -> Result<Self> {
        let config = self.config();
        let h = config.num_attention_heads;
        if let Some(head) = heads.iter().find(|head| **head >= h) {
            return Err(Error::value(
                "a head to prune",
                head,
                format!("less than {h}, the number of heads of the layer"),
            ));
        }
        let mut norms = (0..3).flat_map(|side| config.steps.norms(side));
        if norms.any(|norm| norm.over == NormOver::AllHeads) {
            let expected = "a norm per head, because a norm over all heads depends on each of them";
            return Err(Error::value("the steps of a layer to prune", "a norm over all heads", expected));
        }
        if let KeyValueSource::Shared { .. } = config.key_value_source {
            let expected = "one with keys of its own: the heads of the other layer would have to be removed, too";
            return Err(Error::value("a layer to prune", "one with the keys and values of another layer", expected));
        }
        if config.mask.has_functions() {
            return Err(Error::value("the mask of a layer to prune", &config.mask, "no function, which counts heads"));
        }
        let weights = self.weights()?;
        config.mechanisms.iter().try_for_each(|part| part.check_pruning(&weights.parameters))?;
        let kept = Kept::new(config, heads);
        let weights = kept.weights(config, weights)?;
        let mut pruned = Self::from_weights(&kept.config(config), weights)?;
        if self.is_frozen() {
            pruned.freeze_in_place()?;
        }
        Ok(pruned)
    }
}

/// The heads of the old layer that the new layer has, in order.
struct Kept {
    /// Query heads.
    q: Vec<usize>,
    /// Key-value heads; some are repeated if the query heads no longer share them evenly.
    kv: Vec<usize>,
}

impl Kept {
    fn new(config: &AttentionConfig, pruned: &[usize]) -> Self {
        let (h, h_kv) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        let pruned: HashSet<usize> = pruned.iter().copied().collect();
        let q: Vec<usize> = (0..h).filter(|head| !pruned.contains(head)).collect();
        let group = h / h_kv.max(1);
        let users = |kv: usize| q.iter().filter(|head| **head / group == kv).count();
        let kv: Vec<usize> = (0..h_kv).filter(|kv| users(*kv) > 0).collect();
        let share = kv.iter().fold(0, |all, kv| greatest_common_divisor(all, users(*kv)));
        let copies = |kv: &usize| std::iter::repeat_n(*kv, users(*kv) / share);
        Self { kv: kv.iter().flat_map(copies).collect(), q }
    }

    fn config(&self, config: &AttentionConfig) -> AttentionConfig {
        let (d, d_v) = (config.resolved_head_dim(), config.resolved_value_head_dim());
        let config = config.clone().with_head_dim(d).with_value_head_dim(d_v);
        let mut config = config.with_num_key_value_heads(self.kv.len());
        config.position.prune(&self.q, config.num_attention_heads);
        config.num_attention_heads = self.q.len();
        config
    }

    fn weights(&self, config: &AttentionConfig, weights: AttentionWeights) -> Result<AttentionWeights> {
        let AttentionWeights { qkv, o, gate, parameters, position } = weights;
        let (h, h_kv) = (config.num_attention_heads, config.resolved_num_key_value_heads());
        let (d, d_v) = (config.resolved_head_dim(), config.resolved_value_head_dim());
        let per_head = |t: &Tensor, heads: usize, kept: &[usize], dim: usize| -> Result<Tensor> {
            let mut dims = t.dims().to_vec();
            let size = dims[dim] / heads.max(1);
            dims.splice(dim..=dim, [heads, size]);
            let selected = select(&t.reshape(dims)?, kept, dim)?;
            let mut dims = t.dims().to_vec();
            dims[dim] = kept.len() * size;
            Ok(selected.reshape(dims)?)
        };
        let linear = |part: &LinearWeights, heads: usize, kept: &[usize]| -> Result<LinearWeights> {
            Ok(LinearWeights {
                weight: per_head(&part.weight, heads, kept, 0)?,
                bias: part.bias.as_ref().map(|bias| per_head(bias, heads, kept, 0)).transpose()?,
            })
        };
        let rows = |table: Vec<Parameter>, old: &Parameters| -> Result<Parameters> {
            let mut new = Parameters::default();
            for row in table {
                let Some(tensor) = old.get(row.name) else { continue };
                let (heads, kept) = match row.heads {
                    HeadKind::Query => (h, &self.q),
                    HeadKind::KeyValue => (h_kv, &self.kv),
                };
                let pruned = match row.head_axis {
                    Some(axis) => per_head(tensor, heads, kept, axis)?,
                    None if row.is_per_head(tensor) => select(tensor, kept, 0)?,
                    None => copy(tensor)?,
                };
                new.insert(row.name, pruned);
            }
            Ok(new)
        };
        Ok(AttentionWeights {
            qkv: match &qkv {
                // The projections before the heads stay whole.
                QkvWeights::Latent(latent) => QkvWeights::Latent(Box::new(LatentWeights {
                    q: linear(&latent.q, h, &self.q)?,
                    kv_b: latent.kv_b.as_ref().map(|kv_b| linear(kv_b, h, &self.q)).transpose()?,
                    ..(**latent).map_tensors(&mut copy)?
                })),
                QkvWeights::KeysAsValues(parts) => QkvWeights::KeysAsValues(Box::new([
                    linear(&parts[0], h, &self.q)?,
                    linear(&parts[1], h_kv, &self.kv)?,
                ])),
                qkv => {
                    let [q, k, v] = qkv.split([h * d, h_kv * d, h_kv * d_v], h_kv)?;
                    let (q, k) = (linear(&q, h, &self.q)?, linear(&k, h_kv, &self.kv)?);
                    match config.key_value_source {
                        KeyValueSource::KeysAsValues => QkvWeights::KeysAsValues(Box::new([q, k])),
                        _ => QkvWeights::Split(Box::new([q, k, linear(&v, h_kv, &self.kv)?])),
                    }
                }
            },
            o: LinearWeights {
                weight: per_head(&o.weight, h, &self.q, 1)?,
                bias: o.bias.as_ref().map(copy).transpose()?,
            },
            gate: gate.map(|gate| linear(&gate, h, &self.q)).transpose()?,
            parameters: rows(config.parameters(), &parameters)?,
            position: rows(config.position.scheme().parameters(&config.sizes()), &position)?,
        })
    }
}

/// A copy that tracks no gradient and shares no memory.
fn copy(t: &Tensor) -> Result<Tensor> {
    Ok(t.detach().copy()?)
}

/// The `kept` slices of a tensor along a dimension, as a copy that tracks no gradient.
fn select(t: &Tensor, kept: &[usize], dim: usize) -> Result<Tensor> {
    tensor::select(&t.detach(), kept, dim)
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
