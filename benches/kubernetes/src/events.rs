//! Starts of tasks on the node, as `ctr events` writes containerd's events. Their times have nanoseconds, while a kubelet
//! looks at its containers once a second.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};

/// Of the event of a started task.
const START: &str = "/tasks/start";
/// Between two looks at the file, and how many.
const POLL: Duration = Duration::from_millis(10);
const POLLS_MAX: u32 = 1000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Time since midnight, UTC: the machines of the test cluster share one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay(Duration);

impl TimeOfDay {
    #[must_use]
    pub fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = since_epoch.as_secs() % DAY.as_secs();
        Self(Duration::new(seconds, since_epoch.subsec_nanos()))
    }

    /// Reads `07:52:11.1234`.
    fn read(text: &str) -> Option<Self> {
        let (hours, rest) = text.split_once(':')?;
        let (minutes, seconds) = rest.split_once(':')?;
        let minutes = hours.parse::<u32>().ok()? * 60 + minutes.parse::<u32>().ok()?;
        let seconds = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
        Some(Self(Duration::from_secs(u64::from(minutes) * 60) + seconds))
    }

    /// Milliseconds from another time to this one, less than half a day after it or before it.
    #[must_use]
    pub fn millis_since(self, other: Self) -> f64 {
        let (day, difference) = (DAY.as_secs_f64(), self.0.as_secs_f64() - other.0.as_secs_f64());
        1e3 * (difference - day * (difference / day).round())
    }
}

/// The file to which `ctr events` writes.
#[derive(Debug)]
pub struct Events {
    path: PathBuf,
    /// Where the pod's events begin.
    from: u64,
}

impl Events {
    #[must_use]
    pub const fn new(path: PathBuf) -> Self {
        Self { path, from: 0 }
    }

    /// Forgets what was written until now.
    ///
    /// # Errors
    /// When there is no file.
    pub fn skip(&mut self) -> Result<()> {
        let file = std::fs::metadata(&self.path);
        self.from = file.with_context(|| self.path.display().to_string())?.len();
        Ok(())
    }

    /// When the last task has started.
    ///
    /// # Errors
    /// When the file cannot be read, or has no such event within ten seconds.
    pub async fn last_start(&self) -> Result<TimeOfDay> {
        for _ in 0..POLLS_MAX {
            if let Some(started) = last_start(&self.text()?) {
                return Ok(started);
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("{} has no start of a task: does `ctr events` run?", self.path.display())
    }

    fn text(&self) -> Result<String> {
        let mut text = String::new();
        let mut read = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(self.from))?;
            file.read_to_string(&mut text)
        };
        read().with_context(|| self.path.display().to_string())?;
        Ok(text)
    }
}

/// Of lines such as `2026-11-29 07:52:11.1234 +0000 UTC k8s.io /tasks/start {"container_id":"a","pid":7}`.
fn last_start(text: &str) -> Option<TimeOfDay> {
    let is_start = |line: &&str| line.split(' ').any(|word| word == START);
    let line = text.lines().rfind(is_start)?;
    TimeOfDay::read(line.split(' ').nth(1)?)
}

#[cfg(test)]
mod tests {
    use super::{TimeOfDay, last_start};

    const EVENTS: &str = r#"2026-11-29 23:59:59.25 +0000 UTC k8s.io /tasks/start {"container_id":"sandbox","pid":7}
2026-11-29 23:59:59.5 +0000 UTC k8s.io /containers/create {"id":"function"}
2026-11-29 23:59:59.750000001 +0000 UTC k8s.io /tasks/start {"container_id":"function","pid":8}
2026-11-30 00:00:01 +0000 UTC k8s.io /tasks/exit {"container_id":"sandbox","pid":7}
"#;

    #[test]
    fn the_last_start_is_the_functions() {
        let started = last_start(EVENTS).unwrap();
        let scheduled = TimeOfDay::read("23:59:59.0").unwrap();
        assert!((started.millis_since(scheduled) - 750.0).abs() < 1e-3);
        assert_eq!(last_start("2026-11-29 07:52:11 +0000 UTC k8s.io /tasks/exit {}\n"), None);
    }

    #[test]
    fn midnight_is_no_day_between() {
        let [before, after] =
            ["23:59:59.9", "00:00:00.1"].map(|text| TimeOfDay::read(text).unwrap());
        assert!((after.millis_since(before) - 200.0).abs() < 1e-3);
        assert!((before.millis_since(after) + 200.0).abs() < 1e-3);
    }
}
