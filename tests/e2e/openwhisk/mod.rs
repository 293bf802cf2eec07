//! End to end on a real containerd: functions with `cwasi.protocol=openwhisk` speak OpenWhisk's action protocol.
//!
//! - [`basic`]: the ten cases of OpenWhisk's `BasicActionRunnerTests`, each named as there.
//! - [`pods`]: a pod as OpenWhisk's Kubernetes factory makes it.
//! - [`precompiled`]: code that was compiled and signed elsewhere.
//! - [`faults`]: what a platform or a stranger may do wrong, and what may happen to an action.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod basic;
mod faults;
mod fixture;
mod pods;
mod precompiled;
