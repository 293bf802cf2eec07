//! Stages of the starts of a group's containers, and their runs. Runs in the shim daemon.
//!
//! What comes before `ready` is the thesis' *init* of a function, what comes after it its *run*. Times between stages
//! belong to containerd.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use cwasi_coordinator::plan::PlannedCode;

/// Where a module's native code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CodeSource {
    Compiled,
    /// The node's cache had it.
    Cached,
}

/// The stages of one container, in microseconds. A stage that has not ended yet is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartStages {
    pub namespace: String,
    pub container: String,
    /// Begin of the start, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// Mount its root, read its bundle, find and check its module, choose what to embed; open streams and sockets.
    pub plan_us: u64,
    /// Compile its modules, or find them in the cache; none for a native container.
    pub code_us: Option<u64>,
    /// Where the native code came from.
    pub code: Option<CodeSource>,
    /// Build the container; this loads the native code.
    pub container_us: Option<u64>,
    /// From containerd's start to a workload that runs: workers forked, first instances made, registered.
    pub ready_us: Option<u64>,
    /// From ready to the end of its init.
    pub run_us: Option<u64>,
    pub exit: Option<u32>,
}

impl StartStages {
    /// A start that begins now.
    #[must_use]
    pub fn begin(namespace: &str, container: &str) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began_unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let (namespace, container) = (namespace.to_owned(), container.to_owned());
        Self { namespace, container, began_unix_ms, ..Self::default() }
    }

    /// Records the plan, which took this time together with its native code.
    pub fn planned(&mut self, took: Duration, code: Option<PlannedCode>) {
        let code_took = code.map_or(Duration::ZERO, |code| code.took);
        self.plan_us = micros(took.saturating_sub(code_took));
        self.code_us = code.map(|code| micros(code.took));
        self.code = code.map(|code| match code.compiled {
            true => CodeSource::Compiled,
            false => CodeSource::Cached,
        });
    }

    /// The time of all stages of its start, if they have ended.
    #[must_use]
    pub fn init_us(&self) -> Option<u64> {
        let code = self.code_us.unwrap_or(0);
        let stages = [self.plan_us, code, self.container_us?, self.ready_us?];
        Some(stages.into_iter().fold(0, u64::saturating_add))
    }
}

/// Microseconds of a duration.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The starts of the group's containers. The group's containers bound their number.
#[derive(Debug, Default)]
pub struct StartTable {
    starts: BTreeMap<String, StartStages>,
    dirty: bool,
}

impl StartTable {
    /// Replaces what is known about a container.
    pub fn set(&mut self, stages: StartStages) {
        self.starts.insert(stages.container.clone(), stages);
        self.dirty = true;
    }

    /// Records the end of a container's init.
    pub fn end(&mut self, container: &str, run: Option<Duration>, exit: u32) {
        if let Some(stages) = self.starts.get_mut(container) {
            stages.run_us = run.map(micros);
            stages.exit = Some(exit);
            self.dirty = true;
        }
    }

    /// Removes a deleted container.
    pub fn remove(&mut self, container: &str) {
        self.dirty |= self.starts.remove(container).is_some();
    }

    /// The content of the file, if it changed since the last time.
    pub fn changed(&mut self) -> Option<Vec<&StartStages>> {
        std::mem::take(&mut self.dirty).then(|| self.starts.values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_init_is_the_sum_of_its_stages() {
        let mut stages = StartStages::begin("n", "c");
        stages.plan_us = 1;
        stages.container_us = Some(20);
        assert_eq!(stages.init_us(), None);
        stages.code_us = Some(300);
        stages.ready_us = Some(4000);
        assert_eq!(stages.init_us(), Some(4321));
        let mut table = StartTable::default();
        table.set(stages);
        table.end("c", Some(Duration::from_millis(7)), 137);
        table.end("other", None, 0);
        let [line] = table.changed().unwrap().try_into().unwrap();
        assert_eq!((line.run_us, line.exit), (Some(7000), Some(137)));
        assert!(table.changed().is_none());
        table.remove("c");
        assert_eq!(table.changed(), Some(Vec::new()));
    }
}
