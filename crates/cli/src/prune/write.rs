//! Writes the model without its least important heads, and its model card: what was removed, by what measure, what it
//! costs, and who can load it.

use std::io::Write;
use std::path::Path;

use candle_attention::io::create_folder;
use candle_attention::pruning::PrunedHeads;
use candle_attention_text::{PruneOptions, model_card, write_pruned_with};

use super::super::shared::Result;
use super::super::shared::checkpoint::{split_card, weight_bytes};
use super::super::shared::output::folder_of;
use super::super::shared::print::plain;
use super::Prune;

/// A pruned model, and what was measured.
pub struct Card<'a> {
    pub options: &'a Prune,
    /// The folder of the whole model.
    pub folder: &'a Path,
    /// The number of heads of the whole model.
    pub all: usize,
    /// The number of texts that ranked the heads.
    pub rank: usize,
    /// The number of texts that the quality was measured on.
    pub judge: usize,
    /// The mean cosine between embeddings of the written and of the whole model.
    pub cosine: Option<f64>,
}

/// Writes the model without `heads`, with its model card.
pub fn write(out: &mut impl Write, target: &Path, heads: &PrunedHeads, card: &Card) -> Result<()> {
    let Card { folder, all, options: Prune { masked, .. }, .. } = *card;
    create_folder(folder_of(target))?;
    let text = text(card, heads)?;
    write_pruned_with(folder, target, heads, &PruneOptions::default().with_masked(*masked).with_card(&text))?;
    let (count, shown) = (heads.count(), plain(target.display()));
    let [before, after] = [weight_bytes(folder)?, weight_bytes(target)?].map(|bytes| bytes as f64 / 1e6);
    if *masked {
        writeln!(
            out,
            "\n{shown}: written with {count} of {all} heads zeroed, {after:.1} MB of weights as the whole model"
        )?
    } else {
        writeln!(
            out,
            "\n{shown}: written without {count} of {all} heads, {after:.1} MB of weights, the whole model has \
             {before:.1} MB: {:.1} MB saved",
            before - after
        )?
    }
    Ok(writeln!(out, "who can load it: {}", loaders(*masked))?)
}

/// Who can load the written model.
fn loaders(masked: bool) -> &'static str {
    if masked {
        "every library that loads the whole model, such as sentence-transformers and transformers"
    } else {
        "candle-attention, and transformers before 5; with --masked every library that loads the whole model"
    }
}

/// The text of the model card. The metadata of the original card stays first, and its text follows under a heading.
fn text(card: &Card, heads: &PrunedHeads) -> Result<String> {
    let Card { options, folder, all, rank, judge, cosine } = card;
    let (name, by) = (options.model.title(), options.by.name());
    let original = model_card(folder)?;
    let (metadata, text) = split_card(&original);
    let count = heads.count();
    let done = if options.masked { "set to zero" } else { "removed" };
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
    let within = if options.by_layer { ", normalized within each layer" } else { "" };
    card += &format!("\nThey are the least important ones by {by}{within}, on {rank} texts.");
    if let Some(cosine) = cosine {
        card += &format!(
            " The mean cosine between the embeddings of this model and of the whole one is {cosine:.4}, on {judge} other texts."
        );
    }
    card += if options.masked {
        "\n\n## Who can load it\n\nEvery library that loads the whole model, such as sentence-transformers and \
                 transformers: `config.json` and the sizes of all weights are the same. The output projections read zeros \
                 where these heads are, so the model takes as much memory and time as the whole one.\n"
    } else {
        "\n\n## Who can load it\n\n`config.json` lists the heads under `pruned_heads`, and the weights are smaller. \
                  candle-attention loads it, and transformers before 5. `candle-attention prune --masked` writes a model of \
                  the original size that every library loads.\n"
    };
    if !text.trim().is_empty() {
        card += &format!("\n## Model card of {name}\n\n{}\n", text.trim());
    }
    Ok(card)
}
