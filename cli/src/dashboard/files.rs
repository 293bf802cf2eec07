//! What the shims of a containerd namespace, and the host's processes, have written: calls, functions, and stages of
//! starts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cwasi_host::caller::CALLER_NAME;
use cwasi_host::metrics::node::groups;
use cwasi_host::metrics::snapshot::{EdgeSnapshot, FunctionSnapshot};
use cwasi_host::metrics::starts::StartStages;
use cwasi_host::state::{self, StateDir};
use serde::de::DeserializeOwned;

use crate::deployment::hops;

/// The content of the files of all groups that run.
#[derive(Debug, Default)]
pub(super) struct Files {
    pub(super) edges: Vec<EdgeSnapshot>,
    /// Callers that are processes of the host and no functions: the gateway, for example.
    pub(super) host_callers: BTreeSet<String>,
    pub(super) functions: Vec<FunctionSnapshot>,
    pub(super) starts: BTreeMap<String, StartStages>,
    /// Number of files that cannot be read.
    pub(super) unreadable: usize,
}

impl Files {
    pub(super) fn read(state_dir: &Path, namespace: &str) -> Self {
        let mut files = Self::default();
        for group in groups(&StateDir::new(state_dir)) {
            let edges: Vec<EdgeSnapshot> = files.list(&group.edges());
            let functions: Vec<FunctionSnapshot> = files.list(&group.functions());
            let starts: Vec<StartStages> = files.list(&group.start_stages());
            for edge in edges.into_iter().filter(|it| it.key.namespace == namespace) {
                // A shim counts the calls at its functions' ports.
                if group.is_of_host() || edge.key.caller == CALLER_NAME {
                    files.host_callers.insert(edge.key.caller.clone());
                }
                files.edges.push(edge);
            }
            files
                .functions
                .extend(functions.into_iter().filter(|it| it.key.namespace == namespace));
            let own = starts.into_iter().filter(|it| it.namespace == namespace);
            files.starts.extend(own.map(|it| (it.container.clone(), it)));
        }
        files.edges = hops::merged(files.edges);
        files
    }

    fn list<T: DeserializeOwned>(&mut self, path: &Path) -> Vec<T> {
        match state::read_json(path) {
            Ok(list) => list.unwrap_or_default(),
            Err(_damaged) => {
                self.unreadable += 1;
                Vec::new()
            }
        }
    }
}
