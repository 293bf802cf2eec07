//! What a container's cgroups say about its use of the node, as containerd wants it: `io.containerd.cgroups.v1.Metrics` or
//! `v2.Metrics`, as the host is.
//!
//! `containerd_shim::cgroup` has no resident memory and no page faults, looks for cgroup v1's names with v2, and fills the
//! messages of v1 only.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use containerd_shim::protos::cgroups::metrics as v1;
use containerd_shim::protos::cgroups_v2::metrics as v2;
use containerd_shim::protos::protobuf::MessageField;
use containerd_shim::protos::protobuf::well_known_types::any::Any;
use containerd_shim::util::convert_to_any;

/// Reads the cgroups in `directories`, which are one container's: one with cgroup v2, one for each controller with v1.
///
/// # Errors
/// When the message cannot be encoded.
pub fn read(directories: &[PathBuf]) -> containerd_shim::Result<Any> {
    let files = |file: &str| {
        directories.iter().find_map(|directory| fs::read_to_string(directory.join(file)).ok())
    };
    let is_v2 = |directory: &PathBuf| directory.join("cgroup.controllers").exists();
    if directories.iter().all(is_v2) {
        let mut metrics = unified(files);
        metrics.hugetlb = huge_pages(directories, ".current", |size, value| v2::HugeTlbStat {
            current: value("current"),
            max: value("max"),
            pagesize: size.to_owned(),
            ..Default::default()
        });
        convert_to_any(Box::new(metrics))
    } else {
        let mut metrics = legacy(files);
        metrics.hugetlb =
            huge_pages(directories, ".usage_in_bytes", |size, value| v1::HugetlbStat {
                usage: value("usage_in_bytes"),
                max: value("max_usage_in_bytes"),
                failcnt: value("failcnt"),
                pagesize: size.to_owned(),
                ..Default::default()
            });
        convert_to_any(Box::new(metrics))
    }
}

/// A number in a file of its own; `None` for "max".
fn number(text: Option<String>) -> Option<u64> {
    text?.trim().parse().ok()
}

/// A number, or the largest one for "max" and for a limit that is not there.
fn limit(text: Option<String>) -> u64 {
    number(text).unwrap_or(u64::MAX)
}

/// Lines of a name and a number.
struct Keyed(HashMap<String, u64>);

impl Keyed {
    fn new(text: Option<String>) -> Self {
        let text = text.unwrap_or_default();
        let pair = |line: &str| {
            let (key, value) = line.split_once(' ')?;
            Some((key.to_owned(), value.trim().parse().ok()?))
        };
        Self(text.lines().filter_map(pair).collect())
    }

    /// 0 when the kernel does not tell it.
    fn get(&self, key: &str) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }
}

/// With cgroup v1. Times are nanoseconds.
fn legacy(file: impl Fn(&str) -> Option<String>) -> v1::Metrics {
    let value = |name: &str| number(file(name)).unwrap_or(0);
    let throttled = Keyed::new(file("cpu.stat"));
    let cpu = v1::CPUStat {
        usage: MessageField::some(v1::CPUUsage {
            total: value("cpuacct.usage"),
            user: value("cpuacct.usage_user"),
            kernel: value("cpuacct.usage_sys"),
            ..Default::default()
        }),
        throttling: MessageField::some(v1::Throttle {
            periods: throttled.get("nr_periods"),
            throttled_periods: throttled.get("nr_throttled"),
            throttled_time: throttled.get("throttled_time"),
            ..Default::default()
        }),
        ..Default::default()
    };
    // containerd takes 0 for no limit.
    let pids = v1::PidsStat {
        current: value("pids.current"),
        limit: value("pids.max"),
        ..Default::default()
    };
    let kills = Keyed::new(file("memory.oom_control"));
    let oom = v1::MemoryOomControl {
        oom_kill_disable: kills.get("oom_kill_disable"),
        under_oom: kills.get("under_oom"),
        oom_kill: kills.get("oom_kill"),
        ..Default::default()
    };
    v1::Metrics {
        cpu: MessageField::some(cpu),
        pids: MessageField::some(pids),
        memory: MessageField::some(legacy_memory(&file)),
        memory_oom_control: MessageField::some(oom),
        blkio: MessageField::some(legacy_io(&file)),
        ..Default::default()
    }
}

