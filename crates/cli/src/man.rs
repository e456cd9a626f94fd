//! Man pages of the program and its commands.

use std::io::Write;
use std::path::PathBuf;

use candle_attention::io::write_file;
use clap::Parser;
use clap_mangen::Man;

use super::shared::output::check_new_folder;
use super::shared::{Result, about, print};

/// Print the man page, or write those of all commands to a folder.
#[derive(Parser)]
#[command(
    name = "man",
    after_help = "Examples:
  candle-attention man > candle-attention.1
  candle-attention man --output man1"
)]
pub struct ManPages {
    /// Write the pages of the program and of all commands to this new folder [default: print the program's own]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
}

impl ManPages {
    /// Prints or writes the pages of a program.
    pub fn run(self, mut program: clap::Command) -> Result<()> {
        // With the names and options of all commands.
        program.build();
        let mut out = print::stdout();
        let Some(folder) = &self.output else {
            out.write_all(&page(program)?)?;
            return Ok(out.flush()?);
        };
        check_new_folder(folder)?;
        let commands = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
        let pages = commands.chain([program.clone()]).map(|command| {
            let name = command.get_display_name().unwrap_or_else(|| command.get_name()).replace(' ', "-");
            Ok((format!("{name}.1"), page(command)?))
        });
        let pages = pages.collect::<Result<Vec<_>>>()?;
        std::fs::create_dir_all(folder).map_err(|e| about(folder, &e))?;
        for (name, page) in &pages {
            write_file(&folder.join(name), page)?;
        }
        writeln!(out, "{}: {}", print::plain(folder.display()), print::count(pages.len(), "page"))?;
        Ok(out.flush()?)
    }
}

fn page(command: clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
