//! Schedulers and executors as processes, which end with the test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::processes::{PATIENCE, interrupt, wait};

/// A scheduler or an executor.
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    pub address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Server {
    fn start(program: &str, args: &[&str]) -> Self {
        let mut child =
            Command::new(program).args(args).args(["--threads", "2"]).stdout(Stdio::piped()).spawn().unwrap();
        let (send, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        let ready: String = lines.recv_timeout(PATIENCE).unwrap();
        let address = ready.rsplit(' ').next().unwrap().to_string();
        assert!(ready.contains(" ready at "), "{ready}");
        Self { child, lines, address }
    }

    /// A scheduler with models, `NAME=SOURCE`, that gives up a silent executor after 8 seconds.
    pub fn scheduler(models: &[&str]) -> Self {
        let args =
            with_models(models, &["--bind", "127.0.0.1:0", "--external-host", "127.0.0.1", "--executor-timeout", "8"]);
        Self::start(env!("CARGO_BIN_EXE_embed-scheduler"), &args)
    }

    /// An executor of a scheduler.
    pub fn executor(scheduler: &Server, models: &[&str]) -> Self {
        let args = with_models(models, &["--scheduler", &scheduler.address, "--concurrent-tasks", "1"]);
        Self::start(env!("CARGO_BIN_EXE_embed-executor"), &args)
    }

    /// The URL of a scheduler.
    pub fn url(&self) -> String {
        format!("df://{}", self.address)
    }

    /// Kills the process at once.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Ends the process as Ctrl-C does, and returns what it has printed since it was ready.
    pub fn interrupt(mut self) -> Vec<String> {
        interrupt(&self.child);
        wait(&mut self.child);
        self.lines.iter().collect()
    }
}

fn with_models<'a>(models: &[&'a str], args: &[&'a str]) -> Vec<&'a str> {
    models.iter().flat_map(|model| ["--model", *model]).chain(args.iter().copied()).collect()
}
