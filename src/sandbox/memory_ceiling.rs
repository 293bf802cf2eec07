//! The ceiling of a worker's private memory, for functions with `cwasi.memory`. The engine counts linear memories and
//! tables; the kernel (`RLIMIT_DATA`) bounds what the host functions keep for a guest besides. Used by sandbox init and
//! by workers, with and without a container.

use std::fs::File;
use std::io::Read as _;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{SysconfVar, sysconf};

use cwasi_wire::control::FunctionLaunch;

/// Bytes beside guests' memory and payloads: allocators, stacks, files' buffers, a snapshot.
const ALLOWANCE: u64 = 256 << 20;
/// Copies of a payload that a worker may hold at a time: the request's, the response's, and that of each as it grows.
const PAYLOADS: u64 = 4;
/// More bytes than seven numbers have.
const STATM_MAX: usize = 256;
/// Instances at a time: one that runs, and the next one.
const INSTANCES: u64 = 2;

/// Most private bytes of a worker, whose process has what this one has before it runs; `None` = as many as there are.
pub fn ceiling(launch: &FunctionLaunch) -> Option<u64> {
    let modules = 1 + launch.embedded.len() as u64;
    let guests = launch.memory_max?.saturating_mul(INSTANCES).saturating_mul(modules);
    let at_start = private_bytes()?;
    let payloads = launch.max_payload.saturating_mul(PAYLOADS);
    Some([at_start, guests, payloads, ALLOWANCE].into_iter().fold(0, u64::saturating_add))
}

/// Private writable bytes of this process, as the kernel compares them with the limit; `None` if `/proc` does not say.
fn private_bytes() -> Option<u64> {
    let page = u64::try_from(sysconf(SysconfVar::PAGE_SIZE).ok()??).ok()?;
    // By the system calls that every profile of a function has: no `statx` for a length.
    let mut text = [0; STATM_MAX];
    let length = File::open("/proc/self/statm").ok()?.read(&mut text).ok()?;
    let text = str::from_utf8(text.get(..length)?).ok()?;
    let pages: u64 = text.split_whitespace().nth(5)?.parse().ok()?;
    pages.checked_mul(page)
}

/// Sets the ceiling of this process. Beyond it the guest's memory does not grow, or the process ends: the error of one
/// call.
pub fn set(bytes: u64) {
    let Ok((_soft, hard)) = getrlimit(Resource::RLIMIT_DATA) else { return };
    let bytes = bytes.min(hard);
    // A seccomp profile may refuse it; the container's own limit stays.
    let _refused = setrlimit(Resource::RLIMIT_DATA, bytes, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_process_has_is_known_and_small() {
        let bytes = private_bytes().unwrap();
        assert!(bytes > 100_000, "{bytes}");
    }
}
