//! A worker's connections to instances of its callees. Runs in a worker. No I/O: other files resolve, send and receive,
//! and report here.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Instant;

use cwasi_modes::ModeKind;
use cwasi_modes::local::LocalRoute;

use super::instances::{KnownInstances, Load, Pick};

/// Most callees with connections, apart from those with calls in flight.
pub const ROUTES_MAX: usize = 256;
/// Most instances of one callee that one worker calls.
pub const INSTANCES_MAX: usize = 16;

/// A route to a callee: mode and address.
#[derive(Debug)]
pub enum Route {
    Local {
        local: LocalRoute,
        /// The reason for the mode.
        reason: String,
        /// True if the callee is of the caller's own group, or the caller has none.
        nearest: bool,
    },
    /// Networked buffer, through the shim.
    Networked {
        /// The connection to the shim.
        bridge: LocalRoute,
        /// The reason for the mode.
        reason: String,
    },
}

impl Route {
    #[must_use]
    pub const fn mode(&self) -> ModeKind {
        match self {
            Self::Local { .. } => ModeKind::Local,
            Self::Networked { .. } => ModeKind::Networked,
        }
    }

    /// The reason for the mode.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Local { reason, .. } | Self::Networked { reason, .. } => reason,
        }
    }

    /// True if an instance of the caller's own group would come first. A bridge's shim checks this itself.
    const fn is_far(&self) -> bool {
        matches!(self, Self::Local { nearest: false, .. })
    }

    /// The connection for requests.
    #[must_use]
    pub const fn connection(&self) -> &LocalRoute {
        match self {
            Self::Local { local: connection, .. } | Self::Networked { bridge: connection, .. } => {
                connection
            }
        }
    }
}

/// Number of a connection within its worker; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(u64);

#[derive(Debug)]
struct Link {
    target: Rc<str>,
    route: Route,
    reason: Rc<str>,
    /// Calls in flight over it.
    out: usize,
    /// Takes no further calls; closed after the last answer.
    retired: bool,
}

#[derive(Debug)]
struct CalleeLinks {
    links: Vec<LinkId>,
    instances: KnownInstances,
}

#[derive(Debug, Default)]
pub struct Links {
    callees: HashMap<Rc<str>, CalleeLinks>,
    links: BTreeMap<LinkId, Link>,
    last: u64,
}

impl Links {
    /// The connection for the next call of `target`.
    #[must_use]
    pub fn pick(&self, target: &str, now: Instant) -> Pick<LinkId> {
        let Some(callee) = self.callees.get(target) else { return Pick::Ask };
        let known = callee.links.iter().filter_map(|id| Some((*id, self.links.get(id)?)));
        let usable = known.filter(|(_, link)| !link.retired);
        let loads = usable.map(|(id, link)| {
            let (mode, is_far) = (link.route.mode(), link.route.is_far());
            (id, Load { in_flight: link.out, mode, is_far })
        });
        callee.instances.pick(loads, now)
    }

    /// The connected instances of `target`.
    #[must_use]
    pub fn instances(&self, target: &str) -> Vec<String> {
        let ids = self.callees.get(target).map(|callee| callee.links.as_slice());
        let links = ids.unwrap_or_default().iter().filter_map(|id| self.links.get(id));
        let names = links.map(|link| link.route.connection().instance.clone());
        names.filter(|instance| !instance.is_empty()).collect()
    }

    /// True if segments may be lent to every connected instance of `target`; false without a connection.
    #[must_use]
    pub fn lends(&self, target: &str) -> bool {
        let Some(callee) = self.callees.get(target) else { return false };
        let mut known = callee.links.iter().filter_map(|id| self.links.get(id)).peekable();
        known.peek().is_some() && known.all(|link| link.route.connection().lends)
    }

    /// Adds a connection, with the shim's number of instances.
    pub fn add(&mut self, target: &str, route: Route, instances: usize, now: Instant) -> LinkId {
        if self.callees.len() >= ROUTES_MAX && !self.callees.contains_key(target) {
            self.links.retain(|_, link| link.out > 0);
            let links = &self.links;
            self.callees.retain(|_, callee| {
                callee.links.retain(|id| links.contains_key(id));
                !callee.links.is_empty()
            });
        }
        if matches!(route, Route::Local { nearest: true, .. }) {
            self.retire_far(target);
        }
        self.last += 1;
        let id = LinkId(self.last);
        let target: Rc<str> = target.into();
        let callee = self.callees.entry(Rc::clone(&target)).or_insert_with(|| CalleeLinks {
            links: Vec::new(),
            instances: KnownInstances::new(INSTANCES_MAX, instances, now),
        });
        callee.links.push(id);
        callee.instances.set_count(instances, now);
        let reason = route.reason().into();
        self.links.insert(id, Link { target, route, reason, out: 0, retired: false });
        id
    }

