//! Fields of a service: a backend that functions need.

use super::Field;
use super::FieldType::{Choice, Duration, Folder, List, Map, Number, Object, Raw, Size, Text};
use super::Target::{Deployment, Inside, Kubernetes, Oci};

/// Fields of a service.
pub const SERVICE: &[Field] = &[
    Field::new(
        "image",
        Text,
        Deployment("the container's image"),
        "name of an image in containerd",
    )
    .required(),
    Field::new(
        "port",
        Number(1, 65_535),
        Deployment("`NAME_SERVICE_PORT` of its users; Kubernetes: a Service"),
        "TCP port that it listens on",
    )
    .required(),
    Field::new(
        "command",
        List,
        Oci("process.args"),
        "list with the program and its first arguments; the image's entrypoint",
    ),
    Field::new("args", List, Oci("process.args"), "list of further arguments; the image's"),
    Field::new("env", Map, Oci("process.env"), "environment variables"),
    Field::new(
        "user",
        Text,
        Oci("process.user"),
        "numbers `UID` or `UID:GID` of the user that runs it; the image's",
    ),
    Field::new(
        "hostNetwork",
        Choice(&["true", "false"]),
        Oci("linux.namespaces"),
        "`true` gives the service the node's network; `false`: that of the functions that use it",
    ),
    Field::new(
        "health",
        Object(HEALTH),
        Inside,
        "when it is ready; when its port takes connections",
    ),
    Field::new("storage", Object(STORAGE), Inside, "a folder that outlives its container; none"),
    Field::new(
        "podTemplate",
        Raw,
        Kubernetes("merged into the template of its pod"),
        "a part of a PodTemplateSpec: `metadata`, `spec`",
    ),
];

/// Fields of a health check.
pub(crate) const HEALTH: &[Field] = &[
    Field::new(
        "command",
        List,
        Deployment("a process in its container; Kubernetes: an `exec` probe"),
        "list with a program and its arguments, which ends with 0 when the service is ready",
    ),
    Field::new(
        "http",
        Text,
        Deployment("a GET request; Kubernetes: an `httpGet` probe"),
        "path such as `/healthz`, which its port answers with a status from 200 to 399",
    ),
    Field::new(
        "timeout",
        Duration,
        Deployment("the bound of the start; Kubernetes: startupProbe `failureThreshold`"),
        "longest time until it is ready; 60s",
    ),
];

/// Fields of a storage.
pub(crate) const STORAGE: &[Field] = &[
    Field::new(
        "path",
        Folder,
        Deployment("a mount of a folder of the node; Kubernetes: of a PersistentVolumeClaim"),
        "absolute path in the container",
    )
    .required(),
    Field::new(
        "size",
        Size,
        Kubernetes("PersistentVolumeClaim `resources.requests.storage`"),
        "what a cluster reserves; `1Gi`",
    ),
    Field::new(
        "class",
        Text,
        Kubernetes("PersistentVolumeClaim `storageClassName`"),
        "kind of storage; the cluster's default",
    ),
];
