//! How many workers a function has. Pure.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::annotations::{FunctionSpec, Protocol};
use cwasi_wire::control::{Isolation, Role};

/// Most workers of a function without `cwasi.concurrency`, unless the node says otherwise.
pub const WORKERS_MAX_DEFAULT: u32 = 32;
/// Largest value of the node's `workers_max`.
const WORKERS_MAX_MAX: u32 = 256;

/// The numbers of a function's workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// Those that it always has.
    pub least: u32,
    /// Those that it has at most, while requests wait.
    pub most: u32,
    /// Why their number is fixed; `None` when it is not.
    pub fixed: Option<Fixed>,
}

/// Why a function's number of workers is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fixed {
    /// `cwasi.concurrency` says it.
    Given,
    /// A primary runs once.
    Primary,
    /// What an instance keeps is kept once.
    Instance,
    /// It handles one group after the other.
    FanIn,
    /// Messages run one after the other.
    Triggers,
    /// The container ends after a number of requests, which are counted one by one.
    MaxRequests,
    /// OpenWhisk decides how many activations a container gets.
    Openwhisk,
    /// The node's `workers_max` is 1.
    Node,
}

impl Workers {
    /// Those of a function on a node with this `workers_max`.
    #[must_use]
    pub fn of(spec: &FunctionSpec, workers_max: u32) -> Self {
        let fixed = |least, why| Self { least, most: least, fixed: Some(why) };
        if let Some(given) = spec.concurrency {
            return fixed(given, Fixed::Given);
        }
        let why = if spec.role == Role::Primary {
            Fixed::Primary
        } else if spec.isolation == Isolation::Instance {
            Fixed::Instance
        } else if spec.fan_in.is_some() {
            Fixed::FanIn
        } else if !spec.triggers.is_empty() {
            Fixed::Triggers
        } else if spec.max_requests > 0 {
            Fixed::MaxRequests
        } else if spec.protocol == Protocol::Openwhisk {
            Fixed::Openwhisk
        } else if workers_max <= 1 {
            Fixed::Node
        } else {
            return Self { least: 1, most: workers_max, fixed: None };
        };
        fixed(1, why)
    }

    /// Checks the node's `workers_max`.
    ///
    /// # Errors
    /// Says what the value may be.
    pub fn check_max(workers_max: u32) -> Result<(), String> {
        if (1..=WORKERS_MAX_MAX).contains(&workers_max) {
            return Ok(());
        }
        Err(format!("workers_max = {workers_max} must be from 1 to {WORKERS_MAX_MAX}"))
    }
}

/// For people: the number, and why.
impl fmt::Display for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { least, most, fixed } = self;
        let why = match fixed {
            None => {
                return write!(
                    f,
                    "{least}, up to {most} while requests wait and workers sleep or processors are free"
                );
            }
            Some(Fixed::Given) => "as cwasi.concurrency says",
            Some(Fixed::Primary) => "a primary runs once",
            Some(Fixed::Instance) => "cwasi.isolation=instance keeps its state in one",
            Some(Fixed::FanIn) => "cwasi.fan-in handles one group after the other",
            Some(Fixed::Triggers) => "messages of cwasi.triggers run one after the other",
            Some(Fixed::MaxRequests) => "cwasi.max-requests counts one request after the other",
            Some(Fixed::Openwhisk) => "OpenWhisk says how many activations it gets",
            Some(Fixed::Node) => "workers_max of its node is 1",
        };
        write!(f, "{least}, {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(annotations: &[(&str, &str)]) -> Workers {
        let all = annotations.iter().copied().chain([("cwasi.role", "secondary")]);
        Workers::of(&FunctionSpec::parse(all).unwrap(), 8)
    }

    #[test]
    fn the_number_is_fixed_where_more_would_change_what_a_function_does() {
        assert_eq!(of(&[]), Workers { least: 1, most: 8, fixed: None });
        assert_eq!(of(&[("cwasi.isolation", "snapshot")]).most, 8);
        let given = of(&[("cwasi.concurrency", "3")]);
        assert_eq!((given.least, given.most, given.fixed), (3, 3, Some(Fixed::Given)));
        for (annotation, why) in [
            (("cwasi.isolation", "instance"), Fixed::Instance),
            (("cwasi.fan-in", "2"), Fixed::FanIn),
            (("cwasi.triggers", "redis-stream:a:s"), Fixed::Triggers),
            (("cwasi.max-requests", "5"), Fixed::MaxRequests),
        ] {
            let workers = of(&[annotation]);
            assert_eq!((workers.least, workers.most, workers.fixed), (1, 1, Some(why)));
            assert!(workers.to_string().starts_with("1, "), "{workers}");
        }
        let openwhisk = of(&[("cwasi.http", "8080"), ("cwasi.protocol", "openwhisk")]);
        assert_eq!(openwhisk.fixed, Some(Fixed::Openwhisk));
        let spec = FunctionSpec::parse([("cwasi.role", "secondary")]).unwrap();
        assert_eq!(Workers::of(&spec, 1).fixed, Some(Fixed::Node));
        assert_eq!(Workers::of(&FunctionSpec::parse([]).unwrap(), 8).fixed, Some(Fixed::Primary));
    }

    #[test]
    fn a_nodes_bound_is_a_number_of_workers() {
        assert_eq!(Workers::check_max(1), Ok(()));
        assert_eq!(Workers::check_max(256), Ok(()));
        assert!(Workers::check_max(0).unwrap_err().contains("from 1 to 256"));
    }
}
