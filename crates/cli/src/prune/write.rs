//! Writes the model without its least important heads, and says how large it is.

use std::io::Write;
use std::path::Path;

use candle_attention::io::create_folder;
use candle_attention::pruning::PrunedHeads;
use candle_attention_text::{PruneOptions, write_pruned_with};

use super::super::shared::Result;
use super::super::shared::model::weight_bytes;
use super::super::shared::output::folder_of;
use super::super::shared::print::plain;
use super::card::{self, Measured};

/// A model to write.
pub struct Written<'a> {
    /// The name of the whole model.
    pub name: &'a str,
    /// The folder of the whole model.
    pub folder: &'a Path,
    pub target: &'a Path,
    /// The number of heads of the whole model.
    pub all: usize,
}

impl Written<'_> {
    /// Writes the model without `heads`, with a model card that has what was measured.
    pub fn write(&self, out: &mut impl Write, heads: &PrunedHeads, masked: bool, measured: &Measured) -> Result<()> {
        let Self { name, folder, target, all } = self;
        let card = card::text(name, folder, heads, *all, masked, measured)?;
        create_folder(folder_of(target))?;
        write_pruned_with(folder, target, heads, &PruneOptions::default().with_masked(masked).with_card(&card))?;
        let (count, shown) = (heads.count(), plain(target.display()));
        let [before, after] = [weight_bytes(folder)?, weight_bytes(target)?].map(|bytes| bytes as f64 / 1e6);
        if masked {
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
        Ok(writeln!(out, "who can load it: {}", card::loaders(masked))?)
    }
}
