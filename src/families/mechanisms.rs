//! Mechanisms: what layers of a family do beyond projecting, scoring, softmax, summing values and projecting back.
//!
//! An entry of the column `mechanisms` reads the keys of its mechanism, and adds it to the configuration of a layer
//! that has it. A new mechanism is a variant and its arm: no column, and nothing for other families.

use crate::attention::mechanisms::{Differential, GateOver, OutputGate};
use crate::config::{AttentionConfig, HeadNorm, KeyValueSource};
use crate::ensure;
use crate::error::{Error, Result};
use crate::families::family::{Family, LatentRow, MaxKeys, Mechanism};
use crate::families::layer::{Layer, LayerContents};

impl Family {
    /// The latent attention of the family.
    pub(super) fn latent(&self) -> Option<LatentRow> {
        self.mechanisms.iter().find_map(|mechanism| match mechanism {
            Mechanism::Latent(row) => Some(*row),
            _ => None,
        })
    }
}

impl Mechanism {
    /// Adds the mechanism to the configuration of a layer that has it.
    fn configure(self, layer: &Layer, contents: &LayerContents, config: AttentionConfig) -> Result<AttentionConfig> {
        Ok(match self {
            Self::Latent(row) => {
                let latent = config.latent.map(|latent| layer.latent(&row, latent, &config)).transpose()?;
                AttentionConfig { latent, ..config }
            }
            Self::Softcap(key) => AttentionConfig { softcap: layer.float(key)?.or(config.softcap), ..config },
            Self::ClipQkv => {
                let beside = layer.float("clip_qkv");
                let limit = layer.nested_float("clip_qkv")?.map_or(beside, Ok)?;
                config.with_clip_qkv(limit)
            }
            Self::ValueConvolution(key) => {
                let stated = layer.number(key)?;
                if let Some(found) = config.value_convolution().filter(|found| stated != Some(*found)) {
                    let expected = format!("{found}, as the checkpoint has it");
                    return Err(Error::config(key, format!("{stated:?}"), expected));
                }
                config.with_value_convolution(stated)
            }
            Self::SpanConvolution(key) => {
                // The number of heads was divided by 2.
                let ratio = layer.number("head_ratio")?.unwrap_or(2);
                ensure!(ratio == 2, Error::config("head_ratio", ratio, "2: half of the heads are those of scores"));
                let (stated, found) = (layer.number(key)?, config.span_convolution());
                if let (Some(stated), Some(found)) = (stated, found.filter(|found| Some(*found) != stated)) {
                    return Err(Error::config(key, stated, format!("{found}, as the checkpoint has it")));
                }
                config.with_span_convolution(found.or(stated))
            }
            Self::BetweenChannels(component) => config.with_between_channels(layer.is_below(component)),
            Self::PooledQueries => config.with_query_pool(layer.query_pool()?),
            Self::Differential => {
                let lambda_init = 0.8 - 0.6 * (-0.3 * layer.index as f64).exp();
                config.with_differential(Differential::new(lambda_init, layer.norm_eps()?))
            }
            Self::GlobalTokens => config.with_global_tokens(!layer.cross && layer.has_window()?),
            Self::Gate { activation, switch } => {
                let over = layer.gate_over(switch, &config, contents.gate)?;
                config.with_output_gate(over.map(|over| OutputGate::new(activation, over)))
            }
            Self::ContextNorm { .. } if layer.cross && !contents.context_norm => config,
            Self::ContextNorm { kind, over, weighted } => {
                layer.check_context_norm(weighted, contents.context_norm)?;
                config.with_context_norm(HeadNorm::new(kind, over, layer.norm_eps()?).with_weighted(weighted))
            }
            Self::Indexer(row) => {
                let most = layer.max_keys(row, &config, contents.indexer)?;
                config.with_max_keys(most)
            }
            Self::KeysAsValues(key) if !layer.is_on(key)? || layer.has_window()? => config,
            Self::KeysAsValues(_) => config.with_key_value_source(KeyValueSource::KeysAsValues),
            Self::SharedKeys => {
                let shared = layer.layer_of_shared_keys()?.map(|layer| KeyValueSource::Shared { layer: Some(layer) });
                AttentionConfig { key_value_source: shared.unwrap_or(config.key_value_source), ..config }
            }
            Self::KeysOfOtherModel => config.with_key_value_source(KeyValueSource::Shared { layer: None }),
        })
    }
}

