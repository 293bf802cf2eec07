//! What the operator and its clients agree on. The operator writes it, and `cwasi … --kube` reads it.
//!
//! - [`resource`]: the kind `Workflow` and its status; [`names`]: labels and names of what belongs to a Workflow.

pub mod names;
pub mod resource;
