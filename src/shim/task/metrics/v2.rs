//! The message of cgroup v2. Times are microseconds.

use std::path::PathBuf;

use containerd_shim::protos::cgroups_v2::metrics::{
    CPUStat, HugeTlbStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, PidsStat,
};
use containerd_shim::protos::protobuf::MessageField;

use super::files::{Keyed, huge_pages, limit, number};

pub(super) fn read(directories: &[PathBuf], file: impl Fn(&str) -> Option<String>) -> Metrics {
    let cpu = Keyed::new(file("cpu.stat"));
    let cpu = CPUStat {
        usage_usec: cpu.get("usage_usec"),
        user_usec: cpu.get("user_usec"),
        system_usec: cpu.get("system_usec"),
        nr_periods: cpu.get("nr_periods"),
        nr_throttled: cpu.get("nr_throttled"),
        throttled_usec: cpu.get("throttled_usec"),
        nr_bursts: cpu.get("nr_bursts"),
        burst_usec: cpu.get("burst_usec"),
        ..Default::default()
    };
    let pids = PidsStat {
        current: number(file("pids.current")).unwrap_or(0),
        limit: limit(file("pids.max")),
        ..Default::default()
    };
    let events = Keyed::new(file("memory.events"));
    let events = MemoryEvents {
        low: events.get("low"),
        high: events.get("high"),
        max: events.get("max"),
        oom: events.get("oom"),
        oom_kill: events.get("oom_kill"),
        oom_group_kill: events.get("oom_group_kill"),
        ..Default::default()
    };
    let usage = file("io.stat").unwrap_or_default().lines().filter_map(io_entry).collect();
    let io = IOStat { usage, ..Default::default() };
    Metrics {
        cpu: MessageField::some(cpu),
        pids: MessageField::some(pids),
        memory: MessageField::some(memory(&file)),
        memory_events: MessageField::some(events),
        io: MessageField::some(io),
        hugetlb: huge_pages(directories, ".current", |size, value| HugeTlbStat {
            current: value("current"),
            max: value("max"),
            pagesize: size.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn memory(file: &impl Fn(&str) -> Option<String>) -> MemoryStat {
    let stat = Keyed::new(file("memory.stat"));
    let value = |name: &str| number(file(name)).unwrap_or(0);
    MemoryStat {
        anon: stat.get("anon"),
        file: stat.get("file"),
        kernel_stack: stat.get("kernel_stack"),
        slab: stat.get("slab"),
        sock: stat.get("sock"),
        shmem: stat.get("shmem"),
        file_mapped: stat.get("file_mapped"),
        file_dirty: stat.get("file_dirty"),
        file_writeback: stat.get("file_writeback"),
        anon_thp: stat.get("anon_thp"),
        inactive_anon: stat.get("inactive_anon"),
        active_anon: stat.get("active_anon"),
        inactive_file: stat.get("inactive_file"),
        active_file: stat.get("active_file"),
        unevictable: stat.get("unevictable"),
        slab_reclaimable: stat.get("slab_reclaimable"),
        slab_unreclaimable: stat.get("slab_unreclaimable"),
        pgfault: stat.get("pgfault"),
        pgmajfault: stat.get("pgmajfault"),
        // Kernels since 5.9 count anonymous pages and files apart.
        workingset_refault: stat.get("workingset_refault_anon")
            + stat.get("workingset_refault_file"),
        workingset_activate: stat.get("workingset_activate_anon")
            + stat.get("workingset_activate_file"),
        workingset_nodereclaim: stat.get("workingset_nodereclaim"),
        pgrefill: stat.get("pgrefill"),
        pgscan: stat.get("pgscan"),
        pgsteal: stat.get("pgsteal"),
        pgactivate: stat.get("pgactivate"),
        pgdeactivate: stat.get("pgdeactivate"),
        pglazyfree: stat.get("pglazyfree"),
        pglazyfreed: stat.get("pglazyfreed"),
        thp_fault_alloc: stat.get("thp_fault_alloc"),
        thp_collapse_alloc: stat.get("thp_collapse_alloc"),
        usage: value("memory.current"),
        usage_limit: limit(file("memory.max")),
        max_usage: value("memory.peak"),
        swap_usage: value("memory.swap.current"),
        swap_limit: limit(file("memory.swap.max")),
        swap_max_usage: value("memory.swap.peak"),
        ..Default::default()
    }
}

/// A line of `io.stat`: `8:0 rbytes=1 wbytes=2 rios=3 wios=4 …`.
fn io_entry(line: &str) -> Option<IOEntry> {
    let mut words = line.split_whitespace();
    let (major, minor) = words.next()?.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    let mut entry = IOEntry { major, minor, ..Default::default() };
    for (key, value) in words.filter_map(|word| word.split_once('=')) {
        let value = value.parse().unwrap_or(0);
        match key {
            "rbytes" => entry.rbytes = value,
            "wbytes" => entry.wbytes = value,
            "rios" => entry.rios = value,
            "wios" => entry.wios = value,
            _ => {}
        }
    }
    Some(entry)
}
