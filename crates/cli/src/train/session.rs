//! The training loop of the command: it saves, measures, draws, and obeys an interrupt.

use std::path::Path;
use std::time::{Duration, Instant};

use candle_attention_text::train::{Agreement, Step, Trainer};

use super::super::shared::output::Output;
use super::super::shared::program::Interrupted;
use super::super::shared::{Result, interrupt};
use super::measure::HeldBack;
use super::progress::Progress;
use super::record::Record;

/// What a run is trained with.
pub struct Session<'a> {
    /// The folder of the run.
    pub run: &'a Path,
    pub plot: Option<&'a Output>,
    pub held_back: Option<&'a HeldBack>,
    /// Steps between two measurements.
    pub save_every: u64,
    /// Time between two saves, at most.
    pub save_seconds: Duration,
    /// Time between two lines of progress without a terminal.
    pub progress_seconds: Duration,
}

impl Session<'_> {
    /// Trains until all steps are done, or until an interrupt: then the error is [`Interrupted`].
    pub fn run(&self, trainer: &mut Trainer) -> Result<()> {
        let steps = trainer.config().steps;
        let progress = Progress::of_steps(trainer.steps_done(), steps, self.progress_seconds)?;
        let mut record = Record::open(self.run, trainer.steps_done(), steps)?;
        let (start, mut saved) = (Instant::now(), Instant::now());
        interrupt::hold(true);
        while let Some(step) = trainer.step()? {
            let number = step.number;
            record.add(number, step.loss);
            progress.at(number, &record.mean(number).to_string());
            // Only these measure, whatever the time: the record depends on the run alone.
            if number.is_multiple_of(self.save_every as usize) || number == steps {
                let line = self.measure(trainer, &step, &mut record)?;
                progress.print(format_args!("{line} ({} s)", start.elapsed().as_secs()));
            } else if !interrupt::asked() && saved.elapsed() < self.save_seconds {
                continue;
            }
            self.save(trainer, &mut record)?;
            saved = Instant::now();
            if interrupt::asked() && number < steps {
                progress.finish();
                let run = self.run.display();
                let line =
                    format!("interrupted after step {number} of {steps}; saved in {run}: the same command goes on");
                return Err(Interrupted(line).into());
            }
        }
        interrupt::hold(false);
        progress.finish();
        match self.plot {
            Some(plot) => record.draw(plot),
            None => Ok(()),
        }
    }

    /// Measures the model after a step, and says what the step was like.
    fn measure(&self, trainer: &Trainer, step: &Step, record: &mut Record) -> Result<String> {
        let Step { number, grad_norm, learning_rate, .. } = *step;
        let mean = record.mean(number);
        let mut line = format!("step {number}: {mean}, gradient {grad_norm:.3}, learning rate {learning_rate:.1e}");
        if let Some(held_back) = self.held_back {
            let Agreement { spearman, top_1_in_10 } = held_back.compare(&trainer.encode(&held_back.texts)?)?;
            line += &format!(", held back: Spearman {spearman:.3}, top 1 in 10 {top_1_in_10:.3}");
            record.held_back.push((number, spearman as f32, top_1_in_10 as f32));
        }
        Ok(line)
    }

    fn save(&self, trainer: &Trainer, record: &mut Record) -> Result<()> {
        // Before the run: `Record::open` drops what is from after the run's last save.
        record.save(self.run, trainer.steps_done())?;
        trainer.save()?;
        match self.plot {
            // A pipe would get one picture after the other.
            Some(plot) if plot.is_file() && record.has_losses() => record.draw(plot),
            _ => Ok(()),
        }
    }
}
