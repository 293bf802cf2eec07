//! Who compiles next on this node: tenants in turn, and each tenant's modules in order of arrival. Runs in the shim
//! daemons; they share a folder of the cache.
//!
//! - `<queue>/lock`: its holder reads and changes the queue.
//! - `<queue>/ticket-<time>-<tenant>-<daemon>-<number>`: a module that waits. Its daemon holds the file's lock, so that
//!   a ticket of a killed daemon is known by its free lock.
//! - `<queue>/turn-<tenant>`: the number of the tenant's last turn.
//!
//! A free compiler goes to the tenant whose last turn is the longest ago. So a tenant that queues many modules delays
//! another one by the compilations that run, and by one of its own.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::fcntl::Flock;

use super::compile_slots::{CompileSlot, try_lock, try_slot};
use cwasi_wire::ids::short_hash;

/// Most tickets that are read.
const TICKETS_MAX: usize = 1 << 16;
/// Most tenants whose last turn is remembered.
const TENANTS_MAX: usize = 1024;

/// Number of this process's tickets so far.
static TICKETS: AtomicU64 = AtomicU64::new(0);

/// A file of the queue that cannot be used, and why.
pub(super) type QueueError = (PathBuf, io::Error);

/// The queue of one cache.
#[derive(Debug)]
pub(super) struct CompileQueue {
    cache: PathBuf,
    dir: PathBuf,
    /// Most compilers at once.
    jobs: usize,
}

/// A place in the queue; dropping it leaves the queue.
#[derive(Debug)]
pub(super) struct Ticket {
    name: String,
    path: PathBuf,
    tenant: String,
    _lock: Flock<File>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // What stays is taken for a killed daemon's.
        let _gone = fs::remove_file(&self.path);
    }
}

/// The time of arrival, for [`CompileQueue::enter`].
pub(super) fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

impl CompileQueue {
    pub(super) fn new(cache: &Path, jobs: usize) -> Self {
        Self { cache: cache.to_owned(), dir: cache.join("queue"), jobs }
    }

    /// Most compilers at once.
    pub(super) const fn jobs(&self) -> usize {
        self.jobs
    }

    pub(super) fn prepare(&self) -> Result<(), QueueError> {
        fs::create_dir_all(&self.dir)
            .and_then(|()| fs::set_permissions(&self.dir, Permissions::from_mode(0o700)))
            .map_err(|error| (self.dir.clone(), error))
    }

    /// Enters the queue as one that arrived at `since`.
    pub(super) fn enter(&self, tenant: &str, since: u128) -> Result<Ticket, QueueError> {
        let tenant = short_hash(&[tenant]);
        let (daemon, number) = (std::process::id(), TICKETS.fetch_add(1, Ordering::Relaxed));
        let name = format!("ticket-{since:039}-{tenant}-{daemon}-{number}");
        let path = self.dir.join(&name);
        let taken = || (path.clone(), io::Error::from(io::ErrorKind::AlreadyExists));
        let lock = try_lock(&path)?.ok_or_else(taken)?;
        Ok(Ticket { name, path, tenant, _lock: lock })
    }

    /// Takes a compiler's slot if one is free and the turn is this ticket's. `ready` may refuse it, for a module that
    /// another process compiles just now; then the turn is not used.
    pub(super) fn try_turn<T>(
        &self,
        ticket: &Ticket,
        ready: impl FnOnce() -> Result<Option<T>, QueueError>,
    ) -> Result<Option<(CompileSlot, T)>, QueueError> {
        let Some(_queue) = try_lock(&self.dir.join("lock"))? else { return Ok(None) };
        let Some(slot) = try_slot(&self.cache, self.jobs)? else { return Ok(None) };
        if self.next(ticket)?.as_deref() != Some(&ticket.name) {
            return Ok(None);
        }
        let Some(ready) = ready()? else { return Ok(None) };
        self.record_turn(&ticket.tenant)?;
        Ok(Some((slot, ready)))
    }