    /// Records the shim's number of instances of `target`.
    pub fn set_count(&mut self, target: &str, instances: usize, now: Instant) {
        if let Some(callee) = self.callees.get_mut(target) {
            callee.instances.set_count(instances, now);
        }
    }

    /// Records that the shim knows no nearer instance of `target`.
    pub fn set_none_nearer(&mut self, target: &str, now: Instant) {
        if let Some(callee) = self.callees.get_mut(target) {
            callee.instances.set_none_nearer(now);
        }
    }

    /// Retires connections outside the group, because the caller's group has an instance.
    fn retire_far(&mut self, target: &str) {
        let Some(callee) = self.callees.get(target) else { return };
        let is_far = |id: &LinkId| self.links.get(id).is_some_and(|link| link.route.is_far());
        let far: Vec<_> = callee.links.iter().copied().filter(is_far).collect();
        for id in far {
            self.retire(id);
        }
    }

    /// Returns a connection; `None` once it is closed.
    #[must_use]
    pub fn route(&self, id: LinkId) -> Option<&Route> {
        self.links.get(&id).map(|link| &link.route)
    }

    /// A connection and its callee.
    #[must_use]
    pub fn route_and_target(&self, id: LinkId) -> Option<(&Route, &str)> {
        self.links.get(&id).map(|link| (&link.route, &*link.target))
    }

    /// The mode of a connection and its reason.
    #[must_use]
    pub fn mode(&self, id: LinkId) -> Option<(ModeKind, Rc<str>)> {
        self.links.get(&id).map(|link| (link.route.mode(), Rc::clone(&link.reason)))
    }

    /// Records a sent call.
    pub fn sent(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(&id) {
            link.out += 1;
        }
    }

    /// Records the end of a [`sent`](Self::sent) call.
    pub fn done(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.out = link.out.saturating_sub(1);
        if link.retired && link.out == 0 {
            self.close(id);
        }
    }

    /// Takes no further calls for this connection, and closes it after the last call. Returns its instance if known.
    pub fn retire(&mut self, id: LinkId) -> Option<String> {
        let link = self.links.get_mut(&id)?;
        link.retired = true;
        let instance = link.route.connection().instance.clone();
        if link.out == 0 {
            self.close(id);
        }
        (!instance.is_empty()).then_some(instance)
    }

    /// Marks a connection as broken; it stays until it is [`retired`](Self::retire).
    pub fn lost(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(&id) {
            link.out = 0;
            link.retired = true;
        }
    }

    /// All connections with calls in flight.
    pub fn busy(&self) -> impl Iterator<Item = (LinkId, &LocalRoute)> {
        let busy = self.links.iter().filter(|(_, link)| link.out > 0);
        busy.map(|(id, link)| (*id, link.route.connection()))
    }

    /// The connection with calls in flight and their number, if there is exactly one.
    #[must_use]
    pub fn only_busy(&self) -> Option<(LinkId, usize)> {
        let mut busy = self.links.iter().filter(|(_, link)| link.out > 0);
        match (busy.next(), busy.next()) {
            (Some((id, link)), None) => Some((*id, link.out)),
            _ => None,
        }
    }

    /// Closes all connections with calls in flight.
    pub fn close_busy(&mut self) {
        let busy: Vec<_> = self.busy().map(|(id, _)| id).collect();
        for id in busy {
            self.close(id);
        }
    }

