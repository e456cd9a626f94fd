use crate::error::{Error, Result};

/// T5's buckets of distances ([Raffel 2020](https://arxiv.org/abs/1910.10683)): near keys by their distance, far ones by
/// its logarithm. Each bucket and head has a learned bias.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RelativeBuckets {
    /// How many there are.
    pub num_buckets: usize,
    /// The distance from which all share the last bucket.
    pub max_distance: usize,
    /// Keys after the query have buckets of their own; otherwise they share that of distance 0.
    pub bidirectional: bool,
}

impl RelativeBuckets {
    /// `num_buckets` buckets up to `max_distance`.
    pub fn new(num_buckets: usize, max_distance: usize, bidirectional: bool) -> Self {
        Self { num_buckets, max_distance, bidirectional }
    }

    pub(crate) fn validate(&self) -> Result<()> {
        if self.num_buckets < 4 {
            return Err(Error::config("relative_attention_num_buckets", self.num_buckets, "at least 4"));
        }
        if self.max_distance <= self.num_buckets / 2 {
            let allowed = format!("more than half of {}, the buckets", self.num_buckets);
            return Err(Error::config("relative_attention_max_distance", self.max_distance, allowed));
        }
        Ok(())
    }

    /// The bucket of a key that stands `ahead` places after the query.
    pub(crate) fn bucket(&self, ahead: i64) -> usize {
        let buckets = if self.bidirectional { self.num_buckets / 2 } else { self.num_buckets };
        let start = if self.bidirectional && ahead > 0 { buckets } else { 0 };
        let distance = match (self.bidirectional, usize::try_from(-ahead)) {
            (true, _) => ahead.unsigned_abs() as usize,
            (false, Ok(behind)) => behind,
            (false, Err(_)) => 0,
        };
        let exact = buckets / 2;
        if distance < exact {
            return start + distance;
        }
        // In f32, as the reference: where the logarithm is next to a whole number, its rounding decides.
        let log = (distance as f32 / exact as f32).ln() / (self.max_distance as f32 / exact as f32).ln();
        let far = exact.saturating_add((log * (buckets - exact) as f32) as usize);
        start + far.min(buckets - 1)
    }
}
