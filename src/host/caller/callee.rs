//! The connections to each function. Runs where [`super::HostCaller`] does. [`KnownInstances`] chooses among them, as it
//! does in workers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Mutex as AsyncMutex;

use super::connection::{Connection, ConnectionRoute};
use super::{CalleeLimits, Inner, check};
use cwasi_dispatcher::instances::{KnownInstances, Load, Pick};
use cwasi_modes::causes::Unreached;
use cwasi_modes::{CallError, ModeKind, Overload};
use cwasi_wire::control::{ResolveReply, ResolveRequest};
use cwasi_wire::envelope::{CallStatus, Detail};

/// Most functions with connections, or that are being asked for.
const CALLEES_MAX: usize = 4096;
/// Most connections to one function.
const CONNECTIONS_MAX: usize = 256;

/// Every function that was called, by its target.
#[derive(Debug, Default)]
pub(super) struct Callees {
    known: Mutex<HashMap<String, Arc<Callee>>>,
}

impl Callees {
    /// The function behind a target.
    ///
    /// # Errors
    /// For an invalid name, and when too many functions are called at a time.
    pub(super) fn of(&self, target: &str) -> Result<Arc<Callee>, CallError> {
        check(target)?;
        // Single insertions and removals: a panic elsewhere leaves it consistent.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(callee) = known.get(target) {
            return Ok(Arc::clone(callee));
        }
        if known.len() >= CALLEES_MAX {
            known.retain(|_, callee| Arc::strong_count(callee) > 1 || !callee.end_if_idle());
        }
        if known.len() >= CALLEES_MAX {
            return Err(Overload::Callers { callee: target.to_owned() }.into());
        }
        let callee = Arc::new(Callee::default());
        known.insert(target.to_owned(), Arc::clone(&callee));
        Ok(callee)
    }
}

/// The connections to one function.
#[derive(Debug, Default)]
pub(super) struct Callee {
    open: Mutex<OpenConnections>,
    asking: AsyncMutex<()>,
}

#[derive(Debug)]
struct OpenConnections {
    connections: Vec<Arc<Connection>>,
    instances: KnownInstances,
}

impl Default for OpenConnections {
    fn default() -> Self {
        let instances = KnownInstances::new(CONNECTIONS_MAX, 0, Instant::now());
        Self { connections: Vec::new(), instances }
    }
}

impl OpenConnections {
    fn pick(&mut self) -> Pick<Arc<Connection>> {
        self.connections.retain(|connection| !connection.has_ended());
        let loads = self.connections.iter().map(|connection| {
            // A process of the host has no group.
            let (in_flight, mode, is_far) = (connection.in_flight(), connection.mode, false);
            (Arc::clone(connection), Load { in_flight, mode, is_far })
        });
        self.instances.pick(loads, Instant::now())
    }
}

impl Callee {
    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        // As above.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pick(&self) -> Pick<Arc<Connection>> {
        self.open().pick()
    }

    /// A connection for one call, to an instance in `avoid` only if there is no other.
    ///
    /// # Errors
    /// When there is no route.
    pub(super) async fn connection(
        &self,
        caller: &Inner,
        target: &str,
        avoid: &[String],
    ) -> Result<Arc<Connection>, CallError> {
        let asking = match self.pick() {
            Pick::Take(connection) => return Ok(connection),
            // Another call asks already.
            Pick::AskFirst { fallback, .. } => match self.asking.try_lock() {
                Ok(asking) => asking,
                Err(_locked) => return Ok(fallback),
            },
            Pick::Ask => self.asking.lock().await,
        };
        // Another call may have connected meanwhile.
        let fallback = match self.pick() {
            Pick::Take(connection) => return Ok(connection),
            Pick::AskFirst { fallback, .. } => Some(fallback),
            Pick::Ask => None,
        };
        let asked = self.ask(caller, target, avoid).await;
        drop(asking);
        match (asked, fallback) {
            (Ok(Some(connection)), _) | (Ok(None), Some(connection)) => Ok(connection),
            (Err(_), Some(connection)) => {
                // Another connection serves; ask again after a while.
                self.open().instances.set_count(0, Instant::now());
                Ok(connection)
            }
            (Ok(None), None) => {
                let (target, cause) = (target.to_owned(), Unreached::Closed);
                Err(CallError::Unreachable { target, cause })
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Asks for a connection to an instance that has none; `None` if there is no other.
    async fn ask(
        &self,
        caller: &Inner,
        target: &str,
        avoid: &[String],
    ) -> Result<Option<Arc<Connection>>, CallError> {
        let held = {
            let open = self.open();
            let local = open.connections.iter().filter(|one| one.mode == ModeKind::Local);
            local.map(|one| one.instance.clone()).collect()
        };
        let (resolver, peer) = (caller.resolver.clone(), Arc::clone(&caller.peer));
        let (target, avoid) = (target.to_owned(), avoid.to_vec());
        let request = ResolveRequest { target: target.clone(), avoid, held, nearer: false };
        // The registry's files and the connection block.
        let resolving = tokio::task::spawn_blocking(move || resolver.resolve(&peer, &request));
        let internal =
            |error: &dyn std::error::Error| CallError::Internal { message: error.to_string() };
        let (reply, fd) = resolving.await.map_err(|error| internal(&error))?;
        let (route, instances) = match reply {
            ResolveReply::Local {
                instance,
                reason,
                max_payload,
                max_head,
                instances,
                lends,
                ..
            } => {
                let (mode, reason) = (ModeKind::Local, reason.into());
                let limits = CalleeLimits { max_payload, max_head };
                (ConnectionRoute { target, instance, mode, reason, limits, lends }, instances)
            }
            ResolveReply::Networked { reason, max_payload, max_head } => {
                // The other side of the connection is this process, which lends what it receives.
                let (mode, reason, lends) = (ModeKind::Networked, reason.into(), true);
                let instance = String::new();
                let limits = CalleeLimits { max_payload, max_head };
                (ConnectionRoute { target, instance, mode, reason, limits, lends }, 1)
            }
            ResolveReply::NoOther { instances } => {
                self.open().instances.set_count(instances, Instant::now());
                return Ok(None);
            }
            ResolveReply::Unroutable { errno, message } => {
                let status = CallStatus::of(errno, Detail::DETAIL_NONE);
                return Err(CallError::from_wire(status, message, &target));
            }
        };
        let Some(fd) = fd else { return Ok(None) };
        let connection = Connection::start(fd, route).map_err(|error| internal(&error))?;
        let mut open = self.open();
        open.instances.set_count(instances, Instant::now());
        open.connections.push(Arc::clone(&connection));
        Ok(Some(connection))
    }

    /// Gives up a connection that did not take a call; its other calls end by themselves.
    pub(super) fn retire(&self, connection: &Arc<Connection>) {
        self.open().connections.retain(|one| !Arc::ptr_eq(one, connection));
        connection.end_if_idle();
    }

    /// Ends all connections if no call is in flight.
    fn end_if_idle(&self) -> bool {
        let open = self.open();
        let idle = open.connections.iter().all(|connection| connection.in_flight() == 0);
        if idle {
            open.connections.iter().for_each(|connection| {
                connection.end_if_idle();
            });
        }
        idle
    }
}
