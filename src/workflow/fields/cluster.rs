//! Fields of a function's scale and addresses in a cluster.

use super::FieldType::{Duration, Number, Text};
use super::Target::Kubernetes;
use super::{Field, PODS_MAX, REPLICAS_MAX};

/// Fields of a scale.
pub const SCALE: &[Field] = &[
    Field::new(
        "min",
        Number(0, REPLICAS_MAX as u64),
        Kubernetes("HorizontalPodAutoscaler `minReplicas`"),
        "fewest pods; 0: calls and messages start the first one, with KEDA; 1",
    ),
    Field::new(
        "max",
        Number(1, PODS_MAX as u64),
        Kubernetes("HorizontalPodAutoscaler `maxReplicas`"),
        "most pods",
    )
    .required(),
    Field::new(
        "target",
        Number(1, 1000),
        Kubernetes("HorizontalPodAutoscaler `averageUtilization`"),
        "CPU time that a pod uses on average, in percent of its request, if `min` is not 0; 80",
    ),
    Field::new(
        "calls",
        Number(1, 1_000_000),
        Kubernetes("ScaledObject, target of the metric `calls`"),
        "calls and messages that a pod has on average, if `min` is 0; `concurrency`, or 1",
    ),
    Field::new(
        "cooldown",
        Duration,
        Kubernetes("ScaledObject `cooldownPeriod`"),
        "time without calls and messages after which the last pod ends, if `min` is 0; `5m`",
    ),
];

/// Fields of the Service of a function that has a port.
pub const SERVICE: &[Field] = &[Field::new(
    "port",
    Number(1, 65_535),
    Kubernetes("Service `port`"),
    "port of the Service; 80",
)];

/// Fields of an ingress.
pub const INGRESS: &[Field] = &[
    Field::new("host", Text, Kubernetes("Ingress `host`"), "name by which clients ask; any"),
    Field::new("path", Text, Kubernetes("Ingress `path`"), "first part of the URLs' paths; `/`"),
    Field::new(
        "class",
        Text,
        Kubernetes("Ingress `ingressClassName`"),
        "class of the controller that serves it; the cluster's default",
    ),
    Field::new(
        "tls",
        Text,
        Kubernetes("Ingress `tls`"),
        "name of a Secret with the certificate of `host`; no TLS",
    ),
    Field::new(
        "gateway",
        Text,
        Kubernetes("HTTPRoute `parentRefs`, instead of an Ingress"),
        "Gateway that serves it, as NAME or NAMESPACE/NAME; an Ingress, not a Gateway",
    ),
];
