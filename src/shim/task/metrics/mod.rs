//! A container's use of the node, read from its cgroups, in containerd's messages: `io.containerd.cgroups.v1.Metrics`
//! or `v2.Metrics`, as the host is.
//!
//! `containerd_shim::cgroup` has no resident memory and no page faults, looks for cgroup v1's names with v2, and fills
//! the messages of v1 only.

mod files;
mod v1;
mod v2;

use std::fs;
use std::path::PathBuf;

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
        convert_to_any(Box::new(v2::read(directories, files)))
    } else {
        convert_to_any(Box::new(v1::read(directories, files)))
    }
}

#[cfg(test)]
mod tests {
    use containerd_shim::protos::cgroups::metrics as v1;
    use containerd_shim::protos::cgroups_v2::metrics as v2;
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
    fn a_v1_controller_has_its_own_directory() {
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
    fn v2_has_its_own_message() {
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
