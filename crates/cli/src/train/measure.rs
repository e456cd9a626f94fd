//! How well a model agrees with its teacher on texts that were held back from training.

use std::io::Write;
use std::path::Path;

use candle_attention_text::train::{Agreement, Teacher, agreement, read_texts};
use candle_attention_text::{EncodeOptions, SentenceEncoder};
use candle_core::{DType, Device, Tensor};

use super::super::shared::{Result, about, print};

/// The number of texts that are compared with each other.
const GROUP: usize = 1_000;

/// Texts held back from training, and the teacher's embeddings of them.
pub struct HeldBack {
    pub texts: Vec<String>,
    theirs: Tensor,
}

/// Reads the texts to hold back: at least three, because pairs of them are compared.
pub fn read(path: &Path) -> Result<Vec<String>> {
    let texts = read_texts(path, &[])?;
    if texts.len() < 3 {
        let found = print::count(texts.len(), "text");
        return Err(about(path, &format!("holds {found}, expected at least 3, to compare pairs")).into());
    }
    Ok(texts)
}

impl HeldBack {
    /// Reads the texts of `eval` and encodes them with the teacher in f32; `None` without one of the two.
    pub fn open(eval: Option<&Path>, teacher: Option<&Path>) -> Result<Option<Self>> {
        let (Some(eval), Some(teacher)) = (eval, teacher) else { return Ok(None) };
        let texts = read(eval)?;
        let theirs = Teacher::open(teacher, DType::F32)?.encode(&texts)?;
        Ok(Some(Self { texts, theirs }))
    }

    /// The mean agreement within groups of a thousand texts; fewer are one group.
    pub fn compare(&self, ours: &Tensor) -> Result<Agreement> {
        let n = self.texts.len();
        let size = GROUP.min(n);
        let group = |i: usize| {
            let [ours, theirs] = [ours, &self.theirs].map(|all| all.narrow(0, i * size, size));
            Ok(agreement(&ours?, &theirs?)?)
        };
        let groups = (0..n / size).map(group).collect::<Result<Vec<Agreement>>>()?;
        let mean = |of: fn(&Agreement) -> f64| groups.iter().map(of).sum::<f64>() / groups.len() as f64;
        Ok(Agreement { spearman: mean(|a| a.spearman), top_1_in_10: mean(|a| a.top_1_in_10) })
    }

    /// Measures the model of a folder, loaded as its users load it, and prints the result.
    pub fn report(&self, folder: &Path) -> Result<()> {
        let encoder = SentenceEncoder::from_folder(folder, DType::F32, &Device::Cpu)?;
        let texts: Vec<&str> = self.texts.iter().map(String::as_str).collect();
        let ours = encoder.encode(&texts, &EncodeOptions::default())?;
        let Agreement { spearman, top_1_in_10 } = self.compare(&ours)?;
        let group = format!("the teacher's nearest of {} among the ten nearest", GROUP.min(texts.len()));
        let mut out = print::stdout_beside_files();
        writeln!(out, "{}: {} texts held back", print::plain(folder.display()), texts.len())?;
        writeln!(out, "Spearman's correlation of similarities with the teacher's  {spearman:.3}")?;
        writeln!(out, "{group:<57}  {top_1_in_10:.3}")?;
        Ok(out.flush()?)
    }
}
