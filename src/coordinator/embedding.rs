//! Finds the modules that run in a function's VM, through its imports and `cwasi.embed`, to any depth. Runs in the
//! shim daemon.

use std::collections::BTreeMap;

use cwasi_abi::export;
use cwasi_abi::interfaces::{FUNCTIONS, HANDLER};

use super::images::ImageStore;
use super::module::{self, CheckedModule};
use super::toolchain;
use super::trust::{Deployment, EmbeddingCaller, Grant, Image, NodeFacts, judge};
use cwasi_config::Engine;
use cwasi_config::annotations::{EMBED_MAX, Embed, FunctionSpec};
use cwasi_wire::ids::Identity;

/// Most problems in one message.
const PROBLEMS_MAX: usize = 16;
/// Most imports in one problem.
const IMPORTS_MAX: usize = 8;

/// Imports that cannot be satisfied, each with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("imports that cannot be satisfied: {}", .problems.iter().take(PROBLEMS_MAX).cloned().collect::<Vec<_>>().join("; "))]
pub struct EmbeddingError {
    /// One per module.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct ModuleToEmbed {
    /// The name by which others import or call it.
    pub name: String,
    pub module: CheckedModule,
    /// Its image, and the reason to trust it.
    pub grant: Grant,
}

impl ModuleToEmbed {
    /// True if `request_dispatcher` can call it.
    #[must_use]
    pub fn is_reactor(&self) -> bool {
        let CheckedModule { is_component, exports, .. } = &self.module;
        if *is_component {
            return exports.iter().any(|export| FUNCTIONS.iter().any(|it| it.is(export)));
        }
        self.module.is_reactor() && self.module.has_export(export::ALLOC)
    }
}

/// Result of the discovery.
#[derive(Clone, Debug, Default)]
pub struct Embedding {
    /// Each after its own imports.
    pub modules: Vec<ModuleToEmbed>,
    /// Functions of `cwasi.embed` that may not be embedded, with the reason. Calls to them take another mode.
    pub refused: BTreeMap<String, String>,
}

/// The parts of the node's configuration that embedding depends on.
#[derive(Clone, Copy, Debug)]
pub struct NodeSettings<'a> {
    /// Trust groups that may span scopes.
    pub spanning: &'a [String],
    /// Engine of functions that name none.
    pub engine: Engine,
}

