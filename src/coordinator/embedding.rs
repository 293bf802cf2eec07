//! Which other modules run in a function's VM: discovery over its imports and `cwasi.embed`, to any depth.

use std::collections::BTreeMap;

use cwasi_abi::export;

use super::images::ImageStore;
use super::module::{self, CheckedModule};
use super::toolchain;
use super::trust::{Caller, Deployment, Grant, Image, Known, judge};
use crate::config::annotations::{EMBED_MAX, Embed, FunctionSpec};
use crate::wire::ids::Identity;

/// Most problems that one message lists.
const PROBLEMS_MAX: usize = 16;
/// Most imports that one problem lists.
const IMPORTS_MAX: usize = 8;

/// Modules cannot be embedded, each with what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("imports that nothing may provide: {}", .problems.iter().take(PROBLEMS_MAX).cloned().collect::<Vec<_>>().join("; "))]
pub struct EmbeddingError {
    /// One per module.
    pub problems: Vec<String>,
}

/// A module that belongs into the VM.
#[derive(Clone, Debug)]
pub struct Found {
    /// The name that it is imported or called by.
    pub name: String,
    /// What it is.
    pub module: CheckedModule,
    /// Its image and why it is trusted.
    pub grant: Grant,
}

impl Found {
    /// True when it can be called by dispatch.
    #[must_use]
    pub fn is_reactor(&self) -> bool {
        self.module.is_reactor() && self.module.has_export(export::ALLOC)
    }
}

/// What discovery ended with.
#[derive(Clone, Debug, Default)]
pub struct Embedding {
    /// Each after what it imports itself.
    pub modules: Vec<Found>,
    /// Functions that were to be called there and may not, with the reason; they are called elsewhere.
    pub refused: BTreeMap<String, String>,
}

/// What is embedded in a function of this identity and annotations, whose module is `root`. `container` is its
/// own; `spanning` are the trust groups that may span scopes.
///
/// # Errors
/// Imports that cannot be provided, all together.
pub async fn discover(
    store: &impl ImageStore,
    root: &CheckedModule,
    annotations: &FunctionSpec,
    identity: &Identity,
    container: &str,
    spanning: &[String],
) -> Result<Embedding, EmbeddingError> {
    if root.foreign.is_empty() && annotations.embed.is_empty() {
        return Ok(Embedding::default());
    }
    let failed = |problem: String| EmbeddingError { problems: vec![problem] };
    let images = store.images().await.map_err(failed)?;
    let mut deployments = store.deployments().await.map_err(failed)?;
    // A function does not vouch for itself.
    deployments.retain(|one| one.container != container);
    let caller = Caller { identity, workflow: &annotations.workflow, trust: &annotations.trust };
    let mut walk = Walk {
        store,
        caller,
        wishes: &annotations.embed,
        images: &images,
        deployments: &deployments,
        spanning,
        found: Embedding::default(),
        problems: Vec::new(),
    };
    walk.imports_of(root).await;
    walk.wished_for().await;
    if walk.problems.is_empty() {
        Ok(walk.found)
    } else {
        Err(EmbeddingError { problems: walk.problems })
    }
}

struct Walk<'a, S> {
    store: &'a S,
    caller: Caller<'a>,
    wishes: &'a [Embed],
    images: &'a [Image],
    deployments: &'a [Deployment],
    spanning: &'a [String],
    found: Embedding,
    problems: Vec<String>,
}

/// A module whose imports are being looked for.
struct Open {
    found: Found,
    /// Modules that it imports from and that were not looked at yet.
    left: Vec<String>,
}

