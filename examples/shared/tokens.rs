//! What the examples that compose a whole model share: rows of token ids on the command line, and keys of config.json.

use std::path::PathBuf;

use candle_nn::{Embedding, Linear, VarBuilder};
use serde_json::Value;

use super::Result;

/// A model and the rows of token ids that it gets.
#[derive(clap::Args)]
pub struct Arguments {
    /// The folder of the model: config.json and model.safetensors or its shards
    model: PathBuf,
    /// The number of ids to generate for each row
    #[arg(long, default_value_t = 16)]
    count: usize,
    /// Rows of token ids, of any lengths: ids with commas between them
    #[arg(required = true, value_parser = row)]
    rows: Vec<Row>,
}

/// A type of its own: clap takes a `Vec` for an option that is repeated.
#[derive(Clone)]
struct Row(Vec<u32>);

fn row(text: &str) -> std::result::Result<Row, String> {
    let id = |id: &str| id.trim().parse().map_err(|_| format!("`{id}` is no token id"));
    text.split(',').map(id).collect::<std::result::Result<_, _>>().map(Row)
}

impl Arguments {
    /// Prints the ids that `generate` makes of the folder, the rows and the number of ids.
    pub fn print(self, generate: impl FnOnce(PathBuf, Vec<Vec<u32>>, usize) -> Result<Vec<Vec<u32>>>) -> Result<()> {
        for row in generate(self.model, self.rows.into_iter().map(|row| row.0).collect(), self.count)? {
            println!("{}", row.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        }
        Ok(())
    }
}

/// A number of config.json.
pub fn number(json: &Value, key: &str) -> Result<f64> {
    Ok(json[key].as_f64().ok_or_else(|| format!("config.json: `{key}` is not a number"))?)
}

/// A size or a count of config.json.
pub fn size(json: &Value, key: &str) -> Result<usize> {
    let size = json[key].as_u64().and_then(|size| usize::try_from(size).ok());
    Ok(size.ok_or_else(|| format!("config.json: `{key}` is not a size"))?)
}

/// Checks that a key of config.json says what the example computes.
pub fn expect(json: &Value, key: &str, expected: &str) -> Result<()> {
    match &json[key] {
        Value::String(found) if found == expected => Ok(()),
        found => Err(format!("config.json: `{key}` is {found}, expected \"{expected}\"").into()),
    }
}

/// The head that scores the vocabulary: the model's own, or its token embeddings.
pub fn lm_head(embeddings: &Embedding, vb: &VarBuilder) -> Result<Linear> {
    let tied = embeddings.embeddings();
    let own = vb.contains_tensor("lm_head.weight");
    Ok(Linear::new(if own { vb.get(tied.dims(), "lm_head.weight")? } else { tied.clone() }, None))
}
