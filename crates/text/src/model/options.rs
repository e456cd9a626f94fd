//! Options and output of one forward of a model.

use candle_attention::{AttentionOptions, AttentionStats, Error, ObserveOptions, Result, setters};
use candle_core::Tensor;

/// Options of one call of [`TextModel::forward_with`](crate::TextModel::forward_with). The default: inference, all
/// heads, nothing observed.
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct ForwardOptions<'a> {
    /// Training: dropout is applied.
    pub train: bool,
    /// For each layer, the factors of the outputs of its heads: see
    /// [`AttentionOptions::head_mask`](candle_attention::AttentionOptions).
    pub head_masks: Option<&'a [Tensor]>,
    /// The layers to observe, and the statistics to return of their attention weights.
    pub observe: Option<(&'a [usize], &'a ObserveOptions)>,
}

/// The result of [`TextModel::forward_with`](crate::TextModel::forward_with).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ForwardOutput {
    /// Hidden states `(b, s, hidden_size)`.
    pub hidden: Tensor,
    /// The index and the attention statistics of each observed layer, in the order of the model.
    pub observed: Vec<(usize, AttentionStats)>,
}

impl<'a> ForwardOptions<'a> {
    setters! {
        /// Sets whether dropout is applied.
        with_train, train: bool = train;
        /// Sets the factors of the outputs of the heads, one mask per layer.
        with_head_masks, head_masks: &'a [Tensor] = Some(head_masks);
    }

    /// Sets the layers to observe and the statistics to return.
    #[must_use]
    pub fn with_observe(mut self, layers: &'a [usize], what: &'a ObserveOptions) -> Self {
        self.observe = Some((layers, what));
        self
    }

    pub(crate) fn check(&self, layers: usize) -> Result<()> {
        if let Some(masks) = self.head_masks.filter(|masks| masks.len() != layers) {
            return Err(Error::value("the number of head masks", masks.len(), format!("{layers}, one a layer")));
        }
        match self.observe.and_then(|(asked, _)| asked.iter().find(|layer| **layer >= layers)) {
            Some(layer) => Err(Error::value("a layer to observe", layer, format!("less than {layers}"))),
            None => Ok(()),
        }
    }

    pub(crate) fn for_layer(&self, index: usize) -> AttentionOptions<'a> {
        let mut options = AttentionOptions::default().with_train(self.train);
        options.head_mask = self.head_masks.map(|masks| &masks[index]);
        options
    }

    pub(crate) fn observed_in(&self, index: usize) -> Option<&'a ObserveOptions> {
        self.observe.filter(|(layers, _)| layers.contains(&index)).map(|(_, what)| what)
    }
}
