//! What a command says while it works: a line for each function that changes on a terminal, plain lines otherwise.
//! All on stderr.

use std::convert::Infallible;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::failure::Failure;
use crate::output;

/// What a command says when a signal ends its work.
pub const TAKING_DOWN: &str = "cwasi: interrupted, taking down what was started";
/// Between two pictures of a line that shows time.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of a module that the compiler takes a second for, on a common machine.
const BYTES_PER_SECOND: f64 = 64.0 * 1024.0;
/// Characters of a progress bar.
const BAR: usize = 20;

/// The lines of one command.
#[derive(Clone, Debug)]
pub struct Display {
    /// `None` when stderr is no terminal.
    lines: Option<MultiProgress>,
}

/// The line of one function.
#[derive(Debug)]
pub struct Line {
    name: String,
    bar: Option<ProgressBar>,
}

impl Default for Display {
    fn default() -> Self {
        Self { lines: std::io::stderr().is_terminal().then(MultiProgress::new) }
    }
}

impl Display {
    /// True on a terminal.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.lines.is_some()
    }

    /// Writes a note above the lines.
    pub fn note(&self, text: &str) {
        self.print(|| output::note(text));
    }

    /// Writes bytes of a function's output, and flushes them.
    ///
    /// # Errors
    /// When stdout is closed or full.
    pub fn output(&self, bytes: &[u8], to_stderr: bool) -> Result<(), Failure> {
        self.print(|| {
            if to_stderr {
                let _lost = io::stderr().write_all(bytes);
                return Ok(());
            }
            output::bytes(bytes)
        })
    }

    fn print<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.lines {
            Some(lines) => lines.suspend(print),
            None => print(),
        }
    }

    /// A line for a function.
    #[must_use]
    pub fn line(&self, name: &str) -> Line {
        let bar = self.lines.as_ref().map(|lines| {
            let bar = lines.add(ProgressBar::new_spinner());
            // The template is a constant, and right.
            if let Ok(style) = ProgressStyle::with_template("  {prefix:24} {wide_msg}") {
                bar.set_style(style);
            }
            bar.set_prefix(name.to_owned());
            bar
        });
        Line { name: name.to_owned(), bar }
    }
}

impl Line {
    /// Shows a state that lasts a moment; on a terminal only.
    pub fn set_message(&self, text: impl Into<String>) {
        if let Some(bar) = &self.bar {
            bar.set_message(text.into());
        }
    }

    /// Shows a state that a log has, too.
    pub fn state(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(text.to_owned()),
            None => output::note(format_args!("{}: {text}", self.name)),
        }
    }

    /// Shows the compilation of a module of `bytes` bytes until it is dropped. No compiler says how far it is, so the
    /// bar shows the time of an average one.
    pub async fn compiling(&self, started: Instant, bytes: Option<usize>) -> Infallible {
        let Some(bar) = &self.bar else { return std::future::pending().await };
        loop {
            let seconds = started.elapsed().as_secs_f64();
            bar.set_message(compiling(seconds, bytes));
            tokio::time::sleep(TICK).await;
        }
    }

    /// Removes the line from a terminal.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn compiling(seconds: f64, bytes: Option<usize>) -> String {
    let Some(bytes) = bytes else { return format!("compiling, {seconds:.0} s") };
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let expected = (bytes as f64 / BYTES_PER_SECOND).max(1.0);
    let part = (seconds / expected).min(0.97);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to BAR")]
    let full = (part * BAR as f64) as usize;
    let bar = format!("{}{}", "=".repeat(full), " ".repeat(BAR - full));
    format!("compiling [{bar}] {seconds:.0} s of about {expected:.0} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_full_only_when_the_line_changes() {
        assert_eq!(compiling(3.0, None), "compiling, 3 s");
        let text = compiling(5.0, Some(640 * 1024));
        assert_eq!(
            text,
            format!("compiling [{}{}] 5 s of about 10 s", "=".repeat(10), " ".repeat(10))
        );
        assert!(compiling(99.0, Some(640 * 1024)).contains(&format!("{} ]", "=".repeat(19))));
    }
}
