//! The operator: Kubernetes' own objects (Deployments, Jobs, Services, …) for each `Workflow` of a cluster.
//!
//! - [`crd`]: the CustomResourceDefinition, from the fields of the workflow file; [`resource`]: the kind and its status,
//!   which clients share.
//! - [`plan`]: a checked workflow, or all that a cluster cannot do with it; [`objects`]: what is made of a plan;
//!   `replicas`: functions whose number of pods others decide; `fewest_pods`: how many one has at least.
//! - [`cache`]: what the watches show; [`observe`]: what the cluster has of a Workflow; [`conditions`]: what the status
//!   says about that; `workload_status`: of single workloads; `service_status`: of services.
//! - [`edges`]: how calls move, by the nodes' metrics; [`placement`]: where functions should be for it.
//! - [`controller`]: when Workflows are reconciled; [`reconcile`]: once, with its [`context`]; [`apply`]: writes and
//!   deletes objects; [`publish`]: a part of the status; [`endpoints`]: metrics and probes.
//! - [`scaler`]: the calls of functions that are started on demand, for KEDA. [`leader`]: whether the Lease is still
//!   this process'.
//!
//! Invariant: the operator keeps nothing but the last minutes' counters, and a copy of what the API has. Objects follow
//! from the Workflow, its status included, and from what the cluster has.

pub mod apply;
pub mod cache;
pub mod conditions;
pub mod context;
pub mod controller;
pub mod crd;
pub mod edges;
pub mod endpoints;
mod fewest_pods;
pub mod leader;
pub mod objects;
pub mod observe;
pub mod placement;
pub mod plan;
pub mod publish;
pub mod reconcile;
mod replicas;
pub mod scaler;
mod service_status;
mod workload_status;

pub use cwasi_operator_api::resource;