    /// The name of the ticket whose turn it is.
    fn next(&self, own: &Ticket) -> Result<Option<String>, QueueError> {
        loop {
            // The first ticket of each tenant.
            let mut first: BTreeMap<String, String> = BTreeMap::new();
            for name in self.names("ticket-")?.into_iter().take(TICKETS_MAX) {
                let Some(tenant) = name.split('-').nth(2) else { continue };
                let known = first.entry(tenant.to_owned()).or_insert_with(|| name.clone());
                if name < *known {
                    *known = name;
                }
            }
            let turn = |(tenant, name): (String, String)| (self.last_turn(&tenant), name);
            let Some((_, next)) = first.into_iter().map(turn).min() else { return Ok(None) };
            let path = self.dir.join(&next);
            if next == own.name || try_lock(&path)?.is_none() {
                return Ok(Some(next));
            }
            // Its daemon is gone.
            fs::remove_file(&path).map_err(|error| (path, error))?;
        }
    }

    fn names(&self, prefix: &str) -> Result<Vec<String>, QueueError> {
        let entries = fs::read_dir(&self.dir).map_err(|error| (self.dir.clone(), error))?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        Ok(names.filter(|name| name.starts_with(prefix)).collect())
    }

    /// The number of a tenant's last turn; 0 for one that had none.
    fn last_turn(&self, tenant: &str) -> u64 {
        let text = fs::read_to_string(self.dir.join(format!("turn-{tenant}"))).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    fn record_turn(&self, tenant: &str) -> Result<(), QueueError> {
        let of = |name: String| name.strip_prefix("turn-").map(|tenant| self.last_turn(tenant));
        let mut turns: Vec<(u64, String)> = self
            .names("turn-")?
            .into_iter()
            .filter_map(|name| Some((of(name.clone())?, name)))
            .collect();
        turns.sort_unstable();
        let number = turns.last().map_or(0, |(number, _)| *number) + 1;
        for (_, name) in turns.iter().take(turns.len().saturating_sub(TENANTS_MAX)) {
            let _gone = fs::remove_file(self.dir.join(name));
        }
        let path = self.dir.join(format!("turn-{tenant}"));
        fs::write(&path, number.to_string()).map_err(|error| (path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(dir: &Path) -> CompileQueue {
        let queue = CompileQueue::new(dir, 1);
        queue.prepare().unwrap();
        queue
    }

    /// Names of the tickets in the order in which they get the only slot.
    fn order(queue: &CompileQueue, mut waiting: Vec<(&'static str, Ticket)>) -> Vec<&'static str> {
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let turn = |(_, ticket): &(&str, Ticket)| {
                queue.try_turn(ticket, || Ok(Some(()))).unwrap().is_some()
            };
            let next = waiting.iter().position(turn).unwrap();
            order.push(waiting.remove(next).0);
        }
        order
    }

    #[test]
    fn tenants_take_turns_and_a_tenants_modules_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let queue = queue(dir.path());
        let enter = |name, tenant, since| (name, queue.enter(tenant, since).unwrap());
        let waiting = vec![
            enter("a3", "a", 3),
            enter("a1", "a", 1),
            enter("b2", "b", 12),
            enter("a2", "a", 2),
            enter("b1", "b", 11),
            enter("c1", "c", 10),
        ];
        assert_eq!(order(&queue, waiting), ["a1", "c1", "b1", "a2", "b2", "a3"]);
        // A tenant that comes again waits for those that were served before it.
        let waiting = vec![enter("a", "a", 20), enter("b", "b", 21), enter("new", "n", 22)];
        assert_eq!(order(&queue, waiting), ["new", "b", "a"]);
    }

    #[test]
    fn a_turn_waits_for_a_slot() {
        let dir = tempfile::tempdir().unwrap();
        let queue = queue(dir.path());
        let (one, two) = (queue.enter("a", 1).unwrap(), queue.enter("a", 2).unwrap());
        let (slot, ()) = queue.try_turn(&one, || Ok(Some(()))).unwrap().unwrap();
        drop(one);
        assert!(queue.try_turn(&two, || Ok(Some(()))).unwrap().is_none(), "no slot");
        drop(slot);
        assert!(queue.try_turn(&two, || Ok(None::<()>)).unwrap().is_none(), "not ready");
        // A ticket of a killed daemon.
        let dead = queue.dir.join(format!("ticket-{:039}-{}-x", 0, short_hash(&["a"])));
        fs::write(&dead, "").unwrap();
        assert!(queue.try_turn(&two, || Ok(Some(()))).unwrap().is_some());
        assert!(!dead.exists());
        drop(two);
        assert_eq!(queue.names("ticket-").unwrap(), Vec::<String>::new());
    }
}
