//! Ends the processes that a killed daemon left: zygote, builders, libcontainer's intermediate processes, compilers.
//! Runs in `delete`.
//!
//! A daemon begins a session, and its children stay in it. Only inits begin sessions of their own, and they are in
//! their container's cgroups by then. So after the last process of the session has ended, no process can make further
//! resources for a container, and the recorded ones can be removed.
//!
//! The kernel does not reuse a session's number while the session has members.

use std::fs;
use std::time::Duration;

use cwasi_config::Engine;
use cwasi_sys::pidfd::PidFd;

/// Most rounds over the processes.
const ROUNDS: u32 = 200;
/// Pause between two rounds.
const ROUND_PAUSE: Duration = Duration::from_millis(10);

/// Fields of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// True for an ended process that its parent has not reaped.
    pub is_zombie: bool,
    /// Number of its session.
    pub session: i32,
    /// Start in clock ticks after boot: tells it from a later process with the same pid.
    pub started: u64,
}

impl Stat {
    /// Of a process; `None` when there is none with this number.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    pub fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may hold anything, so count from behind it; the state is field 3.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        let session = fields.nth(2)?.parse().ok()?;
        Some(Self { is_zombie, session, started: fields.nth(15)?.parse().ok()? })
    }
}

/// Ends what is left of the session of a daemon, if the daemon itself has ended; false when some of it stays.
#[must_use]
pub fn end_orphans(daemon: i32, started: u64) -> bool {
    let is_dead = match Stat::of(daemon) {
        None => true,
        // A later process has the number, so the session has no members.
        Some(stat) if stat.started != started => return true,
        Some(stat) => stat.is_zombie,
    };
    if daemon <= 0 || !is_dead {
        return true;
    }
    for _ in 0..ROUNDS {
        let orphans = orphans(daemon);
        if orphans.is_empty() {
            return true;
        }
        for pid in orphans {
            // Looked at again: the number cannot change hands any more once it is open.
            if let Ok(orphan) = PidFd::open(pid)
                && is_orphan(pid, daemon)
            {
                // It may have ended by itself.
                let _ = orphan.signal(libc::SIGKILL);
            }
        }
        std::thread::sleep(ROUND_PAUSE);
    }
    false
}

/// Waits for the end of a process that is ending; false when it has not ended after `longest`. A start time tells it
/// from a later process with the same number.
#[must_use]
pub fn has_ended(pid: i32, started: Option<u64>, longest: Duration) -> bool {
    // Opened before it is compared: an open pidfd cannot change its process.
    let Ok(process) = PidFd::open(pid) else { return true };
    let stat = Stat::of(pid);
    let is_another = |stat: Stat| started.is_some_and(|started| stat.started != started);
    stat.is_none_or(is_another) || process.wait(longest)
}

fn orphans(daemon: i32) -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| is_orphan(*pid, daemon)).collect()
}

fn is_orphan(pid: i32, daemon: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.session == daemon && !stat.is_zombie) && is_ours(pid)
}

fn is_ours(pid: i32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| is_engines(&name.to_string_lossy()))
}

/// True for the name of an engine's program. Hooks of a container are not ours.
fn is_engines(name: &str) -> bool {
    // A program that was replaced since has " (deleted)" behind its name.
    let name = name.strip_suffix(" (deleted)").unwrap_or(name);
    Engine::ALL.iter().any(|engine| engine.programs().contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_whatever_the_name_is() {
        let text = "7 (a) b) Z 1 7 5 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        let stat = Stat { is_zombie: true, session: 5, started: 12345 };
        assert_eq!(Stat::parse(text), Some(stat));
        assert_eq!(Stat::parse("7 (a"), None);
        let own = Stat::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(own.started > 0 && !own.is_zombie);
        assert_eq!(Stat::of(i32::MAX), None);
    }

    #[test]
    fn programs_of_all_engines_are_known_also_after_an_upgrade() {
        for name in ["cwasi-sandbox", "cwasi-compiler", "cwasi-sandbox-wasmedge (deleted)"] {
            assert!(is_engines(name), "{name}");
        }
        assert!(!is_engines("cwasi-shim") && !is_engines("hook"));
    }

    #[test]
    fn a_process_ends_when_all_of_it_has() {
        let own = i32::try_from(std::process::id()).unwrap();
        let started = Stat::of(own).unwrap().started;
        assert!(!has_ended(own, Some(started), Duration::ZERO));
        assert!(!has_ended(own, None, Duration::ZERO));
        assert!(
            has_ended(own, Some(started + 1), Duration::ZERO) && has_ended(0, None, Duration::ZERO)
        );
        let mut child = std::process::Command::new("sleep").arg("3600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(!has_ended(pid, None, Duration::ZERO));
        child.kill().unwrap();
        assert!(has_ended(pid, None, Duration::from_secs(30)));
        child.wait().unwrap();
    }

    #[test]
    fn a_session_belongs_to_a_living_daemon() {
        let own = i32::try_from(std::process::id()).unwrap();
        let started = Stat::of(own).unwrap().started;
        assert!(end_orphans(own, started) && end_orphans(own, started + 1) && end_orphans(0, 0));
        assert!(!is_ours(own));
    }
}