impl Layer<'_> {
    /// Adds to `config` the mechanisms that the family's row lists.
    ///
    /// # Errors
    /// If the checkpoint holds tensors of others.
    pub(super) fn with_mechanisms(&self, config: AttentionConfig, contents: &LayerContents) -> Result<AttentionConfig> {
        self.check_held(&config, contents)?;
        let found = config.key_value_source;
        let mut config = config.with_key_value_source(KeyValueSource::Projections);
        for mechanism in self.family.mechanisms {
            config = mechanism.configure(self, contents, config)?;
        }
        self.check_key_value_source(found, config.key_value_source)?;
        Ok(config)
    }

    /// Checks that the family has the mechanisms of which the checkpoint holds tensors.
    fn check_held(&self, config: &AttentionConfig, contents: &LayerContents) -> Result<()> {
        let has = |is_it: fn(&Mechanism) -> bool| self.family.mechanisms.iter().any(is_it);
        let (in_values, beside_heads) = (config.value_convolution().is_some(), config.span_convolution().is_some());
        let found = [
            ("a convolution of the values", in_values, has(|m| matches!(m, Mechanism::ValueConvolution(_)))),
            ("a convolution beside the heads", beside_heads, has(|m| matches!(m, Mechanism::SpanConvolution(_)))),
            ("a gate of the output", contents.gate.is_some(), has(|m| matches!(m, Mechanism::Gate { .. }))),
            ("an indexer", contents.indexer, has(|m| matches!(m, Mechanism::Indexer(_)))),
            ("a norm of the context", contents.context_norm, has(|m| matches!(m, Mechanism::ContextNorm { .. }))),
        ];
        match found.into_iter().find(|(_, held, has)| *held && !has) {
            Some((what, ..)) => Err(self.has_none(what)),
            None => Ok(()),
        }
    }

    fn has_none(&self, what: &str) -> Error {
        Error::value(what, "in the checkpoint", format!("absent: `{}` has none", self.model_type))
    }

    /// The extent of the gate, by the `rows` of its projection in the checkpoint; `None` if `switch` is off.
    fn gate_over(
        &self,
        switch: Option<(&str, bool)>,
        config: &AttentionConfig,
        rows: Option<usize>,
    ) -> Result<Option<GateOver>> {
        const GATE: &str = "a gate of the output";
        let is_on = match switch {
            // A key that is null is false.
            Some((key, default)) => self.flag(key)?.unwrap_or(default && self.section.get(key).is_none()),
            None => true,
        };
        let rows = match (is_on, rows) {
            (false, None) => return Ok(None),
            (false, Some(_)) => return Err(self.has_none(GATE)),
            (true, None) => {
                let expected = format!("in the checkpoint: `{}` has one", self.model_type);
                return Err(Error::value(GATE, "absent", expected));
            }
            (true, Some(rows)) => rows,
        };
        let (heads, d_v) = (config.num_attention_heads, config.resolved_value_head_dim());
        match rows {
            rows if rows == heads * d_v => Ok(Some(GateOver::Element)),
            rows if rows == heads => Ok(Some(GateOver::Head)),
            _ => {
                let expected = format!("{heads}, one per head, or {}, one per element", heads * d_v);
                Err(Error::value("the number of gates", rows, expected))
            }
        }
    }

    /// Checks that a norm of the context has a weight in the checkpoint, or has none there.
    fn check_context_norm(&self, weighted: bool, held: bool) -> Result<()> {
        let [found, expected] = [held, weighted].map(|held| if held { "in the checkpoint" } else { "absent" });
        let expected = format!("{expected}, as `{}` has it", self.model_type);
        ensure!(held == weighted, Error::value("a norm of the context", found, expected));
        Ok(())
    }

    /// The most keys of a layer, if an indexer chooses among more.
    fn max_keys(&self, row: MaxKeys, config: &AttentionConfig, has_indexer: bool) -> Result<Option<usize>> {
        if let MaxKeys::Compressed(key) = row {
            self.section.note(&[key]);
        }
        if !has_indexer {
            return Ok(None);
        }
        let required = |key: &'static str| {
            let none = || Error::config(key, "none", "a number: an indexer chooses the keys");
            self.number(key)?.filter(|number| *number > 0).ok_or_else(none)
        };
        Ok(Some(match row {
            MaxKeys::Blocks(count, size) => required(count)?.saturating_mul(required(size)?),
            MaxKeys::WholeBlocks(budget, size) => required(budget)?.saturating_add(required(size)? - 1),
            MaxKeys::Compressed(count) => {
                let rate = config.key_compression().map_or(1, |blocks| blocks.rate);
                required(count)?.saturating_mul(rate).saturating_add(rate - 1)
            }
        }))
    }

    /// The earlier layer whose keys and values this layer has, if it is one of the last that share them.
    fn layer_of_shared_keys(&self) -> Result<Option<usize>> {
        let shared = self.number("num_kv_shared_layers")?.filter(|shared| *shared > 0);
        let Some(shared) = shared else { return Ok(None) };
        let first = self.number("num_hidden_layers")?.unwrap_or(usize::MAX).saturating_sub(shared);
        if self.index < first {
            return Ok(None);
        }
        let windowed = self.has_window()?;
        for index in (0..first).rev() {
            if (Layer { index, ..*self }).has_window()? == windowed {
                return Ok(Some(index));
            }
        }
        let expected = "those of a model with a layer of this kind before those that share its keys";
        let what = format!("the projections of layer {}", self.index);
        Err(Error::value(what, "those of a layer that shares keys", expected))
    }

    /// Checks the projections that the checkpoint holds. Published files hold keys and values also of layers that share
    /// those of another one.
    fn check_key_value_source(&self, found: KeyValueSource, expected: KeyValueSource) -> Result<()> {
        if found == expected || matches!(expected, KeyValueSource::Shared { .. }) {
            return Ok(());
        }
        let found = match found {
            KeyValueSource::Projections => "queries, keys and values",
            KeyValueSource::KeysAsValues => "queries and keys",
            KeyValueSource::Shared { .. } => "queries alone",
        };
        let expected = match expected {
            KeyValueSource::KeysAsValues => "queries and keys: the values of this layer are its keys",
            _ => "queries, keys and values",
        };
        Err(Error::value(format!("the projections of layer {}", self.index), found, expected))
    }

    /// Checks that limits on inputs and outputs of projections are used if the checkpoint holds them.
    pub(crate) fn check_limits(&self, held: bool) -> Result<()> {
        const KEY: &str = "use_clipped_linears";
        match self.flag(KEY)?.unwrap_or(self.family.default(KEY).is_some()) {
            false if held => Err(Error::config(KEY, false, "true: the checkpoint holds limits of projections")),
            _ => Ok(()),
        }
    }
}
