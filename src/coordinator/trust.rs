//! Decides which modules may run in a function's VM: a pure function of the deployment (`docs/embedding.md`). Runs
//! in processes of the host.
//!
//! Invariant: neither contents nor name of an image make it trusted. Annotations of containers grant trust, within
//! one identity scope and one workflow or trust group:
//!
//! - the caller's `cwasi.embed` names the image (in a pod with its digest, because there the name may be another
//!   tenant's), or
//! - a container of that image is deployed in the caller's scope and group, under the wanted name.
//!
//! A VM has one engine: what is deployed under that name for another engine is not embedded.

use cwasi_config::Engine;
use cwasi_config::annotations::Embed;
use cwasi_wire::ids::Identity;

/// Most candidates in one message.
const CANDIDATES_SHOWN: usize = 4;

/// The function that embeds modules.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingCaller<'a> {
    pub identity: &'a Identity,
    /// Its workflow, empty when there is none.
    pub workflow: &'a str,
    /// Its trust group, empty when there is none.
    pub trust: &'a str,
    /// The engine of its VM, for which embedded modules are compiled.
    pub engine: Engine,
}

/// An image of the caller's containerd namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub name: String,
    /// Digest that the name points to, `sha256:…`.
    pub digest: String,
}

/// A function's container in the caller's containerd namespace, running or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    pub container: String,
    /// Image that it was made from.
    pub image: String,
    /// Module inside that image, as its command names it.
    pub path: String,
    /// Kubernetes namespace of its pod; empty outside Kubernetes.
    pub pod_namespace: String,
    pub function: String,
    /// Its workflow, empty when there is none.
    pub workflow: String,
    /// Its trust group, empty when there is none.
    pub trust: String,
    /// Its engine; `None` = the node's.
    pub engine: Option<Engine>,
}

#[derive(Clone, Copy, Debug)]
pub struct NodeFacts<'a> {
    /// Images of the namespace.
    pub images: &'a [Image],
    /// Functions of the namespace, the caller's own container left out.
    pub deployments: &'a [Deployment],
    /// Trust groups that may span scopes (node configuration).
    pub spanning: &'a [String],
    /// Engine of functions that name none (node configuration).
    pub engine: Engine,
}

/// A module that may be embedded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub image: Image,
    /// The module in the image, if the deployment names it.
    pub path: Option<String>,
    /// The reason for trust, for people.
    pub reason: String,
}

/// A module that may not be embedded, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub why: String,
}

/// Decides about one module. `wish` is the caller's entry for it in `cwasi.embed`.
///
/// # Errors
/// The reason for a refusal, with the candidates.
pub fn judge(
    name: &str,
    wish: Option<&Embed>,
    caller: EmbeddingCaller<'_>,
    known: &NodeFacts<'_>,
) -> Result<Grant, Refusal> {
    match wish.and_then(|wish| wish.image.as_deref().map(|image| (wish, image))) {
        Some((wish, image)) => {
            let grant = named(image, wish.digest.as_deref(), caller, known)?;
            match only_other_engine(name, &grant.image, caller, known) {
                Some(why) => refuse(why),
                None => Ok(grant),
            }
        }
        None => deployed(name, caller, known),
    }
}

/// The caller's `cwasi.embed` names the image.
fn named(
    wanted: &str,
    pinned: Option<&str>,
    caller: EmbeddingCaller<'_>,
    known: &NodeFacts<'_>,
) -> Result<Grant, Refusal> {
    let Some(image) = known.images.iter().find(|image| same_image(&image.name, wanted)) else {
        let namespace = &caller.identity.namespace;
        return refuse(format!(
            "cwasi.embed names the image {wanted}, which containerd does not have in namespace `{namespace}`: pull it"
        ));
    };
    let grant =
        |reason: &str| Ok(Grant { image: image.clone(), path: None, reason: reason.to_owned() });
    match pinned {
        Some(pinned) if pinned == image.digest => grant("embedded: pinned in cwasi.embed"),
        Some(pinned) => refuse(format!(
            "cwasi.embed pins {wanted} to {pinned}, but containerd has {} under that name",
            image.digest
        )),
        None if caller.identity.pod_namespace.is_empty() => grant("embedded: named in cwasi.embed"),
        None => {
            let of_image = |deployment: &&Deployment| same_image(&deployment.image, &image.name);
            let grants = known.deployments.iter().filter(of_image);
            match grants.filter_map(|one| vouches(one, caller, known).ok()).next() {
                Some(reason) => grant(&reason),
                None => refuse(format!(
                    "in a pod the name {wanted} alone is not enough, images of all pods are together: pin it with \
                     cwasi.embed=…={wanted}@{}, or run a container of it in the same Kubernetes namespace and the \
                     same cwasi.workflow or cwasi.trust",
                    image.digest
                )),
            }
        }
    }
}

