//! Workers and queues of a group's secondaries. Runs in the shim daemon.
//!
//! Invariant: reports are untrusted. An instance's count of refusals never falls, and sums do not wrap.

use std::collections::BTreeMap;

use super::snapshot::{FunctionGauges, FunctionKey, FunctionSnapshot};
use cwasi_wire::control::FunctionReport;

#[derive(Debug, Default)]
struct Function {
    /// Refusals of the instances that ended.
    refused: u64,
    instances: BTreeMap<String, FunctionReport>,
}

/// The secondaries. The group's containers bound their number.
#[derive(Debug, Default)]
pub struct FunctionTable {
    functions: BTreeMap<FunctionKey, Function>,
    dirty: bool,
}

impl FunctionTable {
    /// Replaces what is known about an instance.
    pub fn set(&mut self, key: &FunctionKey, instance: &str, mut report: FunctionReport) {
        let function = self.functions.entry(key.clone()).or_default();
        if let Some(before) = function.instances.get(instance) {
            report.refused = report.refused.max(before.refused);
        }
        function.instances.insert(instance.to_owned(), report);
        self.dirty = true;
    }

    pub fn end(&mut self, key: &FunctionKey, instance: &str) {
        let Some(function) = self.functions.get_mut(key) else { return };
        if let Some(last) = function.instances.remove(instance) {
            function.refused = function.refused.saturating_add(last.refused);
            self.dirty = true;
        }
    }

    /// The content of the file, if it changed since the last time.
    pub fn changed(&mut self) -> Option<Vec<FunctionSnapshot>> {
        let lines = self.functions.iter().map(|(key, function)| {
            let refused = function.refused;
            let mut gauges = FunctionGauges { refused, ..FunctionGauges::default() };
            for report in function.instances.values() {
                gauges.add(&FunctionGauges {
                    instances: 1,
                    workers: report.workers,
                    busy: report.busy,
                    queued: report.queued,
                    refused: report.refused,
                    pool_bytes: report.pool_bytes,
                });
            }
            FunctionSnapshot { key: key.clone(), gauges }
        });
        std::mem::take(&mut self.dirty).then(|| lines.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_stay_when_an_instance_ends_and_never_fall() {
        let key = FunctionKey { function: "f".into(), ..FunctionKey::default() };
        let report = |refused, queued| FunctionReport {
            workers: 2,
            busy: 1,
            queued,
            refused,
            pool_bytes: 10,
            ..FunctionReport::default()
        };
        let mut table = FunctionTable::default();
        table.set(&key, "a", report(5, 3));
        table.set(&key, "a", report(4, u64::MAX));
        table.set(&key, "b", report(1, 1));
        let [line] = table.changed().unwrap().try_into().unwrap();
        let all = FunctionGauges {
            instances: 2,
            workers: 4,
            busy: 2,
            queued: u64::MAX,
            refused: 6,
            pool_bytes: 20,
        };
        assert_eq!(line, FunctionSnapshot { key: key.clone(), gauges: all });
        assert_eq!(table.changed(), None);
        table.end(&key, "a");
        table.end(&key, "b");
        table.end(&key, "b");
        let [line] = table.changed().unwrap().try_into().unwrap();
        assert_eq!(line.gauges, FunctionGauges { refused: 6, ..FunctionGauges::default() });
    }
}
