//! The operator: Kubernetes' own objects (Deployments, Jobs, Services, …) for each `Workflow` of a cluster.
//!
//! - [`crd`]: the CustomResourceDefinition, from the fields of the workflow file; [`resource`]: the kind and its status,
//!   which clients share.
//! - [`plan`]: a checked workflow, or all that a cluster cannot do with it; [`objects`]: what is made of a plan.
//! - [`observe`]: what the cluster has of it; [`conditions`]: what the status says about that.
//! - [`reconcile`]: applies, prunes, writes the status; [`endpoints`]: metrics and probes.
//!
//! Invariant: the operator keeps nothing. Objects follow from the Workflow and from what the cluster has.

pub mod conditions;
pub mod crd;
pub mod endpoints;
pub mod objects;
pub mod observe;
pub mod plan;
pub mod reconcile;

pub use cwasi_operator_api::resource;
