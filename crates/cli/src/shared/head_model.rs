//! The options of the commands that run a model with a task head.

use std::io::Write;
use std::path::Path;

use candle_attention::ComputeType;
use candle_attention_text::EncodeOptions;
use candle_core::Device;
use serde::Serialize;

use super::checkpoint::{check_weights, locate};
use super::device::Compute;
use super::model::{Batches, FOLDER_OR_ID, MAX_LENGTH, or_hub_id, with_progress};
use super::{Result, print};

#[derive(clap::Args)]
pub struct HeadModel {
    #[arg(
        long,
        value_name = FOLDER_OR_ID,
        help = or_hub_id("A model folder, a .gguf file", ". It is required: the model in this program has no head")
    )]
    model: String,
    /// The branch, tag or commit of a hub model [default: main]
    #[arg(long, hide = !cfg!(feature = "hub"))]
    revision: Option<String>,
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    batches: Batches,
}

/// A model and how it is run.
pub struct Opened<'a, M> {
    pub model: M,
    /// The options that change at which length a text is cut.
    pub if_cut: &'static str,
    batches: &'a Batches,
}

impl HeadModel {
    /// Loads the model, by `load` from its folder.
    pub fn open<M>(
        &self,
        load: impl FnOnce(&Path, ComputeType, &Device) -> candle_attention::Result<M>,
    ) -> Result<Opened<'_, M>> {
        let folder = locate(&self.model, self.revision.as_deref())?;
        let Compute { device, .. } = &self.compute;
        let model = load(&folder, self.compute.compute_type(), device).map_err(|error| {
            let name =
                if error.to_string().contains(&self.model) { String::new() } else { format!("{}: ", self.model) };
            // A model for embeddings has a list of modules, and no head.
            let hint =
                if folder.join("modules.json").is_file() { "; `encode` and `search` run this model" } else { "" };
            format!("{name}{error}{hint}")
        })?;
        check_weights(&folder)?;
        Ok(Opened { model, if_cut: MAX_LENGTH, batches: &self.batches })
    }
}

impl<M> Opened<'_, M> {
    /// Runs the model on `count` texts, by `run` with the options for it: with a progress bar for many texts, and a
    /// note about those that were cut.
    pub fn run<R>(
        &self,
        count: usize,
        run: impl FnOnce(&M, &EncodeOptions) -> candle_attention::Result<R>,
    ) -> Result<R> {
        let options = self.batches.options(None);
        let if_cut = (options.max_length, self.if_cut);
        with_progress(("reading", count), &options, if_cut, |options| Ok(run(&self.model, options)?))
    }
}

/// The columns of a text that are shown.
pub const WIDTH: usize = 90;

/// Prints what a model gives for each text: with `json` one line of it, else the text and the `lines` below it.
pub fn print_each<'a, R, J: Serialize>(
    (texts, results): (&'a [String], &'a [R]),
    is_json: bool,
    json: impl Fn(&'a str, &'a R) -> J,
    lines: impl Fn(&R) -> Vec<String>,
) -> Result<()> {
    let mut out = print::stdout();
    for (text, result) in texts.iter().zip(results) {
        if is_json {
            print::json(&mut out, &json(text, result))?;
            continue;
        }
        writeln!(out, "{}", print::one_line(text, WIDTH))?;
        lines(result).iter().try_for_each(|line| writeln!(out, "  {line}"))?;
    }
    Ok(out.flush()?)
}
