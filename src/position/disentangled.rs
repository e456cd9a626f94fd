use crate::error::{Error, Result};
use crate::macros::setters;

/// Disentangled attention (DeBERTa, [He 2021](https://arxiv.org/abs/2006.03654)): a score is the sum of what the query
/// says about the key (as everywhere), about the key's distance (`c2p`), and what the key says about the query's
/// distance (`p2c`), distances being embedded and projected as tokens are. All three are scaled alike, so the scale is
/// one over the square root of head size times the number of terms.
///
/// The embeddings are one of the layer's weights, [`embeddings`](Self::embeddings) rows of `hidden_size` numbers.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Disentangled {
    /// Whether queries are compared with distances.
    pub c2p: bool,
    /// Whether keys are compared with distances.
    pub p2c: bool,
    /// Distances of this many and more count alike.
    pub max_relative_positions: usize,
    /// Distances beyond half of this many share buckets by their logarithm (DeBERTa v2); `None` is one for each.
    pub position_buckets: Option<usize>,
    /// Distances are projected by the layer's own query and key projections (DeBERTa v3); otherwise by their own.
    pub share_att_key: bool,
    /// Added to the variance when the embeddings are normalised (`norm_rel_ebd`); `None` is no norm.
    pub norm_eps: Option<f64>,
}

impl Disentangled {
    /// Both terms for distances up to `max_relative_positions`, one embedding each, projected for themselves, no norm.
    pub fn new(max_relative_positions: usize) -> Self {
        Self {
            c2p: true,
            p2c: true,
            max_relative_positions,
            position_buckets: None,
            share_att_key: false,
            norm_eps: None,
        }
    }

    setters! {
        /// Sets whether queries are compared with distances.
        with_c2p, c2p: bool = c2p;
        /// Sets whether keys are compared with distances.
        with_p2c, p2c: bool = p2c;
        /// Sets the number of buckets.
        with_position_buckets, position_buckets: usize = Some(position_buckets);
        /// Sets whether the layer's own projections are used.
        with_share_att_key, share_att_key: bool = share_att_key;
        /// Sets that the embeddings are normalised.
        with_norm_eps, norm_eps: f64 = Some(norm_eps);
    }

    /// How many embeddings there are.
    pub fn embeddings(&self) -> usize {
        2 * self.span()
    }

    /// `1 / sqrt(head_dim · terms)`.
    pub fn scale(&self, head_dim: usize) -> f64 {
        let terms = 1 + usize::from(self.c2p) + usize::from(self.p2c);
        ((head_dim * terms) as f64).powf(-0.5)
    }

    fn span(&self) -> usize {
        self.position_buckets.unwrap_or(self.max_relative_positions)
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let most = 1 << 20;
        if !(1..=most).contains(&self.max_relative_positions) {
            let allowed = format!("1 to {most}");
            return Err(Error::config("max_relative_positions", self.max_relative_positions, allowed));
        }
        if let Some(buckets) = self.position_buckets
            && !(2..2 * self.max_relative_positions.saturating_sub(1)).contains(&buckets)
        {
            let allowed = format!("2 or more, and half of it less than {} - 1", self.max_relative_positions);
            return Err(Error::config("position_buckets", buckets, allowed));
        }
        match self.norm_eps {
            Some(eps) if !(eps.is_finite() && eps >= 0.0) => {
                Err(Error::config("layer_norm_eps", eps, "a number from 0"))
            }
            _ => Ok(()),
        }
    }

    /// The embedding of a query that stands `ahead` places after the key.
    pub(crate) fn row(&self, ahead: i64) -> u32 {
        let span = self.span() as i64;
        let bucket = match self.position_buckets {
            Some(_) => self.bucket(ahead),
            None => ahead,
        };
        (bucket + span).clamp(0, 2 * span - 1) as u32
    }

    fn bucket(&self, ahead: i64) -> i64 {
        let middle = self.span() as i64 / 2;
        let distance = ahead.abs();
        if distance <= middle {
            return ahead;
        }
        // In f32, as the reference: where the logarithm is next to a whole number, its rounding decides.
        let farthest = (self.max_relative_positions - 1) as f32 / middle as f32;
        let log = (distance as f32 / middle as f32).ln() / farthest.ln() * (middle - 1) as f32;
        (log.ceil() as i64 + middle) * ahead.signum()
    }
}