/// Of the files that count all schedulers' requests; a container's own cgroup has no others below it.
fn legacy_io(file: &impl Fn(&str) -> Option<String>) -> v1::BlkIOStat {
    let entries = |name: &str| {
        let text = file(name).unwrap_or_default();
        text.lines().filter_map(legacy_io_entry).collect()
    };
    v1::BlkIOStat {
        io_service_bytes_recursive: entries("blkio.throttle.io_service_bytes_recursive"),
        io_serviced_recursive: entries("blkio.throttle.io_serviced_recursive"),
        ..Default::default()
    }
}

/// A line such as `8:0 Read 4096`; the sum over all devices (`Total 4096`) is none.
fn legacy_io_entry(line: &str) -> Option<v1::BlkIOEntry> {
    let mut words = line.split_whitespace();
    let (major, minor) = words.next()?.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    let (op, value) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
    Some(v1::BlkIOEntry { op, major, minor, value, ..Default::default() })
}

/// How much a page size has of it, for each one that a directory has files of: `hugetlb.2MB.usage_in_bytes` with cgroup v1,
/// `hugetlb.2MB.current` with v2.
fn huge_pages<T>(
    directories: &[PathBuf],
    usage: &str,
    entry: impl Fn(&str, &dyn Fn(&str) -> u64) -> T,
) -> Vec<T> {
    let mut all = Vec::new();
    for directory in directories {
        let names = fs::read_dir(directory).into_iter().flatten().flatten();
        for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
            let size = name.strip_prefix("hugetlb.").and_then(|rest| rest.strip_suffix(usage));
            let Some(size) = size.filter(|size| !size.ends_with(".rsvd")) else { continue };
            let value = |file: &str| {
                let path = directory.join(format!("hugetlb.{size}.{file}"));
                limit(fs::read_to_string(path).ok())
            };
            all.push(entry(size, &value));
        }
    }
    all
}

