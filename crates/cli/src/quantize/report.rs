//! What was measured and written, as a table or as JSON.

use std::io::Write;

use serde::Serialize;

use super::super::shared::Result;
use super::super::shared::print::{count, plain};
use super::measure::Projection;

/// All figures. A loss is 1 minus a mean cosine.
#[derive(Serialize)]
pub struct Report<'a> {
    pub model: &'a str,
    pub max_loss: f64,
    pub projections: &'a [Projection],
    /// The number of texts that chose the projections.
    pub choosing_texts: usize,
    /// The number of texts that the cosines are of.
    pub judging_texts: usize,
    pub mean_cosine: f64,
    pub least_cosine: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<Written>,
}

/// A folder that was written, and the bytes of weights before and after.
#[derive(Serialize)]
pub struct Written {
    pub folder: String,
    pub bytes_before: u64,
    pub bytes_after: u64,
}

impl Report<'_> {
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        let names: Vec<String> = self.projections.iter().map(|row| plain(module(&row.names))).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        writeln!(out, "{:<width$} {:>9}", "projection, alone in int8", "loss")?;
        for (name, row) in names.iter().zip(self.projections) {
            let kept = if row.kept { "  bf16" } else { "" };
            writeln!(out, "{name:<width$} {:>9.2e}{kept}", row.loss)?;
        }
        let (all, kept) = (self.projections.len(), self.projections.iter().filter(|row| row.kept).count());
        let others = count(self.judging_texts, "other text");
        writeln!(
            out,
            "\n{} of {all} projections in int8: cosine to f32 {:.5} on average, {:.5} at least, on {others}",
            all - kept,
            self.mean_cosine,
            self.least_cosine
        )?;
        if let Some(Written { folder, bytes_before, bytes_after }) = &self.written {
            let [before, after] = [*bytes_before, *bytes_after].map(|bytes| bytes as f64 / 1e6);
            writeln!(out, "{}: written, {after:.1} MB of weights, {before:.1} MB before", plain(folder))?;
        }
        Ok(())
    }
}

/// The modules of some weights as one name: what their names have in common, and in braces what they have not.
fn module(weights: &[String]) -> String {
    let modules: Vec<&str> = weights.iter().map(|name| name.strip_suffix(".weight").unwrap_or(name)).collect();
    let Some((first, [_, ..])) = modules.split_first() else { return modules.concat() };
    let common = |end: &usize| modules.iter().all(|module| module.starts_with(&first[..*end]));
    let start = first.match_indices('.').map(|(dot, _)| dot + 1).rfind(common).unwrap_or(0);
    let rest: Vec<&str> = modules.iter().map(|module| &module[start..]).collect();
    format!("{}{{{}}}", &first[..start], rest.join(","))
}

#[cfg(test)]
mod tests {
    use super::module;

    #[test]
    fn modules_of_one_product_have_one_name() {
        let named = |names: &[&str]| module(&names.iter().map(|name| format!("{name}.weight")).collect::<Vec<_>>());
        assert_eq!(named(&["a.self.query", "a.self.key", "a.self.value"]), "a.self.{query,key,value}");
        assert_eq!(named(&["layer.1.q", "layer.1.q_a.x"]), "layer.1.{q,q_a.x}");
        assert_eq!(named(&["qkv"]), "qkv");
        assert_eq!(named(&["q", "k"]), "{q,k}");
    }
}
