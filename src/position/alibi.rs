/// The slopes of the heads: a geometric sequence that starts and ends alike for every number of heads that is a power of
/// two; the published models differ in what they do for others.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AlibiSlopes {
    /// Those of the next lower power of two, then every other one of the next higher (the paper's code, BLOOM, Falcon).
    Appended,
    /// Those of the next higher power of two, every other one first, then those between (MPT, Jina).
    Interleaved {
        /// The exponent at the last head; 8 in the paper.
        bias_max: f64,
    },
    /// One a head.
    Given(Vec<f64>),
}

/// Attention with linear biases ([Press 2021](https://arxiv.org/abs/2108.12409)): `-slope · distance` is added to the
/// scaled score, the distance being that between the positions of query and key.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Alibi {
    /// Which slopes.
    pub slopes: AlibiSlopes,
    /// Keys after the query count by their distance too (Jina-BERT); otherwise, a key after the query has a negative
    /// distance, which matters only where nothing hides it.
    pub symmetric: bool,
    /// A factor on all slopes: Falcon adds the bias before it scales the scores.
    pub factor: f64,
}

impl Alibi {
    /// These slopes, for texts that are read in one direction.
    pub fn new(slopes: AlibiSlopes) -> Self {
        Self { slopes, symmetric: false, factor: 1.0 }
    }

    /// Sets whether keys after the query count by their distance too.
    #[must_use]
    pub fn with_symmetric(mut self, symmetric: bool) -> Self {
        self.symmetric = symmetric;
        self
    }

    /// Sets the factor on all slopes.
    #[must_use]
    pub fn with_factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// One slope a head.
    pub fn of_heads(&self, heads: usize) -> Vec<f64> {
        let sequence = |count: usize, bias_max: f64| -> Vec<f64> {
            (1..=count).map(|i| (-bias_max * i as f64 / count as f64).exp2()).collect()
        };
        let slopes = match &self.slopes {
            AlibiSlopes::Given(slopes) => slopes.clone(),
            AlibiSlopes::Interleaved { bias_max } => {
                let all = sequence(heads.next_power_of_two(), *bias_max);
                match heads.is_power_of_two() {
                    true => all,
                    false => all.iter().skip(1).step_by(2).chain(all.iter().step_by(2)).take(heads).copied().collect(),
                }
            }
            AlibiSlopes::Appended => {
                let upper = heads.next_power_of_two();
                match upper == heads {
                    true => sequence(heads, 8.0),
                    false => {
                        let mut slopes = sequence(upper / 2, 8.0);
                        slopes.extend(sequence(upper, 8.0).iter().step_by(2).take(heads - upper / 2));
                        slopes
                    }
                }
            }
        };
        slopes.into_iter().map(|slope| slope * self.factor).collect()
    }
}