/// No image is named: a deployed function of that name may make its image trusted.
fn deployed(
    name: &str,
    caller: EmbeddingCaller<'_>,
    known: &NodeFacts<'_>,
) -> Result<Grant, Refusal> {
    let mut grants: Vec<Grant> = Vec::new();
    let (mut refusals, mut other_engine) = (Vec::new(), None);
    for one in known.deployments.iter().filter(|one| same_name(&one.function, name)) {
        let image = known.images.iter().find(|image| image.name == one.image);
        match (vouches(one, caller, known), image) {
            (Ok(_), Some(_)) if engine_of(one, known) != caller.engine => {
                other_engine.get_or_insert_with(|| differs(one, caller, known));
            }
            (Ok(reason), Some(image)) => {
                let path = Some(one.path.clone()).filter(|path| path.ends_with(".wasm"));
                let grant = Grant { image: image.clone(), path, reason };
                if !grants.iter().any(|known| known.image == grant.image) {
                    grants.push(grant);
                }
            }
            (Ok(_), None) => refusals.push(format!(
                "the image {} of container {} is gone from containerd",
                one.image, one.container
            )),
            (Err(why), _) => {
                refusals.push(format!("container {} (image {}) {why}", one.container, one.image));
            }
        }
    }
    match grants.as_slice() {
        [_] => Ok(grants.remove(0)),
        [first, second, ..] => refuse(format!(
            "both {} and {} are deployed as `{name}`: name one with cwasi.embed={name}=IMAGE",
            first.image.name, second.image.name
        )),
        [] => refuse(other_engine.unwrap_or_else(|| untrusted(name, &refusals, known))),
    }
}

/// The refusal of an image that is deployed as `name` in the caller's scope and group, and only for another engine.
fn only_other_engine(
    name: &str,
    image: &Image,
    caller: EmbeddingCaller<'_>,
    known: &NodeFacts<'_>,
) -> Option<String> {
    let is_meant = |one: &&Deployment| {
        same_name(&one.function, name)
            && one.image == image.name
            && vouches(one, caller, known).is_ok()
    };
    let meant: Vec<&Deployment> = known.deployments.iter().filter(is_meant).collect();
    if meant.iter().any(|one| engine_of(one, known) == caller.engine) {
        return None;
    }
    meant.first().map(|one| differs(one, caller, known))
}

fn engine_of(one: &Deployment, known: &NodeFacts<'_>) -> Engine {
    one.engine.unwrap_or(known.engine)
}

fn differs(one: &Deployment, caller: EmbeddingCaller<'_>, known: &NodeFacts<'_>) -> String {
    format!(
        "container {} (image {}) has the engine {}, this function {}: give both the same cwasi.engine",
        one.container,
        one.image,
        engine_of(one, known),
        caller.engine
    )
}

/// Images of that name, and how to make them trusted.
fn untrusted(name: &str, refusals: &[String], known: &NodeFacts<'_>) -> String {
    let by_name: Vec<&Image> = known
        .images
        .iter()
        .filter(|image| same_name(last_component(&image.name), name))
        .take(CANDIDATES_SHOWN)
        .collect();
    let mut said: Vec<String> = refusals.iter().take(CANDIDATES_SHOWN).cloned().collect();
    said.extend(by_name.iter().map(|image| {
        format!("the image {} has that name, which alone is no reason to trust it", image.name)
    }));
    match by_name.first() {
        _ if said.is_empty() => format!(
            "no function or image of that name is in this containerd namespace: pull its image and name it with \
             cwasi.embed={name}=IMAGE"
        ),
        Some(image) => format!(
            "{}; to trust it, annotate this function with cwasi.embed={name}={}@{}, or deploy it with the same \
             cwasi.workflow or cwasi.trust in the same namespace",
            said.join("; "),
            image.name,
            image.digest
        ),
        None => format!(
            "{}; to trust it, give both the same cwasi.workflow or cwasi.trust, or name its image with \
             cwasi.embed={name}=IMAGE",
            said.join("; ")
        ),
    }
}

/// Whether a deployed function makes its image trusted, with the reason.
fn vouches(
    one: &Deployment,
    caller: EmbeddingCaller<'_>,
    known: &NodeFacts<'_>,
) -> Result<String, String> {
    let same = |a: &str, b: &str| !a.is_empty() && a == b;
    let same_scope = one.pod_namespace == caller.identity.pod_namespace;
    let same_trust = same(&one.trust, caller.trust);
    if same_scope && same(&one.workflow, caller.workflow) {
        return Ok(format!("embedded: deployed in workflow {}", caller.workflow));
    }
    if same_trust && (same_scope || known.spanning.contains(&one.trust)) {
        return Ok(format!("embedded: deployed in trust group {}", caller.trust));
    }
    if !same_scope {
        let scope = |pod: &str| {
            if pod.is_empty() { "no pod".to_owned() } else { format!("pod namespace `{pod}`") }
        };
        let why = format!(
            "is of {}, this function of {}",
            scope(&one.pod_namespace),
            scope(&caller.identity.pod_namespace)
        );
        return Err(if same_trust {
            format!("{why}, and the node's trust_groups does not list `{}`", one.trust)
        } else {
            why
        });
    }
    let group =
        |workflow: &str, trust: &str| format!("workflow `{workflow}`, trust group `{trust}`");
    Err(format!(
        "is of {}, this function of {}",
        group(&one.workflow, &one.trust),
        group(caller.workflow, caller.trust)
    ))
}

fn refuse<T>(why: String) -> Result<T, Refusal> {
    Err(Refusal { why })
}

/// Replaces `_` by `-`: module names have underscores where images and functions have dashes.
#[must_use]
pub fn same_name(a: &str, b: &str) -> bool {
    let normal = |c: char| if c == '_' { '-' } else { c };
    a.chars().map(normal).eq(b.chars().map(normal))
}

/// `docker.io/lib/fn-utils:1` → `fn-utils`.
fn last_component(image: &str) -> &str {
    let name = image.split('@').next().unwrap_or(image);
    let last = name.rsplit('/').next().unwrap_or(name);
    last.split(':').next().unwrap_or(last)
}

/// `full` is containerd's name; `wanted` may omit the tag `latest`.
fn same_image(full: &str, wanted: &str) -> bool {
    full == wanted || full.strip_suffix(":latest").is_some_and(|name| name == wanted)
}

#[cfg(test)]
mod tests;
