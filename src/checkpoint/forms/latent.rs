//! The projections of latent attention.

use crate::checkpoint::forms::{Matrix, Reader, Shapes, Writer};
use crate::checkpoint::projection::Rows;
use crate::config::{AttentionConfig, LatentAttention};
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::layout::{INDEXER, LatentNames};
use crate::ops::LatentSizes;
use crate::weights::{LatentWeights, NormWeights, QkvWeights};

impl LatentNames {
    pub(super) fn matrices(&self) -> Vec<Matrix> {
        let LatentNames { q_a, q, kv_a, kv_b, .. } = *self;
        let parts = [(q, 0..1), (kv_a, 1..3), (kv_b, 1..3)];
        parts.into_iter().chain(q_a.map(|(q_a, _)| (q_a, 0..1))).collect()
    }

    pub(super) fn required(&self) -> Vec<&'static str> {
        let LatentNames { q_a, q, kv_a, kv_a_norm, kv_b } = *self;
        let q_a = q_a.iter().flat_map(|(linear, norm)| [linear.weight, norm]);
        [q.weight, kv_a.weight, kv_a_norm, kv_b.weight].into_iter().chain(q_a).collect()
    }

    pub(super) fn biases(&self) -> [&'static str; 3] {
        let LatentNames { q_a, q, kv_a, .. } = *self;
        [q_a.map_or(q.bias, |(linear, _)| linear.bias), kv_a.bias, kv_a.bias]
    }

    pub(super) fn read(&self, reader: &Reader) -> Result<QkvWeights> {
        let source = reader.source;
        let latent = reader.config.latent.as_ref().ok_or_else(|| reader.wrong("latent", "none", "set"))?;
        let LatentSizes { inputs: [q_in, kv_in], heads, nope, rope, value, rank, q_rank, multi_query, .. } =
            latent.sizes(reader.config);
        let rows = |dim: usize| Rows { heads: 1, dim };
        let norm = |name: &str, size: usize| Ok::<_, Error>(NormWeights::new(source.get(name, &[size])?, None));
        let q_a = match (self.q_a, q_rank) {
            (Some((linear, name)), Some(rank)) => Some((reader.linear(linear, rows(rank), q_in)?, norm(name, rank)?)),
            (None, None) => None,
            (Some(_), None) => return Err(reader.wrong("q_lora_rank", "none", "set")),
            (None, Some(_)) => return Err(reader.wrong("q_lora_rank", "set", "none")),
        };
        let indexer_keys = format!("{INDEXER}.wk.weight");
        if latent.index_topk.is_none() && source.contains(&indexer_keys) {
            let allowed = format!("set: the checkpoint holds `{}`", source.full_name(&indexer_keys));
            return Err(Error::config("index_topk", "none", allowed));
        }
        let q = reader.linear(self.q, Rows { heads, dim: nope + rope }, q_rank.unwrap_or(q_in))?;
        let kv_a = reader.linear(self.kv_a, rows(rank + rope), kv_in)?;
        ensure!(self.kv_b.is_absent() == multi_query, reader.wrong("multi_query", multi_query, !multi_query));
        let kv_b = || reader.linear(self.kv_b, Rows { heads, dim: nope + value }, rank);
        let kv_b = (!multi_query).then(kv_b).transpose()?;
        let normalized = if multi_query { rank + rope } else { rank };
        let kv_a_norm = norm(self.kv_a_norm, normalized)?;
        Ok(QkvWeights::Latent(Box::new(LatentWeights::new(q_a, q, kv_a, kv_a_norm, kv_b))))
    }

    pub(super) fn write(&self, latent: &LatentWeights, writer: &mut Writer) -> Result<()> {
        let layout = writer.layout;
        let cannot = |what: &str, expected: &str| Err(layout.cannot_hold(what, expected));
        match (&latent.q_a, self.q_a) {
            (Some((q_a, norm)), Some((names, norm_name))) => {
                writer.put(names, q_a, None)?;
                writer.insert(norm_name, norm.weight.clone());
            }
            (None, None) => {}
            (Some(_), None) => return cannot("two projections of queries", "deepseek, whose families have them"),
            (None, Some(_)) => return cannot("one projection of queries", "deepseek-lite, whose families have it"),
        }
        writer.put(self.q, &latent.q, None)?;
        writer.put(self.kv_a, &latent.kv_a, None)?;
        writer.insert(self.kv_a_norm, latent.kv_a_norm.weight.clone());
        match &latent.kv_b {
            Some(kv_b) if !self.kv_b.is_absent() => writer.put(self.kv_b, kv_b, None),
            None if self.kv_b.is_absent() => Ok(()),
            Some(_) => cannot("`kv_b_proj`", "deepseek, whose families have it"),
            None => cannot("latents without `kv_b_proj`", "deepseek-v4, whose family has none"),
        }
    }

    pub(super) fn infer(&self, shapes: &Shapes) -> Result<AttentionConfig> {
        let [q, kv_a] = [shapes.linear(self.q)?, shapes.linear(self.kv_a)?];
        let q_a = self.q_a.map(|(linear, _)| shapes.linear(linear)).transpose()?;
        let mut latent = match self.kv_b.is_absent() {
            true => self.infer_multi_query(shapes, q, kv_a.0)?,
            false => self.infer_sizes(shapes, q, kv_a)?,
        };
        latent.q_lora_rank = q_a.map(|(rank, _)| rank);
        let no_heads = (shapes.heads == 0 && !self.kv_b.is_absent()).then(|| latent.head_dim());
        let config = AttentionConfig::new(shapes.o.0, shapes.heads).with_bias(shapes.bias).with_latent(latent);
        let mut config = config.with_query_size(q_a.map_or(q.1, |(_, input)| input)).with_key_size(kv_a.1);
        if let Some(head_dim) = no_heads {
            config = config.with_head_dim(head_dim);
        }
        let config = shapes.with_mechanisms(config)?;
        config.validate()?;
        Ok(config)
    }

    /// The sizes of latents from which `kv_b` makes keys and values, where the last projection of the queries is `q`
    /// and the first one of the latents `kv_a`.
    fn infer_sizes(&self, shapes: &Shapes, q: (usize, usize), kv_a: (usize, usize)) -> Result<LatentAttention> {
        let Shapes { source, heads, .. } = *shapes;
        let kv_b = shapes.linear(self.kv_b)?;
        let per_head = |total: usize, name: &str| match total.checked_div(heads) {
            Some(size) if size * heads == total => Ok(size),
            // Without heads no shape shows their sizes, and nothing needs them.
            None if total == 0 => Ok(1),
            _ => {
                let allowed = format!("a divisor of {total}, the rows of `{name}`");
                Err(Error::config("num_attention_heads", heads, allowed))
            }
        };
        let value = per_head(shapes.o.1, "o_proj")?;
        let less = |total: usize, part: usize, name: &str, shape: (usize, usize)| {
            let error = || Error::shape(source.full_name(name), &[shape.0, shape.1], format!("more than {part} rows"));
            total.checked_sub(part).ok_or_else(error)
        };
        let rope = less(kv_a.0, kv_b.1, self.kv_a.weight, kv_a)?;
        let [nope, all] = [per_head(kv_b.0, self.kv_b.weight)?, per_head(q.0, self.q.weight)?];
        let nope = if heads == 0 { 1 } else { less(nope, value, self.kv_b.weight, kv_b)? };
        if heads > 0 && nope + rope != all {
            let expected = format!("({heads} · ({nope} + {rope}), {})", q.1);
            return Err(Error::shape(source.full_name(self.q.weight), &[q.0, q.1], expected));
        }
        Ok(LatentAttention::new(kv_b.1, nope, rope, value))
    }

    /// The sizes of latents of `d` elements that are the one key and value of all heads. No shape shows which of their
    /// elements are rotated.
    fn infer_multi_query(&self, shapes: &Shapes, q: (usize, usize), d: usize) -> Result<LatentAttention> {
        let Shapes { source, heads, .. } = *shapes;
        if heads.checked_mul(d) != Some(q.0) {
            let expected = format!("({heads} · {d}, {}): heads of as many elements as their key", q.1);
            return Err(Error::shape(source.full_name(self.q.weight), &[q.0, q.1], expected));
        }
        Ok(LatentAttention::new_multi_query(d, 0))
    }
}
