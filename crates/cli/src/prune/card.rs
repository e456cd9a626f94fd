//! The model card of a pruned model: what was removed, by what measure, what it costs, and who can load it.

use std::path::Path;

use candle_attention::pruning::PrunedHeads;
use candle_attention_text::model_card;

use super::super::shared::Result;
use super::super::shared::model_name::split_card;

/// What was measured.
pub struct Measured {
    /// The measure of importance.
    pub by: String,
    pub by_layer: bool,
    /// The number of texts that ranked the heads.
    pub rank: usize,
    /// The number of texts that the quality was measured on.
    pub judge: usize,
    /// The mean cosine between embeddings of the written and of the whole model.
    pub cosine: Option<f64>,
}

/// Who can load the written model.
pub fn loaders(masked: bool) -> &'static str {
    if masked {
        "every library that loads the whole model, such as sentence-transformers and transformers"
    } else {
        "candle-attention, and transformers before 5; with --masked every library that loads the whole model"
    }
}

/// The text of the model card. The metadata of the original card stays first, and its text follows under a heading.
pub fn text(
    name: &str,
    folder: &Path,
    heads: &PrunedHeads,
    all: usize,
    masked: bool,
    measured: &Measured,
) -> Result<String> {
    let original = model_card(folder)?;
    let (metadata, text) = split_card(&original);
    let Measured { by, by_layer, rank, judge, cosine } = measured;
    let count = heads.count();
    let done = if masked { "set to zero" } else { "removed" };
    let mut card = format!("{metadata}# {name} without {count} of its {all} attention heads\n\n");
    card += &format!("Made by `candle-attention prune` from {name}. {count} of {all} attention heads are {done}:\n\n");
    card += "| Layer | Heads, counted from 0 as in that model |\n|---|---|\n";
    let mut left = count;
    let mut layers = (0..).map(|layer| (layer, heads.for_layer(layer)));
    while let Some((layer, heads)) = layers.next().filter(|_| left > 0) {
        left -= heads.len();
        if !heads.is_empty() {
            let heads: Vec<String> = heads.iter().map(usize::to_string).collect();
            card += &format!("| {layer} | {} |\n", heads.join(", "));
        }
    }
    let within = if *by_layer { ", normalized within each layer" } else { "" };
    card += &format!("\nThey are the least important ones by {by}{within}, on {rank} texts.");
    if let Some(cosine) = cosine {
        card += &format!(
            " The mean cosine between the embeddings of this model and of the whole one is {cosine:.4}, on {judge} other texts."
        );
    }
    card += &if masked {
        "\n\n## Who can load it\n\nEvery library that loads the whole model, such as sentence-transformers and \
                 transformers: `config.json` and the sizes of all weights are the same. The output projections read zeros \
                 where these heads are, so the model takes as much memory and time as the whole one.\n"
            .to_string()
    } else {
        "\n\n## Who can load it\n\n`config.json` lists the heads under `pruned_heads`, and the weights are smaller. \
                  candle-attention loads it, and transformers before 5. `candle-attention prune --masked` writes a model of \
                  the original size that every library loads.\n"
            .to_string()
    };
    if !text.trim().is_empty() {
        card += &format!("\n## Model card of {name}\n\n{}\n", text.trim());
    }
    Ok(card)
}
