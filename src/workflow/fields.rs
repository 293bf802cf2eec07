//! The table of a workflow file's fields: what each one is called, what it may be, and which annotation or field of
//! the OCI configuration it becomes. The reader, the JSON Schema and the table of `docs/workflow.md` are made from it.

mod cluster;
mod fan_in;
mod placement;
pub mod services;
mod triggers;

use cwasi_config::Engine;
use cwasi_config::annotations::{COMPAT_PROTOTYPE, Protocol};

pub use cluster::{INGRESS, SCALE, SERVICE};
pub use fan_in::FAN_IN;
pub use placement::PLACEMENT;
pub use triggers::{REDIS_TRIGGER, TRIGGER};

/// `apiVersion` of the files that this version reads.
pub const API_VERSION: &str = "cwasi.dev/v1alpha1";
/// Most containers of one secondary.
pub const REPLICAS_MAX: u32 = 64;
/// Most pods of one secondary.
pub const PODS_MAX: u32 = 1000;
/// Their `kind`.
pub const KIND: &str = "Workflow";

/// What a value may be. Ranges and syntax of an annotation's value are checked by the runtime's own parser.
#[derive(Clone, Copy, Debug)]
pub enum FieldType {
    Text,
    /// A whole number within these bounds.
    Number(u64, u64),
    /// Where a mount is in a container.
    MountTarget,
    /// A folder of a container.
    Folder,
    /// A duration such as `500ms`.
    Duration,
    /// A size such as `64Mi`.
    Size,
    Choice(&'static [&'static str]),
    /// A list of texts, or one text.
    Texts,
    /// A list of texts.
    List,
    /// A mapping of texts.
    Map,
    /// A mapping with these fields.
    Object(&'static [Field]),
    /// A list of mappings with these fields.
    Objects(&'static [Field]),
    /// A mapping from names to mappings with these fields.
    Named(&'static [Field]),
    /// A mapping that somebody else's schema describes.
    Raw,
}

/// What a field becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The annotation of this name.
    Annotation(&'static str),
    /// A field of the OCI configuration.
    Oci(&'static str),
    /// Something else about containers, images or nodes.
    Deployment(&'static str),
    /// What the operator makes of it in a cluster; elsewhere it means nothing.
    Kubernetes(&'static str),
    /// Its own fields say it.
    Inside,
}

#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name in the file.
    pub name: &'static str,
    /// What it may be.
    pub kind: FieldType,
    pub target: Target,
    pub about: &'static str,
    /// True if the file is wrong without it.
    pub required: bool,
}

impl Field {
    const fn new(name: &'static str, kind: FieldType, target: Target, about: &'static str) -> Self {
        Self { name, kind, target, about, required: false }
    }

    const fn required(self) -> Self {
        Self { required: true, ..self }
    }
}

use FieldType::{
    Choice, Duration, Folder, List, Map, MountTarget, Named, Number, Object, Objects, Raw, Size,
    Text, Texts,
};
use Target::{Annotation, Deployment, Inside, Kubernetes, Oci};

/// Fields of `spec`.
pub const SPEC: &[Field] = &[
    Field::new("functions", Named(FUNCTION), Inside, "functions by their names").required(),
    Field::new(
        "nodes",
        Named(NODE),
        Inside,
        "other containerds than that of the command line, by their names",
    ),
    Field::new(
        "services",
        Named(services::SERVICE),
        Inside,
        "backends that functions need, such as a database, by their names",
    ),
    Field::new("placement", Object(PLACEMENT), Inside, "where a cluster puts the functions"),
    Field::new(
        "podTemplate",
        Raw,
        Kubernetes("merged into the template of every pod"),
        "a part of a PodTemplateSpec: `metadata`, `spec`",
    ),
];

/// Fields of a function.
pub const FUNCTION: &[Field] = &[
    Field::new(
        "module",
        Text,
        Deployment("an image with the file as `/NAME.wasm`, its entrypoint"),
        "path of a `.wasm` file, from the workflow file's folder",
    ),
    Field::new(
        "image",
        Text,
        Deployment("the container's image"),
        "name of an image in containerd",
    ),
    Field::new(
        "role",
        Choice(&["primary", "secondary", "library"]),
        Annotation("cwasi.role"),
        "`primary` (runs once; the default), `secondary` (is called), or `library`: an image for `embed`, no container",
    ),
    Field::new("args", List, Oci("process.args"), "list of arguments after the module's path"),
    Field::new("env", Map, Oci("process.env"), "environment variables"),
    Field::new(
        "workingDir",
        Folder,
        Oci("process.cwd"),
        "absolute path at which relative paths begin, made if it is missing; the image's, or else `/`",
    ),
    Field::new("mounts", Objects(MOUNT), Oci("mounts"), "files and folders of the host"),
    Field::new(
        "replicas",
        Number(1, REPLICAS_MAX as u64),
        Deployment("that many containers"),
        "containers of a secondary: 1 to 64; 1",
    ),
    Field::new(
        "node",
        Text,
        Deployment("the containerd that runs the container"),
        "name from `spec.nodes`; the containerd of the command line",
    ),
    Field::new(
        "concurrency",
        Number(1, 256),
        Annotation("cwasi.concurrency"),
        "worker processes: 1 to 256; as many as requests need",
    ),
    Field::new(
        "queue",
        Number(0, 65_536),
        Annotation("cwasi.queue"),
        "requests that may wait: 0 to 65536; 64",
    ),
    Field::new(
        "timeout",
        Duration,
        Annotation("cwasi.timeout"),
        "longest call or invocation; 60s for calls, none for primaries",
    ),
    Field::new(
        "memory",
        Size,
        Annotation("cwasi.memory"),
        "memory of an instance and all that it embeds, 64KiB to 4GiB; the module's own maximum",
    ),
    Field::new(
        "maxPayload",
        Size,
        Annotation("cwasi.max-payload"),
        "largest payload and response, at most 1GiB; 256MiB",
    ),
    Field::new(
        "maxRequests",
        Number(1, u64::MAX),
        Annotation("cwasi.max-requests"),
        "the container exits after this many requests; never",
    ),
    Field::new(
        "idle",
        Duration,
        Annotation("cwasi.idle"),
        "the workers end after this time without a request, until the next one; never",
    ),
    Field::new(
        "isolation",
        Choice(&["request", "snapshot", "instance"]),
        Annotation("cwasi.isolation"),
        "lifetime of an instance: `request`, `snapshot` or `instance`; `request`",
    ),
    Field::new(
        "engine",
        Choice(&[Engine::Wasmtime.name(), Engine::Wasmedge.name()]),
        Annotation("cwasi.engine"),
        "engine that runs the function: `wasmtime` or `wasmedge`; the node's",
    ),
    Field::new(
        "compat",
        Choice(&[COMPAT_PROTOTYPE]),
        Annotation("cwasi.compat"),
        "ABI of another time: `2023`, that of the paper's prototype; none",
    ),
    Field::new(
        "mode",
        Choice(&["auto", "embedded", "local", "networked"]),
        Annotation("cwasi.mode"),
        "mode of the calls that this function makes: `auto`, `embedded`, `local` or `networked`; `auto`",
    ),
    Field::new(
        "allow",
        Texts,
        Annotation("cwasi.allow"),
        "callers: `function`, `namespace/function`, `namespace/*`, `*`; its own namespace",
    ),
    Field::new(
        "embed",
        Map,
        Annotation("cwasi.embed"),
        "modules in this function's VM: the name that it imports or calls, and a function of this file or an image",
    ),
    Field::new(
        "uses",
        List,
        Deployment(
            "`NAME_SERVICE_HOST` and `NAME_SERVICE_PORT` in its environment, and a destination of `network`",
        ),
        "list of the services that it needs, which start before it; none",
    ),
    Field::new("trust", Text, Annotation("cwasi.trust"), "name of a trust group; none"),
    Field::new(
        "network",
        Texts,
        Annotation("cwasi.network"),
        "destinations that sockets may reach, such as `db.example:5432`; none",
    ),
    Field::new(
        "hostNetwork",
        Choice(&["true", "false"]),
        Oci("linux.namespaces"),
        "`true` gives the function the node's network; `false`: its own, with nothing but 127.0.0.1",
    ),
    Field::new(
        "http",
        Text,
        Annotation("cwasi.http"),
        "HTTP: `gateway` (clients of the node's gateway), a port of the container such as `8080`, or both; none",
    ),
    Field::new(
        "httpMaxHead",
        Size,
        Annotation("cwasi.http.max-head"),
        "largest head of an HTTP request or response, 1KiB to 64KiB; as the node says",
    ),
    Field::new(
        "httpIdleTimeout",
        Duration,
        Annotation("cwasi.http.idle-timeout"),
        "how long its port keeps an idle connection, 1s to 1h; as the node says",
    ),
    Field::new(
        "protocol",
        Choice(&[Protocol::Http.name(), Protocol::Openwhisk.name()]),
        Annotation("cwasi.protocol"),
        "what clients of its port speak: `http`, or `openwhisk`, the action protocol of OpenWhisk; `http`",
    ),
    Field::new(
        "triggers",
        Objects(TRIGGER),
        Annotation("cwasi.triggers"),
        "what runs the function besides calls: messages of others in Redis; none",
    ),
    Field::new("fanIn", Object(FAN_IN), Inside, "runs once for a group of calls"),
    Field::new(
        "trace",
        Text,
        Annotation("cwasi.trace"),
        "`always`, `never`, or the share of its traces that are recorded; as the node says",
    ),
    Field::new(
        "scale",
        Object(SCALE),
        Inside,
        "a cluster changes the number of a secondary's pods",
    ),
    Field::new(
        "schedule",
        Text,
        Kubernetes("a CronJob"),
        "when a primary runs, such as `*/5 * * * *`; a cluster runs it once, when it is applied",
    ),
    Field::new("service", Object(SERVICE), Inside, "address of a function that has a port"),
    Field::new("ingress", Object(INGRESS), Inside, "clients outside of the cluster"),
    Field::new(
        "podTemplate",
        Raw,
        Kubernetes("merged into the template of its pods"),
        "a part of a PodTemplateSpec: `metadata`, `spec`",
    ),
];

/// Fields of a mount.
pub const MOUNT: &[Field] = &[
    Field::new("name", Text, Deployment("nothing: `--input NAME=PATH` finds it"), "for `--input`"),
    Field::new(
        "source",
        Text,
        Oci("mounts[].source"),
        "path on the host, from the workflow file's folder, without symbolic links; required unless `--input` gives it",
    ),
    Field::new("target", MountTarget, Oci("mounts[].destination"), "path in the container")
        .required(),
    Field::new(
        "readOnly",
        Choice(&["true", "false"]),
        Oci("mounts[].options"),
        "`true` forbids writing; `false`",
    ),
];

/// Fields of a node.
pub const NODE: &[Field] = &[
    Field::new("address", Text, Deployment("containerd's socket"), "containerd's socket")
        .required(),
    Field::new(
        "config",
        Text,
        Deployment("the node's configuration, read to find its state folder"),
        "the node's configuration file; `CWASI_CONFIG` or `/etc/cwasi/config.toml`",
    ),
];

/// The annotations that no field becomes, and why.
pub const NOT_IN_THE_FILE: [(&str, &str); 3] = [
    ("cwasi.function", "the function's key in `spec.functions`"),
    ("cwasi.workflow", "`metadata.name`"),
    ("cwasi.secondary.function", "`role: secondary`"),
];

/// Every field of a function, those inside others with their path.
pub fn all(fields: &'static [Field]) -> Vec<(String, &'static Field)> {
    let mut found = Vec::new();
    for field in fields {
        found.push((field.name.to_owned(), field));
        let (inner, between) = match field.kind {
            Object(inner) => (inner, "."),
            Objects(inner) => (inner, "[]."),
            _ => continue,
        };
        let inner = all(inner).into_iter();
        found.extend(inner.map(|(path, inner)| (format!("{}{between}{path}", field.name), inner)));
    }
    found
}

#[cfg(test)]
mod tests {
    use cwasi_config::annotations::KEYS;

    use super::*;

    #[test]
    fn every_annotation_is_one_field() {
        for key in KEYS {
            let fields = all(FUNCTION);
            let fields = fields.iter().filter(|(_, field)| field.target == Annotation(key)).count();
            let elsewhere = NOT_IN_THE_FILE.iter().filter(|(other, _)| *other == key).count();
            assert_eq!(fields + elsewhere, 1, "{key}");
        }
        for (path, field) in all(FUNCTION) {
            if let Annotation(key) = field.target {
                assert!(
                    KEYS.contains(&key),
                    "{path} becomes {key}, which the runtime does not know"
                );
            }
        }
    }
}