impl<S: ImageStore> Walk<'_, S> {
    /// Everything that `root` imports.
    async fn imports_of(&mut self, root: &CheckedModule) {
        for (name, imports) in &root.foreign {
            if let Err(why) = self.embed(name).await {
                self.problems.extend(self.explained(name, imports, &why));
            }
        }
    }

    /// Why `imports` of the module `name` are not provided: for those of a toolchain what to do about it, one line for each
    /// advice, else `why`. Whoever names the module in `cwasi.embed` means another module.
    fn explained(&self, name: &str, imports: &BTreeMap<String, String>, why: &str) -> Vec<String> {
        let is_wished = self.wishes.iter().any(|wish| wish.module == name);
        let mut by_advice: Vec<(&str, Vec<&str>)> = Vec::new();
        for (import, text) in imports {
            let hint = if is_wished { None } else { toolchain::hint(name, import) };
            let advice = hint.unwrap_or(why);
            match by_advice.iter_mut().find(|(known, _)| *known == advice) {
                Some((_, texts)) => texts.push(text),
                None => by_advice.push((advice, vec![text])),
            }
        }
        by_advice.into_iter().map(|(advice, texts)| format!("{}: {advice}", some(&texts))).collect()
    }

    /// What `cwasi.embed` names and nobody imports is there to be called.
    async fn wished_for(&mut self) {
        for wish in self.wishes {
            if self.is_found(&wish.module) {
                continue;
            }
            let before = self.found.modules.len();
            let refused = match self.embed(&wish.module).await {
                Err(why) => Some(why),
                Ok(()) => {
                    let last = self.found.modules.last().filter(|last| last.name == wish.module);
                    last.filter(|last| !last.is_reactor()).map(|_| {
                        format!(
                            "nobody imports it, and it exports no `{}` and `{}` to be called by",
                            export::ALLOC,
                            export::HANDLE
                        )
                    })
                }
            };
            if let Some(why) = refused {
                // With all that only it needed.
                self.found.modules.truncate(before);
                self.found.refused.insert(wish.module.clone(), why);
            }
        }
    }

    fn is_found(&self, name: &str) -> bool {
        self.found.modules.iter().any(|found| found.name == name)
    }

    /// Adds `name` after everything that it imports, depth first; nothing when any of that fails.
    async fn embed(&mut self, name: &str) -> Result<(), String> {
        let before = self.found.modules.len();
        let result = self.descend(name).await;
        if result.is_err() {
            self.found.modules.truncate(before);
        }
        result
    }

    async fn descend(&mut self, name: &str) -> Result<(), String> {
        let mut path: Vec<Open> = Vec::new();
        let mut next = Some(name.to_owned());
        loop {
            if let Some(name) = next.take()
                && !self.is_found(&name)
            {
                let way = |path: &[Open]| {
                    let names: Vec<_> = path.iter().map(|open| open.found.name.as_str()).collect();
                    names.join(" → ")
                };
                if path.iter().any(|open| open.found.name == name) {
                    return Err(format!("modules import each other: {} → {name}", way(&path)));
                }
                if path.len() + self.found.modules.len() >= EMBED_MAX {
                    return Err(format!("more than {EMBED_MAX} modules would be embedded"));
                }
                let found = self.fetch(&name).await.map_err(|why| match path.last() {
                    None => why,
                    Some(open) => {
                        let imports = open.found.module.foreign.get(&name);
                        let empty = BTreeMap::new();
                        let all = self.explained(&name, imports.unwrap_or(&empty), &why);
                        format!("by way of {}: {}", way(&path), all.join("; "))
                    }
                })?;
                let left = found.module.foreign.keys().rev().cloned().collect();
                path.push(Open { found, left });
            }
            let Some(open) = path.last_mut() else { return Ok(()) };
            next = open.left.pop();
            if next.is_none()
                && let Some(done) = path.pop()
            {
                self.found.modules.push(done.found);
            }
        }
    }

    /// Judges a module and reads it.
    async fn fetch(&self, name: &str) -> Result<Found, String> {
        let wish = self.wishes.iter().find(|wish| wish.module == name);
        let known =
            Known { images: self.images, deployments: self.deployments, spanning: self.spanning };
        let grant = judge(name, wish, self.caller, &known).map_err(|refusal| refusal.why)?;
        let bytes = self.store.module(&grant.image, grant.path.as_deref()).await?;
        let origin = format!("the module of image {}", grant.image.name);
        let module = module::check(&bytes, &origin).map_err(|error| error.to_string())?;
        if let Some(name) = module.sockets.first() {
            return Err(format!("{origin} imports {name}: embedded modules get no sockets"));
        }
        Ok(Found { name: name.to_owned(), module, grant })
    }
}

/// The first of these imports, and how many more there are.
fn some(texts: &[&str]) -> String {
    let shown = texts.iter().take(IMPORTS_MAX).copied().collect::<Vec<_>>().join(", ");
    match texts.len().saturating_sub(IMPORTS_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
