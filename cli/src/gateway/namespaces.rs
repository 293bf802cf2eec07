//! The names of functions: one for each, whatever name a client uses.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cwasi_coordinator::selection::scope_of;
use cwasi_host::caller::HostCaller;

/// The namespace that `faas-cli` names when its user names none.
const OPENFAAS: &str = "openfaas-fn";
/// How long the answer to "is there such a namespace" counts: clients may ask for each call.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// The gateway's namespace, and what [`OPENFAAS`] means; clones share what is known.
#[derive(Clone, Debug)]
pub(super) struct Namespaces {
    own: Arc<str>,
    /// Whether functions of [`OPENFAAS`] can be called, and when this was read.
    known: Arc<Mutex<Option<(Instant, bool)>>>,
}

impl Namespaces {
    pub(super) fn of(caller: &HostCaller) -> Self {
        Self { own: scope_of(caller.identity()).into(), known: Arc::default() }
    }

    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// The namespace that a client means: the gateway's own if it names none. [`OPENFAAS`] is another one only if it has
    /// functions on this node that the gateway can call.
    pub(super) fn resolve<'a>(&'a self, caller: &HostCaller, namespace: &'a str) -> &'a str {
        match namespace {
            "" => &self.own,
            OPENFAAS if !self.is_known(caller) => &self.own,
            other => other,
        }
    }

    /// A function as callers name it.
    pub(super) fn target(&self, namespace: &str, name: &str) -> String {
        if *namespace == *self.own { name.to_owned() } else { format!("{namespace}/{name}") }
    }

    fn is_known(&self, caller: &HostCaller) -> bool {
        // One value that is replaced: a panic elsewhere leaves it consistent.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, is_known)) = *known
            && when.elapsed() < KNOWN_FOR
        {
            return is_known;
        }
        let is_known = caller.functions(OPENFAAS).is_ok_and(|functions| !functions.is_empty());
        *known = Some((Instant::now(), is_known));
        is_known
    }
}
