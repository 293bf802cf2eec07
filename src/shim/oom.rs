//! Reports processes of a container that the OOM killer ended. Runs in the shim daemon.
//!
//! It costs one or two descriptors per container on tokio's reactor, and no time while nothing happens.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::cgroups;
use cwasi_host::readiness;

/// Most reads of the counter after an event, and the pauses between them. cgroup v1 sends the event before it counts.
const READS_V1: (u32, Duration) = (40, Duration::from_millis(50));
/// With cgroup v2 the event that memory is short comes at once, and that of the kill up to 10 ms later. systemd removes
/// a scope, and its counter, when the scope's last process has ended.
const READS_V2: (u32, Duration) = (20, Duration::from_millis(1));
/// Longest `memory.events`, in bytes; the kernel writes six short lines.
const EVENTS_MAX: usize = 4096;

/// The OOM kills of one container.
#[derive(Debug)]
pub struct OomKills {
    directories: Vec<PathBuf>,
    reported: u64,
    event: Option<Event>,
}

#[derive(Debug)]
enum Event {
    /// An eventfd, registered with the counter's file.
    V1(AsyncFd<OwnedFd>),
    /// `memory.events`, which has priority data after a change.
    V2(AsyncFd<OwnedFd>),
}

impl OomKills {
    /// Watches these cgroups. Without kernel events, kills are counted only at the container's end.
    #[must_use]
    pub fn watch(directories: &[PathBuf]) -> Self {
        let reported = cgroups::oom_kills(directories);
        let event = directories.iter().find_map(|directory| {
            let opened = Event::open(directory);
            opened.inspect_err(|error| {
                tracing::debug!(%error, path = %directory.display(), "no events of the OOM killer");
            })
            .ok()
            .flatten()
        });
        Self { directories: directories.to_owned(), reported, event }
    }

    /// Waits for kills; returns their number since the last call.
    pub async fn next(&mut self) -> u64 {
        loop {
            let seen = match &mut self.event {
                Some(event) => event.wait().await,
                None => std::future::pending().await,
            };
            if let Err(error) = seen {
                tracing::debug!(%error, "kills by the OOM killer are counted at the end");
                self.event = None;
                continue;
            }
            let (reads, pause) = match self.event {
                Some(Event::V2(_)) => READS_V2,
                _ => READS_V1,
            };
            for _ in 0..reads {
                match self.since() {
                    // An event below the limit, or of another container with the same parent.
                    0 => tokio::time::sleep(pause).await,
                    kills => return kills,
                }
            }
        }
    }

    /// Number of kills since the last call.
    #[must_use]
    pub fn since(&mut self) -> u64 {
        let kills = match &self.event {
            Some(Event::V2(events)) => {
                read_at_start(events).map_or(0, |text| cgroups::oom_kills_in(&text))
            }
            _ => cgroups::oom_kills(&self.directories),
        };
        let new = kills.saturating_sub(self.reported);
        self.reported = self.reported.max(kills);
        new
    }

    /// Number of kills in all.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.reported
    }
}

impl Event {
    /// `None` if the directory has no memory controller.
    fn open(directory: &Path) -> io::Result<Option<Self>> {
        let (v1, v2) = (directory.join("memory.oom_control"), directory.join("memory.events"));
        if v2.exists() {
            let file = readiness::watch_priority(File::open(v2)?.into())?;
            return Ok(Some(Self::V2(file)));
        }
        if !v1.exists() {
            return Ok(None);
        }
        let control = File::open(v1)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_value_and_flags(0, flags)?;
        let words = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
        fs::write(directory.join("cgroup.event_control"), words)?;
        Ok(Some(Self::V1(readiness::watch(event.into())?)))
    }

    async fn wait(&mut self) -> io::Result<()> {
        match self {
            Self::V1(event) => {
                let mut ready = event.readable().await?;
                let mut count = [0; 8];
                let taken = ready.try_io(|event| Ok(nix::unistd::read(event, &mut count)?));
                // The eventfd is empty again, so waiting works.
                taken.map_or(Ok(()), |taken| taken.map(drop))
            }
            Self::V2(events) => {
                let mut ready = events.ready(Interest::PRIORITY).await?;
                ready.clear_ready();
                // The kernel reports the next change only after a read.
                read_at_start(events).map(drop)
            }
        }
    }
}

/// The content of `memory.events`.
///
/// # Errors
/// When its cgroup is gone.
fn read_at_start(events: &AsyncFd<OwnedFd>) -> io::Result<String> {
    let mut text = [0; EVENTS_MAX];
    let length = nix::sys::uio::pread(events.get_ref(), &mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
}
