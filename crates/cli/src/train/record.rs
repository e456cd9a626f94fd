//! The loss curve of a run of `train`, saved with the run, so that a resumed run has its whole curve.

use std::path::Path;

use super::super::shared::output::Output;
use super::super::shared::plot::{self, Chart, Line};
use super::super::shared::{Result, about, read};
use candle_attention::io::write_file;

/// Steps whose losses are averaged: the loss of one batch says little.
const WINDOW: usize = 50;

/// Points of a curve.
const POINTS: usize = 100;

/// The mean loss of the last steps.
pub struct Mean {
    steps: usize,
    loss: f32,
}

impl std::fmt::Display for Mean {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.steps {
            1 => write!(f, "loss {:.4}", self.loss),
            steps => write!(f, "mean loss of the last {steps} steps {:.4}", self.loss),
        }
    }
}

/// The measurements of a run up to a step. In f32: serde_json reads an f64 that it wrote with another last digit.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Record {
    #[serde(skip)]
    steps: usize,
    /// The step of the last save.
    #[serde(skip)]
    saved: usize,
    /// The last steps, each with its loss: enough for the means after this save and after the one before.
    #[serde(default)]
    recent: Vec<(usize, f32)>,
    /// Steps, each with the mean loss of the last steps.
    losses: Vec<(usize, f32)>,
    /// Steps, each with Spearman's correlation and the share of nearest neighbors found on the held-back texts.
    pub held_back: Vec<(usize, f32, f32)>,
}

impl Record {
    const FILE: &str = "record.json";

    /// The record of a run of `steps` steps, cut to what was measured up to `step`; empty for a new run.
    pub fn open(run: &Path, step: usize, steps: usize) -> Result<Self> {
        let path = run.join(Self::FILE);
        if !path.exists() {
            return Ok(Self { steps, saved: step, recent: Vec::new(), losses: Vec::new(), held_back: Vec::new() });
        }
        let record = serde_json::from_str(&read::text(&path)?);
        let mut record: Self = record.map_err(|e| about(&path, &format!("is not the record of a run: {e}")))?;
        (record.steps, record.saved) = (steps, step);
        record.recent.retain(|(number, _)| *number <= step);
        record.losses.retain(|(number, _)| *number <= step);
        record.held_back.retain(|(number, ..)| *number <= step);
        Ok(record)
    }

    /// Adds the loss of a step.
    pub fn add(&mut self, number: usize, loss: f32) {
        self.recent.push((number, loss));
        if self.has_point(number) {
            self.losses.push((number, self.mean(number).loss));
        }
    }

    /// The mean loss of the last steps up to `number`.
    pub fn mean(&self, number: usize) -> Mean {
        let last = self.recent.iter().rev().take_while(|(step, _)| step + WINDOW > number);
        let (steps, sum) = last.fold((0, 0.0), |(steps, sum), (_, loss)| (steps + 1, sum + f64::from(*loss)));
        Mean { steps, loss: (sum / steps.max(1) as f64) as f32 }
    }

    /// Saves the record after a step in the folder of the run.
    pub fn save(&mut self, run: &Path, step: usize) -> Result<()> {
        // A kill before the run is saved leaves the run of the save before.
        let before = std::mem::replace(&mut self.saved, step);
        self.recent.retain(|(number, _)| number + WINDOW > before);
        Ok(write_file(&run.join(Self::FILE), serde_json::to_string(self)?)?)
    }

    /// Whether there is a curve to draw.
    pub fn has_losses(&self) -> bool {
        !self.losses.is_empty()
    }

    /// Whether the curve gets a point at this step.
    fn has_point(&self, number: usize) -> bool {
        number.is_multiple_of(self.steps.div_ceil(POINTS)) || number == self.steps
    }

    /// Draws the losses, and the measurements on held-back texts if there are any. `about` says what is trained.
    pub fn draw(&self, about: &str, output: &Output) -> Result<()> {
        if !self.has_losses() {
            return Err(format!("{}: the run has no record of its losses", output.path().display()).into());
        }
        let losses: Vec<(f64, f64)> = self.losses.iter().map(|&(step, loss)| (step as f64, f64::from(loss))).collect();
        let most = losses.iter().map(|(_, loss)| *loss).fold(0.0, f64::max);
        let chart = Chart {
            title: "Training loss",
            about,
            x_name: "training step",
            y_name: "mean loss of the last 50 steps",
            x_end: self.steps as f64,
            // A loss may be 0; the length of an axis may not.
            y_end: most.max(1e-9) * 1.05,
            lines: vec![Line { name: "loss", points: losses }],
        };
        let mut charts = vec![chart];
        if !self.held_back.is_empty() {
            let line = |name, of: fn(&(usize, f32, f32)) -> f32| Line {
                name,
                points: self.held_back.iter().map(|point| (point.0 as f64, f64::from(of(point)))).collect(),
            };
            charts.push(Chart {
                title: "Agreement with the teacher",
                about: "on texts that are not trained on",
                y_name: "1 = as the teacher",
                y_end: 1.0,
                lines: vec![
                    line("rank correlation (Spearman) of the similarities of all pairs of texts", |point| point.1),
                    line("share of texts whose nearest by the teacher is among the ten nearest", |point| point.2),
                ],
                ..charts[0]
            });
        }
        output.write(plot::svg(&charts, 340)?.as_bytes())
    }
}