    fn close(&mut self, id: LinkId) {
        let Some(link) = self.links.remove(&id) else { return };
        if let Some(callee) = self.callees.get_mut(&link.target) {
            callee.links.retain(|known| *known != id);
            if callee.links.is_empty() {
                self.callees.remove(&link.target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::instances::REFRESH_INTERVAL;
    use super::*;
    use cwasi_sys::seqpacket::pair;

    fn route(instance: &str) -> Route {
        let connection = pair().unwrap().0;
        let local =
            LocalRoute { instance: instance.into(), connection, max_request: 1, lends: false };
        Route::Local { local, reason: String::new(), nearest: true }
    }

    #[test]
    fn calls_go_to_the_idlest_and_others_are_asked_for_while_there_may_be_some() {
        let (mut links, now) = (Links::default(), Instant::now());
        assert_eq!(links.pick("b", now), Pick::Ask);
        let first = links.add("b", route("1"), 2, now);
        assert_eq!(links.pick("b", now), Pick::Take(first));
        links.sent(first);
        assert_eq!(
            links.pick("b", now),
            Pick::AskFirst { fallback: first, nearer: false },
            "there is one more"
        );
        let second = links.add("b", route("2"), 2, now);
        assert_eq!(links.instances("b"), ["1", "2"]);
        assert_eq!(links.pick("b", now), Pick::Take(second));
        links.sent(second);
        links.sent(second);
        assert_eq!(links.pick("b", now), Pick::Take(first), "all are known, so the idlest");
        links.done(first);
        assert_eq!(links.busy().count(), 1);
    }

    #[test]
    fn an_outdated_count_is_asked_for_again_and_a_network_never() {
        let (mut links, now) = (Links::default(), Instant::now());
        let first = links.add("b", route("1"), 1, now);
        links.sent(first);
        assert_eq!(links.pick("b", now), Pick::Take(first));
        let now = now + REFRESH_INTERVAL;
        assert_eq!(links.pick("b", now), Pick::AskFirst { fallback: first, nearer: false });
        for number in 1..INSTANCES_MAX {
            let link = links.add("b", route(&number.to_string()), 100, now);
            links.sent(link);
        }
        assert_eq!(links.pick("b", now), Pick::Take(first), "no more than these");
        let Route::Local { local: bridge, reason, .. } = route("") else { panic!("a local route") };
        let bridge = links.add("far", Route::Networked { bridge, reason }, 3, now);
        links.sent(bridge);
        let now = now + REFRESH_INTERVAL;
        assert_eq!(links.pick("far", now), Pick::Take(bridge));
        assert!(links.instances("far").is_empty());
    }

    #[test]
    fn an_instance_of_the_own_group_replaces_others() {
        let far = |instance| {
            let Route::Local { local, reason, .. } = route(instance) else {
                panic!("a local route")
            };
            Route::Local { local, reason, nearest: false }
        };
        let (mut links, now) = (Links::default(), Instant::now());
        let (idle, busy) = (links.add("b", far("1"), 2, now), links.add("b", far("2"), 2, now));
        links.sent(busy);
        assert_eq!(links.pick("b", now), Pick::Take(idle), "it has just been asked");
        let now = now + REFRESH_INTERVAL;
        assert_eq!(links.pick("b", now), Pick::AskFirst { fallback: idle, nearer: true });
        links.set_none_nearer("b", now);
        assert_eq!(links.pick("b", now), Pick::Take(idle), "there is none");
        let own = links.add("b", route("3"), 1, now);
        assert_eq!(links.pick("b", now), Pick::Take(own));
        assert!(links.route(idle).is_none() && links.route(busy).is_some(), "its call goes on");
        links.done(busy);
        assert!(links.route(busy).is_none());
        let now = now + REFRESH_INTERVAL;
        assert_eq!(links.pick("b", now), Pick::Take(own), "nothing is nearer");
    }

    #[test]
    fn segments_are_lent_where_every_known_instance_takes_them() {
        let lending = |instance: &str| {
            let Route::Local { mut local, reason, nearest } = route(instance) else {
                panic!("a local route")
            };
            local.lends = true;
            Route::Local { local, reason, nearest }
        };
        let (mut links, now) = (Links::default(), Instant::now());
        assert!(!links.lends("b"), "no instance is known");
        links.add("b", lending("1"), 2, now);
        assert!(links.lends("b") && !links.lends("c"));
        links.add("b", route("2"), 2, now);
        assert!(!links.lends("b"));
    }

    #[test]
    fn a_retired_connection_closes_with_its_last_call() {
        let (mut links, now) = (Links::default(), Instant::now());
        let first = links.add("b", route("1"), 1, now);
        links.sent(first);
        assert_eq!(links.retire(first).as_deref(), Some("1"));
        assert_eq!(links.pick("b", now), Pick::Ask);
        assert!(links.route_and_target(first).is_some_and(|(_, target)| target == "b"));
        links.done(first);
        assert!(links.route(first).is_none() && links.callees.is_empty());
        let idle = links.add("b", route("2"), 1, now);
        links.retire(idle);
        assert!(links.route(idle).is_none(), "nothing was out");
        let lost = links.add("b", route("3"), 1, now);
        links.sent(lost);
        links.lost(lost);
        assert_eq!(links.busy().count(), 0);
        assert_eq!(links.retire(lost).as_deref(), Some("3"));
        assert!(links.route(lost).is_none());
    }

    #[test]
    fn known_callees_are_bounded_and_busy_ones_stay() {
        let (mut links, now) = (Links::default(), Instant::now());
        let busy = links.add("busy", route("1"), 1, now);
        links.sent(busy);
        for number in 0..ROUTES_MAX {
            links.add(&format!("f{number}"), route("1"), 1, now);
        }
        assert!(links.callees.len() <= 2 && links.route(busy).is_some());
        links.close_busy();
        assert!(links.route(busy).is_none());
    }
}
