//! The loss curve of a run of `train`, saved with the run, so that a resumed run has its whole curve.

use std::path::Path;

use plotters::prelude::SeriesLabelPosition::{LowerRight, UpperRight};

use super::super::shared::output::{Kind, Output};
use super::super::shared::plot::{self, Chart, Line};
use super::super::shared::{Result, read};

/// A running mean.
#[derive(Default)]
pub struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    /// Adds a loss.
    pub fn add(&mut self, loss: f32) {
        self.sum += f64::from(loss);
        self.count += 1.0;
    }

    pub fn value(&self) -> f64 {
        self.sum / self.count
    }
}

/// Points of a curve; every save adds one more.
const POINTS: usize = 100;

/// The measurements of a run up to a step.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Record {
    #[serde(skip)]
    steps: usize,
    /// Steps, each with the mean loss since the point before.
    pub losses: Vec<(usize, f64)>,
    /// Steps, each with Spearman's correlation and the share of nearest neighbors found on the held-out texts.
    pub held_back: Vec<(usize, f64, f64)>,
}

impl Record {
    const FILE: &str = "record.json";

    /// The record of a run of `steps` steps, cut to what was measured up to `step`; empty for a new run.
    pub fn open(run: &Path, step: usize, steps: usize) -> Result<Self> {
        let path = run.join(Self::FILE);
        if step == 0 || !path.exists() {
            return Ok(Self { steps, losses: Vec::new(), held_back: Vec::new() });
        }
        let record = serde_json::from_str(&read::text(&path)?);
        let mut record: Self = record.map_err(|e| format!("{}: {e}", path.display()))?;
        record.steps = steps;
        record.losses.retain(|(number, _)| *number <= step);
        record.held_back.retain(|(number, ..)| *number <= step);
        Ok(record)
    }

    /// Saves the record in the folder of the run.
    pub fn save(&self, run: &Path) -> Result<()> {
        Output::new(&run.join(Self::FILE), Kind::Json, &[])?.write(serde_json::to_string(self)?.as_bytes())
    }

    /// Whether the curve gets a point at this step.
    pub fn has_point(&self, number: usize) -> bool {
        number.is_multiple_of(self.steps.div_ceil(POINTS))
    }

    /// Draws the losses, and the measurements on held-out texts if there are any.
    pub fn draw(&self, output: &Output) -> Result<()> {
        if self.losses.is_empty() {
            return Err(format!("{}: the run has no record of its losses", output.path().display()).into());
        }
        let chart = |y_name, y_end, legend, lines| Chart {
            x_name: "steps",
            y_name,
            x_end: self.steps as f64,
            y_end,
            legend,
            lines,
        };
        let losses: Vec<(f64, f64)> = self.losses.iter().map(|&(step, loss)| (step as f64, loss)).collect();
        let most = losses.iter().map(|(_, loss)| *loss).fold(0.0, f64::max);
        let losses = Line { name: "mean loss", points: losses };
        // A loss may be 0; the length of an axis may not.
        let mut charts = vec![chart("loss", most.max(1e-9) * 1.05, UpperRight, vec![losses])];
        if !self.held_back.is_empty() {
            let line = |name, of: fn(&(usize, f64, f64)) -> f64| Line {
                name,
                points: self.held_back.iter().map(|point| (point.0 as f64, of(point))).collect(),
            };
            let lines = vec![
                line("Spearman's correlation with the teacher", |point| point.1),
                line("the teacher's nearest among ten", |point| point.2),
            ];
            charts.push(chart("texts held back", 1.0, LowerRight, lines));
        }
        output.write(plot::svg(&charts, 300)?.as_bytes())
    }
}
