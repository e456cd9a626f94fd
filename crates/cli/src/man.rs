//! Man pages of the program and its commands.

use std::io::Write;
use std::path::PathBuf;

use candle_attention::io::{create_folder, write_file, write_new_folder};
use clap::Parser;
use clap_mangen::Man;

use super::shared::output::{check_new_folder, folder_of};
use super::shared::{Result, print};

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
        create_folder(folder_of(folder))?;
        write_new_folder(folder, |new| pages.iter().try_for_each(|(name, page)| write_file(&new.join(name), page)))?;
        writeln!(out, "{}: {}", print::plain(folder.display()), print::count(pages.len(), "page"))?;
        Ok(out.flush()?)
    }
}

fn page(command: clap::Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
