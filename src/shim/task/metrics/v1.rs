//! The message of cgroup v1. Times are nanoseconds.

use std::path::PathBuf;

use containerd_shim::protos::cgroups::metrics::{
    BlkIOEntry, BlkIOStat, CPUStat, CPUUsage, HugetlbStat, MemoryEntry, MemoryOomControl,
    MemoryStat, Metrics, PidsStat, Throttle,
};
use containerd_shim::protos::protobuf::MessageField;

use super::files::{Keyed, huge_pages, number};

pub(super) fn read(directories: &[PathBuf], file: impl Fn(&str) -> Option<String>) -> Metrics {
    let value = |name: &str| number(file(name)).unwrap_or(0);
    let throttled = Keyed::new(file("cpu.stat"));
    let cpu = CPUStat {
        usage: MessageField::some(CPUUsage {
            total: value("cpuacct.usage"),
            user: value("cpuacct.usage_user"),
            kernel: value("cpuacct.usage_sys"),
            ..Default::default()
        }),
        throttling: MessageField::some(Throttle {
            periods: throttled.get("nr_periods"),
            throttled_periods: throttled.get("nr_throttled"),
            throttled_time: throttled.get("throttled_time"),
            ..Default::default()
        }),
        ..Default::default()
    };
    // containerd takes 0 for no limit.
    let pids =
        PidsStat { current: value("pids.current"), limit: value("pids.max"), ..Default::default() };
    let kills = Keyed::new(file("memory.oom_control"));
    let oom = MemoryOomControl {
        oom_kill_disable: kills.get("oom_kill_disable"),
        under_oom: kills.get("under_oom"),
        oom_kill: kills.get("oom_kill"),
        ..Default::default()
    };
    Metrics {
        cpu: MessageField::some(cpu),
        pids: MessageField::some(pids),
        memory: MessageField::some(memory(&file)),
        memory_oom_control: MessageField::some(oom),
        blkio: MessageField::some(io(&file)),
        hugetlb: huge_pages(directories, ".usage_in_bytes", |size, value| HugetlbStat {
            usage: value("usage_in_bytes"),
            max: value("max_usage_in_bytes"),
            failcnt: value("failcnt"),
            pagesize: size.to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Of the files that count all schedulers' requests; a container's own cgroup has no others below it.
fn io(file: &impl Fn(&str) -> Option<String>) -> BlkIOStat {
    let entries = |name: &str| {
        let text = file(name).unwrap_or_default();
        text.lines().filter_map(io_entry).collect()
    };
    BlkIOStat {
        io_service_bytes_recursive: entries("blkio.throttle.io_service_bytes_recursive"),
        io_serviced_recursive: entries("blkio.throttle.io_serviced_recursive"),
        ..Default::default()
    }
}

/// A line such as `8:0 Read 4096`; the sum over all devices (`Total 4096`) is none.
fn io_entry(line: &str) -> Option<BlkIOEntry> {
    let mut words = line.split_whitespace();
    let (major, minor) = words.next()?.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    let (op, value) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
    Some(BlkIOEntry { op, major, minor, value, ..Default::default() })
}

fn memory(file: &impl Fn(&str) -> Option<String>) -> MemoryStat {
    let stat = Keyed::new(file("memory.stat"));
    let entry = |prefix: &str| {
        let value = |name: &str| number(file(&format!("{prefix}.{name}"))).unwrap_or(0);
        MessageField::some(MemoryEntry {
            usage: value("usage_in_bytes"),
            limit: value("limit_in_bytes"),
            max: value("max_usage_in_bytes"),
            failcnt: value("failcnt"),
            ..Default::default()
        })
    };
    MemoryStat {
        cache: stat.get("cache"),
        rss: stat.get("rss"),
        rss_huge: stat.get("rss_huge"),
        mapped_file: stat.get("mapped_file"),
        dirty: stat.get("dirty"),
        writeback: stat.get("writeback"),
        pg_pg_in: stat.get("pgpgin"),
        pg_pg_out: stat.get("pgpgout"),
        pg_fault: stat.get("pgfault"),
        pg_maj_fault: stat.get("pgmajfault"),
        inactive_anon: stat.get("inactive_anon"),
        active_anon: stat.get("active_anon"),
        inactive_file: stat.get("inactive_file"),
        active_file: stat.get("active_file"),
        unevictable: stat.get("unevictable"),
        hierarchical_memory_limit: stat.get("hierarchical_memory_limit"),
        hierarchical_swap_limit: stat.get("hierarchical_memsw_limit"),
        total_cache: stat.get("total_cache"),
        total_rss: stat.get("total_rss"),
        total_rss_huge: stat.get("total_rss_huge"),
        total_mapped_file: stat.get("total_mapped_file"),
        total_dirty: stat.get("total_dirty"),
        total_writeback: stat.get("total_writeback"),
        total_pg_pg_in: stat.get("total_pgpgin"),
        total_pg_pg_out: stat.get("total_pgpgout"),
        total_pg_fault: stat.get("total_pgfault"),
        total_pg_maj_fault: stat.get("total_pgmajfault"),
        total_inactive_anon: stat.get("total_inactive_anon"),
        total_active_anon: stat.get("total_active_anon"),
        total_inactive_file: stat.get("total_inactive_file"),
        total_active_file: stat.get("total_active_file"),
        total_unevictable: stat.get("total_unevictable"),
        usage: entry("memory"),
        swap: entry("memory.memsw"),
        kernel: entry("memory.kmem"),
        kernel_tcp: entry("memory.kmem.tcp"),
        ..Default::default()
    }
}
