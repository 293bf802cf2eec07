//! What runs a function besides calls, and how often it exists: its triggers, its schedule, its scale, its workers.

use cwasi_config::triggers::Trigger;
use cwasi_config::{FunctionSpec, Workers};
use cwasi_coordinator::registry::Record;
use cwasi_wire::control::Role;
use cwasi_workflow::{Function, Scale};
use serde::Serialize;

use crate::failure::{Exit, Failure};

const TRIGGERS: &str = "cwasi.triggers";

/// What runs a function besides calls. Empty fields are those that it does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Activation {
    /// Entries of `cwasi.triggers`.
    pub triggers: Vec<String>,
    /// When a cluster runs a primary, as a CronJob has it. A workflow file says it.
    pub schedule: Option<String>,
    /// The numbers of pods of a secondary on a cluster. A workflow file says them.
    pub scale: Option<PodNumbers>,
    /// The workers of each of its instances; a primary has one.
    pub workers: Option<Workers>,
}

/// The field `scale` of a workflow file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodNumbers {
    min: u32,
    max: u32,
    /// CPU time in percent of a pod's request that adds a pod; `None` with `min: 0`.
    target_percent: Option<u32>,
    /// Calls of a pod that add a pod, with `min: 0`; `None` = `concurrency`, or 1.
    calls: Option<u32>,
    /// Time without calls after which the last pod ends; `None` unless `min: 0`.
    cooldown_seconds: Option<u64>,
}

impl From<Scale> for PodNumbers {
    fn from(scale: Scale) -> Self {
        let Scale { min, max, target, calls, cooldown } = scale;
        let is_at_zero = min == 0;
        Self {
            min,
            max,
            target_percent: (!is_at_zero).then_some(target),
            calls: calls.filter(|_| is_at_zero),
            cooldown_seconds: is_at_zero.then_some(cooldown.as_secs()),
        }
    }
}

impl PodNumbers {
    fn text(&self) -> String {
        let Self { min, max, target_percent, calls, cooldown_seconds } = self;
        let by = match (target_percent, calls) {
            (Some(target), _) => format!("at {target} % of the requested CPU time"),
            (None, Some(calls)) => format!("by calls, {calls} in a pod"),
            (None, None) => "by calls, 1 in a pod or as many as concurrency says".to_owned(),
        };
        let end = cooldown_seconds.map_or_else(String::new, |seconds| {
            format!(", the last one until {seconds} s without a call")
        });
        format!("{min} to {max} pods on a cluster, {by}{end}")
    }
}

impl Activation {
    /// Of a container, whose annotations say no more.
    pub fn of_triggers(triggers: &[Trigger]) -> Self {
        let triggers = triggers.iter().map(Trigger::to_string).collect();
        Self { triggers, ..Self::default() }
    }

    /// Of a registered instance.
    pub fn of_instance(record: &Record) -> Self {
        Self { workers: record.workers, ..Self::of_triggers(&record.triggers) }
    }

    /// With the workers that a secondary has on a node with this `workers_max`.
    pub fn with_workers(self, spec: &FunctionSpec, workers_max: u32) -> Self {
        let is_called = spec.role == Role::Secondary;
        Self { workers: is_called.then(|| Workers::of(spec, workers_max)), ..self }
    }

    /// Of a function of a workflow file.
    ///
    /// # Errors
    /// When `cwasi.triggers` is wrong.
    pub fn of_function(function: &Function) -> Result<Self, Failure> {
        let triggers = function.annotations.get(TRIGGERS).map(|value| {
            Trigger::list(value).map_err(|problem| {
                let text = format!("function {}: {TRIGGERS}={value} {problem}", function.name);
                Failure::text(Exit::Data, text)
            })
        });
        let triggers = triggers.transpose()?.unwrap_or_default();
        let (schedule, scale) = (function.cluster.schedule.clone(), function.cluster.scale);
        Ok(Self { schedule, scale: scale.map(PodNumbers::from), ..Self::of_triggers(&triggers) })
    }

    /// A line for each of them: what it is, and its value.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let triggers = self.triggers.iter().map(|trigger| ("trigger", trigger.clone()));
        let schedule = self.schedule.iter().map(|schedule| ("schedule", schedule.clone()));
        let scale = self.scale.iter().map(|scale| ("scale", scale.text()));
        let workers = self.workers.iter().map(|workers| ("workers", workers.to_string()));
        triggers.chain(schedule).chain(scale).chain(workers).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_trigger_schedule_and_scale_has_a_line() {
        let scale = Scale { min: 1, max: 10, target: 80, calls: None, cooldown: Duration::ZERO };
        let zero = Scale { min: 0, calls: Some(8), cooldown: Duration::from_secs(300), ..scale };
        let workers = Scale { calls: None, ..zero };
        let text = |scale: Scale| PodNumbers::from(scale).text();
        assert_eq!(text(scale), "1 to 10 pods on a cluster, at 80 % of the requested CPU time");
        let last = ", the last one until 300 s without a call";
        assert_eq!(text(zero), format!("0 to 10 pods on a cluster, by calls, 8 in a pod{last}"));
        let usual =
            "0 to 10 pods on a cluster, by calls, 1 in a pod or as many as concurrency says";
        assert_eq!(text(workers), format!("{usual}{last}"));
        let stream = Trigger::RedisStream("shop:orders".to_owned());
        let channel = Trigger::RedisChannel("shop:alarms".to_owned());
        let all = Activation {
            schedule: Some("0 3 * * *".to_owned()),
            scale: Some(scale.into()),
            ..Activation::of_triggers(&[stream, channel])
        };
        let lines = [
            ("trigger", "redis-stream:shop:orders".to_owned()),
            ("trigger", "redis-channel:shop:alarms".to_owned()),
            ("schedule", "0 3 * * *".to_owned()),
            ("scale", text(scale)),
        ];
        assert_eq!(all.lines(), lines);
        assert_eq!(Activation::default().lines(), []);
    }
}