fn legacy_memory(file: &impl Fn(&str) -> Option<String>) -> v1::MemoryStat {
    let stat = Keyed::new(file("memory.stat"));
    let entry = |prefix: &str| {
        let value = |name: &str| number(file(&format!("{prefix}.{name}"))).unwrap_or(0);
        MessageField::some(v1::MemoryEntry {
            usage: value("usage_in_bytes"),
            limit: value("limit_in_bytes"),
            max: value("max_usage_in_bytes"),
            failcnt: value("failcnt"),
            ..Default::default()
        })
    };
    v1::MemoryStat {
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

/// With cgroup v2. Times are microseconds.
fn unified(file: impl Fn(&str) -> Option<String>) -> v2::Metrics {
    let cpu = Keyed::new(file("cpu.stat"));
    let cpu = v2::CPUStat {
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
    let pids = v2::PidsStat {
        current: number(file("pids.current")).unwrap_or(0),
        limit: limit(file("pids.max")),
        ..Default::default()
    };
    let events = Keyed::new(file("memory.events"));
    let events = v2::MemoryEvents {
        low: events.get("low"),
        high: events.get("high"),
        max: events.get("max"),
        oom: events.get("oom"),
        oom_kill: events.get("oom_kill"),
        oom_group_kill: events.get("oom_group_kill"),
        ..Default::default()
    };
    let usage = file("io.stat").unwrap_or_default().lines().filter_map(io_entry).collect();
    let io = v2::IOStat { usage, ..Default::default() };
    v2::Metrics {
        cpu: MessageField::some(cpu),
        pids: MessageField::some(pids),
        memory: MessageField::some(unified_memory(&file)),
        memory_events: MessageField::some(events),
        io: MessageField::some(io),
        ..Default::default()
    }
}

fn unified_memory(file: &impl Fn(&str) -> Option<String>) -> v2::MemoryStat {
    let stat = Keyed::new(file("memory.stat"));
    let value = |name: &str| number(file(name)).unwrap_or(0);
    v2::MemoryStat {
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
fn io_entry(line: &str) -> Option<v2::IOEntry> {
    let mut words = line.split_whitespace();
    let (major, minor) = words.next()?.split_once(':')?;
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    let mut entry = v2::IOEntry { major, minor, ..Default::default() };
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

#[cfg(test)]
mod tests {
    use containerd_shim::protos::protobuf::Message as _;

    use super::*;

    /// `memory.stat` of a container on a hybrid host, kernel 6.18.
    const V1_STAT: &str = "\
cache 10240000\nrss 17936384\nrss_huge 0\nshmem 9084928\nmapped_file 7675904\ndirty 49152\nwriteback 0\n\
workingset_refault_anon 0\nworkingset_refault_file 42192\nswap 0\nswapcached 0\npgpgin 131883\npgpgout 125004\n\
pgfault 158092\npgmajfault 3\ninactive_anon 0\nactive_anon 1531904\ninactive_file 122880\nactive_file 1032192\n\
unevictable 25489408\nhierarchical_memory_limit 100663296\nhierarchical_memsw_limit 9223372036854771712\n\
total_cache 10240001\ntotal_rss 17936385\ntotal_rss_huge 0\ntotal_shmem 9084928\ntotal_mapped_file 7675905\n\
total_dirty 49153\ntotal_writeback 0\ntotal_swap 0\ntotal_pgpgin 131884\ntotal_pgpgout 125005\ntotal_pgfault 158093\n\
total_pgmajfault 4\ntotal_inactive_anon 0\ntotal_active_anon 1531905\ntotal_inactive_file 122881\n\
total_active_file 1032193\ntotal_unevictable 25489409\n";
    /// `memory.stat` of a container in the virtual machine, kernel 6.12, without its end.
    const V2_STAT: &str = "\
anon 1839104\nfile 9494528\nkernel 1531904\nkernel_stack 81920\npagetables 778240\nsec_pagetables 0\npercpu 3264\n\
sock 0\nvmalloc 0\nshmem 1105920\nzswap 0\nzswapped 0\nfile_mapped 0\nfile_dirty 0\nfile_writeback 0\nswapcached 0\n\
anon_thp 0\nfile_thp 0\nshmem_thp 0\ninactive_anon 2920448\nactive_anon 24576\ninactive_file 8388608\nactive_file 0\n\
unevictable 0\nslab_reclaimable 232400\nslab_unreclaimable 395808\nslab 628208\nworkingset_refault_anon 1\n\
workingset_refault_file 2\npgfault 5613\npgmajfault 7\n";

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    fn paths(dirs: &[&tempfile::TempDir]) -> Vec<PathBuf> {
        dirs.iter().map(|dir| dir.path().to_owned()).collect()
    }

    #[test]
    fn with_cgroup_v1_each_controller_has_a_directory() {
        let memory = dir(&[
            ("memory.stat", V1_STAT),
            ("memory.usage_in_bytes", "30000000\n"),
            ("memory.limit_in_bytes", "100663296\n"),
            ("memory.failcnt", "5\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
        ]);
        let cpu = dir(&[
            ("cpuacct.usage", "1000000007\n"),
            ("cpuacct.usage_user", "900000000\n"),
            ("cpuacct.usage_sys", "100000007\n"),
            ("cpu.stat", "nr_periods 10\nnr_throttled 3\nthrottled_time 77\n"),
        ]);
        let pids = dir(&[("pids.current", "3\n"), ("pids.max", "max\n")]);
        let bytes = "8:0 Read 4096\n8:0 Write 512\n8:0 Total 4608\nTotal 4608\n";
        let io = dir(&[
            ("blkio.throttle.io_service_bytes_recursive", bytes),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 1\nTotal 1\n"),
        ]);
        let huge = dir(&[
            ("hugetlb.2MB.usage_in_bytes", "4194304\n"),
            ("hugetlb.2MB.max_usage_in_bytes", "6291456\n"),
            ("hugetlb.2MB.failcnt", "2\n"),
            ("hugetlb.2MB.rsvd.usage_in_bytes", "1\n"),
        ]);
        let any = read(&paths(&[&memory, &cpu, &pids, &io, &huge])).unwrap();
        assert_eq!(any.type_url, "io.containerd.cgroups.v1.Metrics");
        let metrics = v1::Metrics::parse_from_bytes(&any.value).unwrap();
        let memory = &metrics.memory;
        // What containerd makes rssBytes, pageFaults, majorPageFaults and the working set of.
        assert_eq!(
            [memory.total_rss, memory.total_pg_fault, memory.total_pg_maj_fault],
            [17_936_385, 158_093, 4]
        );
        assert_eq!((memory.usage.usage, memory.total_inactive_file), (30_000_000, 122_881));
        assert_eq!((memory.usage.limit, memory.usage.failcnt), (100_663_296, 5));
        assert_eq!((memory.rss, memory.total_cache), (17_936_384, 10_240_001));
        assert_eq!(metrics.memory_oom_control.oom_kill, 2);
        assert_eq!((metrics.cpu.usage.total, metrics.cpu.usage.user), (1_000_000_007, 900_000_000));
        assert_eq!((metrics.cpu.throttling.throttled_periods, metrics.pids.current), (3, 3));
        assert_eq!(metrics.pids.limit, 0, "none");
        let bytes = &metrics.blkio.io_service_bytes_recursive;
        let bytes: Vec<_> =
            bytes.iter().map(|one| (one.major, one.op.as_str(), one.value)).collect();
        assert_eq!(bytes, [(8, "Read", 4096), (8, "Write", 512), (8, "Total", 4608)]);
        assert_eq!(metrics.blkio.io_serviced_recursive.len(), 1);
        let [huge] = metrics.hugetlb.as_slice() else { panic!("{:?}", metrics.hugetlb) };
        assert_eq!((huge.pagesize.as_str(), huge.usage), ("2MB", 4_194_304));
        assert_eq!((huge.max, huge.failcnt), (6_291_456, 2));
    }

    #[test]
    fn with_cgroup_v2_the_message_is_that_versions() {
        let unified = dir(&[
            ("cgroup.controllers", "cpu io memory pids\n"),
            ("memory.stat", V2_STAT),
            ("memory.current", "12345678\n"),
            ("memory.max", "100663296\n"),
            ("memory.peak", "23456789\n"),
            ("memory.swap.max", "max\n"),
            ("memory.events", "low 0\nhigh 0\nmax 9\noom 2\noom_kill 2\noom_group_kill 0\n"),
            ("cpu.stat", "usage_usec 5000\nuser_usec 4000\nsystem_usec 1000\nnr_throttled 3\n"),
            ("io.stat", "8:16 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n"),
            ("pids.current", "3\n"),
            ("pids.max", "32\n"),
            ("hugetlb.2MB.current", "2097152\n"),
            ("hugetlb.2MB.max", "max\n"),
            ("hugetlb.2MB.rsvd.current", "1\n"),
        ]);
        let any = read(&paths(&[&unified])).unwrap();
        assert_eq!(any.type_url, "io.containerd.cgroups.v2.Metrics");
        let metrics = v2::Metrics::parse_from_bytes(&any.value).unwrap();
        let memory = &metrics.memory;
        assert_eq!([memory.anon, memory.pgfault, memory.pgmajfault], [1_839_104, 5613, 7]);
        // The page cache that can be dropped is no part of the working set.
        assert_eq!((memory.usage, memory.inactive_file), (12_345_678, 8_388_608));
        assert_eq!((memory.usage_limit, memory.swap_limit), (100_663_296, u64::MAX));
        assert_eq!((memory.max_usage, memory.workingset_refault), (23_456_789, 3));
        assert_eq!(metrics.memory_events.oom_kill, 2);
        assert_eq!((metrics.cpu.usage_usec, metrics.cpu.nr_throttled), (5000, 3));
        assert_eq!((metrics.pids.current, metrics.pids.limit), (3, 32));
        let [huge] = metrics.hugetlb.as_slice() else { panic!("{:?}", metrics.hugetlb) };
        assert_eq!((huge.current, huge.max), (2_097_152, u64::MAX));
        let io = &metrics.io.usage[0];
        assert_eq!((io.major, io.minor, io.rbytes, io.wios), (8, 16, 1, 4));
    }
}
