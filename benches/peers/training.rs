//! Our side of `training.py` beside this file: forward and backward of one attention layer whose weights are variables.
//! It takes lines `WORK N` on standard input, and prints the seconds of N runs, then by how many bytes the peak memory
//! of the process has grown since it started. A work is `BATCHxTOKENSxHIDDEN[/KEY_VALUE_HEADS] KIND`: heads have 64
//! values, and the kind is `full`, `causal`, `padded` or `ragged`.

use std::io::{BufRead, Write};
use std::time::Instant;

use candle_attention::{AttentionConfig, AttentionInputs, AttentionMask, AttentionOptions, Error, MultiHeadAttention};
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};

const HEAD_DIM: usize = 64;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The lengths of a batch whose sequences are not equally long: from a quarter of `tokens` to all of them.
fn lengths(batch: usize, tokens: usize) -> Vec<usize> {
    (1..=batch).map(|i| tokens / 4 + (tokens - tokens / 4) * i / batch).collect()
}

struct Work {
    layer: MultiHeadAttention,
    variables: VarMap,
    xs: Var,
    mask: AttentionMask,
    /// Those of a ragged batch.
    lengths: Option<Vec<usize>>,
}

impl Work {
    fn new(sizes: &str, kind: &str) -> Result<Self> {
        let (sizes, kv_heads) = sizes.split_once('/').map_or((sizes, None), |(sizes, heads)| (sizes, Some(heads)));
        let sizes = sizes.split('x').map(str::parse).collect::<std::result::Result<Vec<usize>, _>>()?;
        let [batch, tokens, hidden] = sizes[..] else { return Err("expected BATCHxTOKENSxHIDDEN".into()) };
        let heads = hidden / HEAD_DIM;
        let kv_heads = kv_heads.map_or(Ok(heads), str::parse)?;
        let config = AttentionConfig::new(hidden, heads).with_num_key_value_heads(kv_heads);
        let variables = VarMap::new();
        let layer = MultiHeadAttention::new(&config, VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu))?;
        let unequal = lengths(batch, tokens);
        let (mask, lengths, rows) = match kind {
            "full" => (AttentionMask::full(), None, vec![batch, tokens]),
            "causal" => (AttentionMask::causal(), None, vec![batch, tokens]),
            "padded" => (AttentionMask::padding(&unequal), None, vec![batch, tokens]),
            "ragged" => {
                let rows = vec![unequal.iter().sum()];
                (AttentionMask::full(), Some(unequal), rows)
            }
            other => return Err(Error::value("a kind of mask", other, "full, causal, padded or ragged").into()),
        };
        let xs = Tensor::randn(0f32, 1., [&rows[..], &[hidden]].concat(), &Device::Cpu)?;
        Ok(Self { layer, variables, xs: Var::from_tensor(&xs)?, mask, lengths })
    }

    fn run(&self) -> Result<f64> {
        let inputs = match &self.lengths {
            Some(lengths) => AttentionInputs::ragged(&self.xs, lengths, &self.mask),
            None => AttentionInputs::self_attention(&self.xs, &self.mask),
        };
        let start = Instant::now();
        let output = self.layer.attend_with(&inputs, &AttentionOptions::default())?.output;
        let grads = output.sum_all()?.backward()?;
        let seconds = start.elapsed().as_secs_f64();
        let missing = self.variables.all_vars().iter().chain([&self.xs]).any(|variable| grads.get(variable).is_none());
        if missing { Err("a variable has no gradient".into()) } else { Ok(seconds) }
    }
}

/// The most memory that the process has had since [`reset_peak`], in bytes.
fn peak() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Counts the most memory from now on.
fn reset_peak() -> Result<()> {
    Ok(std::fs::write("/proc/self/clear_refs", "5")?)
}

fn main() -> Result<()> {
    reset_peak()?;
    let at_start = peak()?;
    let mut last: Option<(String, Work)> = None;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [sizes, kind, times] = line.split(' ').collect::<Vec<_>>()[..] else {
            return Err("expected sizes, a kind and a number".into());
        };
        let name = format!("{sizes} {kind}");
        if last.as_ref().is_none_or(|(last, _)| *last != name) {
            last = Some((name, Work::new(sizes, kind)?));
        }
        let work = &last.as_ref().expect("made").1;
        let seconds = (0..times.parse()?).map(|_| Ok(work.run()?.to_string())).collect::<Result<Vec<_>>>()?;
        println!("{} {}", seconds.join(" "), peak()? - at_start);
        std::io::stdout().flush()?;
    }
    Ok(())
}
