//! What a run of `train` did so far: kept beside it, so that one that was resumed has its whole curve.

use std::path::Path;

use plotters::prelude::SeriesLabelPosition::{LowerRight, UpperRight};

use super::Result;
use super::plot::{self, Chart, Line};

/// The mean of some losses.
#[derive(Default)]
pub struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    pub fn add(&mut self, loss: f32) {
        self.sum += f64::from(loss);
        self.count += 1.0;
    }

    pub fn of(&self) -> f64 {
        self.sum / self.count
    }
}

/// Points of a curve, where saves do not ask for more.
const POINTS: usize = 100;

/// Up to a save of the run.
#[derive(serde::Serialize, serde::Deserialize)]
pub struct Record {
    #[serde(skip)]
    steps: usize,
    /// A step, and the mean loss from the point before up to it.
    pub losses: Vec<(usize, f64)>,
    /// A step, Spearman's correlation and the share of nearest neighbours found.
    pub held_back: Vec<(usize, f64, f64)>,
}

impl Record {
    const FILE: &str = "record.json";

    /// What there is of a run of `steps` up to `step`.
    pub fn open(run: &Path, step: usize, steps: usize) -> Result<Self> {
        let path = run.join(Self::FILE);
        if step == 0 || !path.exists() {
            return Ok(Self { steps, losses: Vec::new(), held_back: Vec::new() });
        }
        let record = serde_json::from_str(&super::text(&path)?);
        let mut record: Self = record.map_err(|e| format!("{}: {e}", path.display()))?;
        record.steps = steps;
        record.losses.retain(|(number, _)| *number <= step);
        record.held_back.retain(|(number, ..)| *number <= step);
        Ok(record)
    }

    pub fn save(&self, run: &Path) -> Result<()> {
        super::save(&run.join(Self::FILE), serde_json::to_string(self)?.as_bytes())
    }

    /// Whether the curve wants a point at this step.
    pub fn asks(&self, number: usize) -> bool {
        number.is_multiple_of(self.steps.div_ceil(POINTS))
    }

    pub fn draw(&self, path: &Path) -> Result<()> {
        if self.losses.is_empty() {
            return Err(format!("{}: the run has no record of its losses", path.display()).into());
        }
        let chart = |y_name, y_end, names, lines| Chart {
            x_name: "steps",
            y_name,
            x_end: self.steps as f64,
            y_end,
            names,
            lines,
        };
        let losses: Vec<(f64, f64)> = self.losses.iter().map(|&(step, loss)| (step as f64, loss)).collect();
        let most = losses.iter().map(|(_, loss)| *loss).fold(0.0, f64::max);
        let losses = Line { name: "mean loss", points: losses };
        // A loss may be 0, an axis not.
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
        super::save(path, plot::svg(&charts, 300)?.as_bytes())
    }
}