/// Collects the modules to embed in the function `root`. `container` is the function's own.
///
/// # Errors
/// All imports that cannot be satisfied.
pub async fn discover(
    store: &impl ImageStore,
    root: &CheckedModule,
    annotations: &FunctionSpec,
    identity: &Identity,
    container: &str,
    node: NodeSettings<'_>,
) -> Result<Embedding, EmbeddingError> {
    if root.foreign.is_empty() && annotations.embed.is_empty() {
        return Ok(Embedding::default());
    }
    let failed = |problem: String| EmbeddingError { problems: vec![problem] };
    let images = store.images().await.map_err(failed)?;
    let mut deployments = store.deployments().await.map_err(failed)?;
    // A function's own container is no reason for trust.
    deployments.retain(|one| one.container != container);
    // A component has one engine on every node.
    let engine = if root.is_component { Engine::Wasmtime } else { node.engine };
    let caller = EmbeddingCaller {
        identity,
        workflow: &annotations.workflow,
        trust: &annotations.trust,
        engine: annotations.engine.unwrap_or(engine),
    };
    let mut walk = Walk {
        store,
        caller,
        wishes: &annotations.embed,
        images: &images,
        deployments: &deployments,
        node,
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
    caller: EmbeddingCaller<'a>,
    wishes: &'a [Embed],
    images: &'a [Image],
    deployments: &'a [Deployment],
    node: NodeSettings<'a>,
    found: Embedding,
    problems: Vec<String>,
}

/// The state of a depth-first search.
struct UnresolvedModule {
    found: ModuleToEmbed,
    /// Imported modules that are still to be visited.
    left: Vec<String>,
}

impl<S: ImageStore> Walk<'_, S> {
    /// Embeds the modules that `root` imports.
    async fn imports_of(&mut self, root: &CheckedModule) {
        for (name, imports) in &root.foreign {
            let embedded = match self.embed(name).await {
                Ok(()) if self.is_component(name) => Err(COMPONENT.to_owned()),
                embedded => embedded,
            };
            if let Err(why) = embedded {
                self.problems.extend(self.explained(name, imports, &why));
            }
        }
    }

    /// Explains why `imports` of the module `name` are not satisfied. Imports of a known toolchain get its advice,
    /// once each, others get `why`. A module of `cwasi.embed` is never taken for a toolchain's.
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

    /// Embeds the modules of `cwasi.embed` that no module imports. Only `request_dispatcher` calls them.
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
                    last.and_then(why_not_called)
                }
            };
            if let Some(why) = refused {
                // Also remove the modules that only it imports.
                self.found.modules.truncate(before);
                self.found.refused.insert(wish.module.clone(), why);
            }
        }
    }

    fn is_component(&self, name: &str) -> bool {
        let mut modules = self.found.modules.iter();
        modules.any(|found| found.name == name && found.module.is_component)
    }

    fn is_found(&self, name: &str) -> bool {
        self.found.modules.iter().any(|found| found.name == name)
    }

    /// Embeds `name` after its own imports, depth first. On failure it embeds none of them.
    async fn embed(&mut self, name: &str) -> Result<(), String> {
        let before = self.found.modules.len();
        let result = self.descend(name).await;
        if result.is_err() {
            self.found.modules.truncate(before);
        }
        result
    }

    async fn descend(&mut self, name: &str) -> Result<(), String> {
        let mut path: Vec<UnresolvedModule> = Vec::new();
        let mut next = Some(name.to_owned());
        loop {
            if let Some(name) = next.take()
                && !self.is_found(&name)
            {
                let way = |path: &[UnresolvedModule]| {
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
                        format!("imported through {}: {}", way(&path), all.join("; "))
                    }
                })?;
                if found.module.is_component && !path.is_empty() {
                    return Err(format!("imported through {}: {name} {COMPONENT}", way(&path)));
                }
                let left = found.module.foreign.keys().rev().cloned().collect();
                path.push(UnresolvedModule { found, left });
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

    /// Decides whether the module is trusted, and reads it.
    async fn fetch(&self, name: &str) -> Result<ModuleToEmbed, String> {
        let wish = self.wishes.iter().find(|wish| wish.module == name);
        let known = NodeFacts {
            images: self.images,
            deployments: self.deployments,
            spanning: self.node.spanning,
            engine: self.node.engine,
        };
        let grant = judge(name, wish, self.caller, &known).map_err(|refusal| refusal.why)?;
        let bytes = self.store.module(&grant.image, grant.path.as_deref()).await?;
        let origin = format!("the module of image {}", grant.image.name);
        let module = module::check(&bytes, &origin).map_err(|error| error.to_string())?;
        // A component's sockets and requests are denied when it makes them.
        if module.is_component && self.caller.engine != Engine::Wasmtime {
            let own = self.caller.engine;
            return Err(format!("{origin} is a component, for wasmtime; this function has {own}"));
        }
        if !module.is_component
            && let Some(name) = module.sockets.first()
        {
            return Err(format!("{origin} imports {name}: embedded modules get no sockets"));
        }
        Ok(ModuleToEmbed { name: name.to_owned(), module, grant })
    }
}

/// Why the functions of a component are not linked.
const COMPONENT: &str = "is a component, whose functions no module can import: call it by its name";

/// Why a module that no other one imports cannot be called.
fn why_not_called(module: &ModuleToEmbed) -> Option<String> {
    let missing = match (module.is_reactor(), module.module.is_component) {
        (true, _) => return None,
        (false, true) => {
            format!("`{}`; what serves HTTP runs in a process of its own", HANDLER.name)
        }
        (false, false) => format!("`{}` and `{}`", export::ALLOC, export::HANDLE),
    };
    Some(format!("no module imports it, and it cannot be called, because it exports no {missing}"))
}

/// The first imports, and the number of the others.
fn some(texts: &[&str]) -> String {
    let shown = texts.iter().take(IMPORTS_MAX).copied().collect::<Vec<_>>().join(", ");
    match texts.len().saturating_sub(IMPORTS_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
