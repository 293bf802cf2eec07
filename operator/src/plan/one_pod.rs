//! What all functions and services of a workflow share in one pod (`placement.policy: pod`): a network, the names of
//! containers, a number of pods, a schedule, and no storage.

use std::collections::BTreeMap;

use cwasi_workflow::{Placement, Role};

use super::{Plan, PlannedFunction};

/// The remedy that always helps.
const REMEDY: &str = "use policy node";

impl Plan {
    /// What one pod cannot have; nothing with another placement.
    pub(super) fn check_placement(&self, faults: &mut Vec<String>) {
        if self.placement != Placement::Pod {
            return;
        }
        for planned in self.secondaries().filter(|it| it.function.cluster.scale.is_some()) {
            faults.push(format!(
                "spec.functions.{}.scale: placement.policy pod has one pod for all functions: use `replicas`, or policy node",
                planned.function.name
            ));
        }
        let mut schedules = self.primaries().map(|it| &it.function.cluster.schedule);
        if let Some(first) = schedules.next()
            && schedules.any(|other| other != first)
        {
            faults.push(format!(
                "primaries have different schedules, and placement.policy pod has one pod for all functions: {REMEDY}"
            ));
        }
        for planned in self.services.iter().filter(|it| it.service.storage.is_some()) {
            faults.push(format!(
                "spec.services.{}.storage: placement.policy pod has one pod for all, which keeps nothing: {REMEDY}",
                planned.service.name
            ));
        }
        self.check_names(faults);
        self.check_networks(faults);
        self.check_ports(faults);
    }

    /// Functions that run, with their paths.
    fn running(&self) -> impl Iterator<Item = (String, &PlannedFunction)> {
        let running = self.functions.iter().filter(|it| it.function.role != Role::Library);
        running.map(|it| (format!("spec.functions.{}", it.function.name), it))
    }

    fn check_names(&self, faults: &mut Vec<String>) {
        let services = self.services.iter().map(|it| {
            (format!("spec.services.{}", it.service.name), vec![it.service.name.clone()])
        });
        let running: Vec<_> = self.running().map(|(_, it)| it).collect();
        let libraries = self.libraries(&running).map(|it| {
            (format!("spec.functions.{}", it.function.name), vec![it.function.name.clone()])
        });
        let running = self.running().map(|(path, it)| (path, it.container_names()));
        let mut taken = BTreeMap::new();
        for (path, names) in services.chain(libraries).chain(running) {
            for name in names {
                if let Some(other) = taken.insert(name.clone(), path.clone()) {
                    faults.push(format!(
                        "{path}: {other} has a container `{name}`, too, and placement.policy pod has one pod for all: \
                         rename one, or {REMEDY}"
                    ));
                }
            }
        }
    }

    /// With the node's network for one, everybody's ports are the node's.
    fn check_networks(&self, faults: &mut Vec<String>) {
        let services = self.services.iter().map(|it| {
            (format!("spec.services.{}", it.service.name), it.service.host_network, true)
        });
        let functions = self.running().map(|(path, it)| {
            (path, it.function.host_network, it.function.cluster.http_port.is_some())
        });
        let all: Vec<_> = functions.chain(services).collect();
        let of_node = all.iter().find(|(_, is_host, _)| *is_host);
        let own = all.iter().find(|(_, is_host, has_port)| *has_port && !*is_host);
        if let (Some((first, ..)), Some((other, ..))) = (of_node, own) {
            faults.push(format!(
                "{first}.hostNetwork: placement.policy pod has one network for all, and would open the port of {other} on \
                 the node: set hostNetwork there, too, or for none, or {REMEDY}"
            ));
        }
    }

    fn check_ports(&self, faults: &mut Vec<String>) {
        let services = self
            .services
            .iter()
            .map(|it| (format!("spec.services.{}", it.service.name), it.service.port));
        let functions =
            self.running().filter_map(|(path, it)| Some((path, it.function.cluster.http_port?)));
        let mut taken = BTreeMap::new();
        for (path, port) in services.chain(functions) {
            if let Some(other) = taken.insert(port, path.clone()) {
                faults.push(format!(
                    "{path}: {other} has the port {port}, too, and placement.policy pod has one network for all: choose \
                     another port, or {REMEDY}"
                ));
            }
        }
        for (path, planned) in self.running() {
            let (replicas, port) = (planned.function.replicas, planned.function.cluster.http_port);
            if let (2.., Some(port)) = (replicas, port) {
                faults.push(format!(
                    "{path}.replicas: placement.policy pod has one network for all, and only one of {replicas} containers can \
                     have the port {port}: keep one of `replicas` and `http`, or {REMEDY}"
                ));
            }
        }
    }
}
