//! The system calls of a function's processes: what a seccomp profile must allow.

/// System calls that a function's seccomp profile must allow. The profile is in force before init runs; containerd's
/// default profile allows them all. The first line of each group is libcontainer's, between the profile and the start;
/// `close_range` may be missing, then descriptors are closed one by one, and so may `mincore`, without which requests
/// cost more, and `sched_getaffinity`, without which more workers are woken
/// than there are processors.
///
/// The filter that keeps native code of the image out (`sandbox::exec_filter`) is installed before
/// the profile; in a container with hooks it comes later and needs `seccomp`.
///
/// What a guest does with files and sockets comes on top (`newfstatat`, `getdents64`, …).
pub const SYSTEM_CALLS: &[&str] = &[
    // libcontainer: tells the builder that it is ready, waits for the start
    "accept4",
    "read",
    "recvfrom",
    "sendto",
    "getcwd",
    "exit_group",
    // init and workers: forking, sockets, signals, time
    "capget",
    "capset",
    "clone",
    "clock_gettime",
    "close",
    "close_range",
    "dup2",
    "dup3",
    "eventfd2",
    "fcntl",
    "futex",
    "getpid",
    "getppid",
    "getrandom",
    "ioctl",
    "kill",
    "poll",
    "ppoll",
    "prctl",
    "prlimit64",
    "recvmsg",
    "rt_sigprocmask",
    "rt_sigreturn",
    "sched_getaffinity",
    "sched_yield",
    "sendmsg",
    "shutdown",
    "sigaltstack",
    "signalfd4",
    "socketpair",
    "wait4",
    "write",
    // payloads and responses
    "fstat",
    "fstatfs",
    "ftruncate",
    "lseek",
    "madvise",
    "memfd_create",
    "mremap",
    // the page map of the process
    "openat",
    "pipe2",
    "pread64",
    "pwrite64",
    // the engine: memory, traps, WASI's clocks, polls and stdio
    "brk",
    "epoll_create1",
    "epoll_ctl",
    "epoll_wait",
    "gettid",
    "mmap",
    "mprotect",
    "munmap",
    "readv",
    "rt_sigaction",
    "tgkill",
    "timerfd_create",
    "timerfd_settime",
    "writev",
];
