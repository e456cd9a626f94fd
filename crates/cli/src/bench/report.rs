//! What a benchmark prints.

use std::io::Write;

use serde::Serialize;

use super::super::shared::{Result, print};
use super::measure::Speed;

#[derive(Serialize)]
pub struct Report {
    pub candle_attention: &'static str,
    pub model: String,
    pub device: String,
    pub processor: Option<String>,
    pub instruction_set: &'static str,
    /// The library that multiplies on the CPU in f32, f16 and bf16, if it is not this crate.
    pub library: Option<&'static str>,
    pub threads: usize,
    /// The operating system and the architecture.
    pub system: String,
    /// Of the process, in all dtypes.
    pub peak_memory_bytes: Option<u64>,
    pub results: Vec<InDtype>,
}

#[derive(Serialize)]
pub struct InDtype {
    pub dtype: String,
    /// The least cosine of an embedding to the same in f32 on the CPU.
    pub least_cosine_to_f32: f32,
    pub speeds: Vec<Speed>,
}

impl Report {
    /// Prints a table, and a line to share: a row of the table in the documentation.
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "{} on {}, {}", print::plain(&self.model), self.device, self.machine())?;
        writeln!(out)?;
        writeln!(out, "dtype  texts  tokens        ms   texts/s  tokens/s    cosine to f32")?;
        for result in &self.results {
            for Speed { texts, tokens, milliseconds, texts_per_second, tokens_per_second, .. } in &result.speeds {
                write!(out, "{:<5}  {texts:>5}  {tokens:>6}  {milliseconds:>8.2}", result.dtype)?;
                write!(out, "  {texts_per_second:>8.0}  {tokens_per_second:>8.0}")?;
                writeln!(out, "  {:>15.6}", result.least_cosine_to_f32)?;
            }
        }
        if let Some(bytes) = self.peak_memory_bytes {
            writeln!(out, "\nAt most {:.0} MB of memory, in all dtypes.", bytes as f64 / 1e6)?;
        }
        writeln!(out, "\nTo share it, copy this line, with texts per second of 1, 8 and 64 texts:")?;
        writeln!(out, "{}", self.row())?;
        Ok(())
    }

    fn machine(&self) -> String {
        let processor = self.processor.as_deref().unwrap_or("unknown processor");
        let threads = print::count(self.threads, "thread");
        let library = self.library.map_or(String::new(), |name| format!(" and {name}"));
        format!("{processor}, {}{library}, {threads}, {}", self.instruction_set, self.system)
    }

    /// A row of a table in Markdown.
    fn row(&self) -> String {
        let speeds = |result: &InDtype| {
            let speeds: Vec<String> =
                result.speeds.iter().map(|speed| format!("{:.0}", speed.texts_per_second)).collect();
            format!("{} {}", result.dtype, speeds.join(" / "))
        };
        let speeds: Vec<String> = self.results.iter().map(speeds).collect();
        let memory = self.peak_memory_bytes.map_or("–".to_string(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6));
        let cells = [&self.machine(), &self.device, &self.model, self.candle_attention, &speeds.join(", "), &memory];
        format!("| {} |", cells.map(|cell| print::plain(cell).replace('|', "/")).join(" | "))
    }
}
