//! Plans, creates and starts the containers of functions.
//!
//! Invariant: a container is noted before it is made, so that an interrupted start is taken down, too.

use std::path::PathBuf;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Context as _;
use sha2::{Digest as _, Sha256};

use super::Deployment;
use super::display::Line;
use super::platform::{FunctionImage, PlannedFunction, Platform};
use crate::containerd::tasks::Stdio;
use crate::failure::{Exit, Failure};
use crate::image::name_of;
use cwasi_config::regular_file;
use cwasi_workflow::{Function, Role, Source, Workflow};

/// The annotation that makes a primary's run a part of a trace.
const TRACE_ANNOTATION: &str = "cwasi.trace";
/// Longest id of a container in containerd.
const ID_MAX: usize = 76;

impl<'a, P: Platform> Deployment<'a, P> {
    pub(super) fn node(&self, function: &'a Function) -> &P {
        &self.nodes[&function.node.as_deref()]
    }

    pub(super) fn containers_of(&self, role: Role) -> impl Iterator<Item = &'a Function> {
        self.workflow.functions.iter().filter(move |function| function.role == role)
    }

    /// A folder for fifos of a node's functions, which is removed with the deployment.
    pub(super) fn fifos_folder(&self, node: &P) -> Result<PathBuf, Failure> {
        let folder = node.run_folder().with_context(|| {
            format!("a folder for fifos cannot be made in {}", node.runs().display())
        })?;
        let path = folder.path().to_owned();
        self.fifos.lock().unwrap_or_else(PoisonError::into_inner).push(folder);
        Ok(path)
    }

    pub(super) async fn plan(&self, function: &'a Function, id: &str) -> Result<P::Plan, Failure> {
        let workflow = &self.workflow.name;
        let mut annotations =
            function.all_annotations(workflow, |name| self.images[name].name.clone());
        if let (Some(trace), Role::Primary) = (self.trace, function.role) {
            let said = annotations.entry(TRACE_ANNOTATION.to_owned());
            said.or_insert_with(|| trace.to_string());
        }
        let image = &self.images[function.name.as_str()];
        let shares_network = self.workflow.shares_network(function);
        let annotations = &annotations;
        let planned =
            PlannedFunction { workflow, function, image, annotations, id, shares_network };
        self.node(function).plan(planned).await
    }

    /// Starts a secondary and displays its progress. The failure has the end of its log.
    pub(super) async fn start_with_progress(
        &self,
        function: &'a Function,
        id: &str,
        plan: &P::Plan,
    ) -> Result<(), Failure> {
        let line = self.display.line(id);
        let module = self.images[function.name.as_str()].module.as_ref().map(Vec::len);
        let started = self.start(function, id, plan, &line, module).await;
        line.clear();
        started.map_err(|failure| failure.with(&self.node(function).log_tail(id)))?;
        if !self.display.is_live() {
            line.state("running");
        }
        Ok(())
    }

    async fn start(
        &self,
        function: &'a Function,
        id: &str,
        plan: &P::Plan,
        line: &Line,
        module: Option<usize>,
    ) -> Result<(), Failure> {
        let node = self.node(function);
        line.state("starting");
        let stdio = node.create_log(id)?;
        tokio::select! {
            created = self.create(node, id, plan, &stdio) => created?,
            never = line.compiling(Instant::now(), module) => match never {},
        }
        node.start(id).await
    }

    /// Creates a container. One that is interrupted stays counted.
    pub(super) async fn create(
        &self,
        node: &P,
        id: &str,
        plan: &P::Plan,
        stdio: &Stdio,
    ) -> Result<(), Failure> {
        self.creating.fetch_add(1, Ordering::Relaxed);
        let created = node.create(id, plan, stdio).await;
        self.creating.fetch_sub(1, Ordering::Relaxed);
        created
    }

    pub(super) fn note(&self, function: &'a Function, id: &str) {
        self.note_at(function.node.as_deref(), id);
    }

    /// Notes a container of the node with this name.
    pub(super) fn note_at(&self, node: Option<&'a str>, id: &str) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).push((node, id.to_owned()));
    }

    /// A container that this deployment has made stays when it is taken down.
    pub(super) fn forget(&self, id: &str) {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|(_, made)| made != id);
    }
}

/// The image of a function; a local module is read.
pub(crate) fn image_of(workflow: &Workflow, function: &Function) -> Result<FunctionImage, Failure> {
    match &function.source {
        Source::Image(name) => Ok(FunctionImage { name: name.clone(), module: None }),
        Source::Module(path) => {
            let module = regular_file::read(path).with_context(|| {
                format!("function {}: module {} cannot be read", function.name, path.display())
            });
            let module = module.map_err(|error| Failure::new(Exit::Missing, error))?;
            let name = name_of(&workflow.name, &function.name, &module);
            Ok(FunctionImage { name, module: Some(module) })
        }
    }
}

/// The id of a function's container.
#[must_use]
pub fn container_id(workflow: &str, function: &str, replica: u32) -> String {
    let number = if replica == 1 { String::new() } else { format!(".{replica}") };
    let id = format!("{workflow}.{function}");
    if id.len() + number.len() <= ID_MAX {
        return id + &number;
    }
    let digest = hex::encode(&Sha256::digest(&id)[..8]);
    let kept = ID_MAX - number.len() - digest.len() - 1;
    format!("{}-{digest}{number}", &id[..kept].trim_end_matches(['.', '_', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_fit_into_containerd() {
        assert_eq!(container_id("w", "f", 1), "w.f");
        assert_eq!(container_id("w", "f", 12), "w.f.12");
        let long = |function: &str| container_id(&"w".repeat(63), function, 3);
        let (one, other) = (long(&"f".repeat(63)), long(&"g".repeat(63)));
        assert!(one.len() <= ID_MAX && one.ends_with(".3"), "{one}");
        assert_ne!(one, other);
    }
}
