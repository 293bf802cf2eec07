//! A private registry of images, the one that Debian packages (`docker-registry`), on a port of its own on loopback. It
//! ends with its owner.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::paths;
use crate::port::free_port;

const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Longest wait until it answers.
const READY_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);
/// A registry's user and password, and both as a line of an `htpasswd` file: registries take bcrypt only.
pub const USER: (&str, &str) = ("ada", "lovelace");
const HTPASSWD: &str = "ada:$2y$04$abcdefghijklmnopqrstuuhiTVLHQPvYzPykOsCOnc5I00eOfh33K";

/// Configuration of a registry.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// True to serve [`USER`] alone.
    pub with_password: bool,
    /// TLS alone, with this certificate and key as PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug)]
pub struct Registry {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Registry {
    /// Starts an empty one.
    ///
    /// # Panics
    /// When set-up has not unpacked it or it does not start.
    #[must_use]
    pub fn start(setup: &Setup) -> Self {
        Self::launch(setup).unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn launch(setup: &Setup) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let port = free_port(ADDRESS);
        let path = dir.path();
        fs::write(path.join("htpasswd"), HTPASSWD)?;
        let configuration = path.join("config.json");
        fs::write(&configuration, settings(setup, path, port).to_string())?;
        let log = fs::File::create(path.join("log"))?;
        // Dies with the thread that started it, however that ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(paths::unpacked("registry", "usr/bin")?.join("docker-registry"))
            .arg("serve")
            .arg(configuration)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut child = command.spawn().context("start setpriv")?;
        let start = Instant::now();
        while TcpStream::connect((ADDRESS, port)).is_err() {
            if child.try_wait()?.is_some() || start.elapsed() > READY_MAX {
                let _ended = child.kill();
                bail!("no registry: {}", fs::read_to_string(path.join("log")).unwrap_or_default());
            }
            std::thread::sleep(POLL);
        }
        Ok(Self { child, port, _dir: dir })
    }

    /// `127.0.0.1:PORT`, with which the names of its images begin.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{ADDRESS}:{}", self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The registry's configuration: YAML, of which JSON is a part.
fn settings(setup: &Setup, dir: &std::path::Path, port: u16) -> serde_json::Value {
    let mut settings = serde_json::json!({
        "version": 0.1,
        "log": { "level": "warn", "accesslog": { "disabled": true } },
        "storage": { "filesystem": { "rootdirectory": dir.join("data") } },
        "http": { "addr": format!("{ADDRESS}:{port}") },
    });
    if let Some((certificate, key)) = &setup.tls {
        settings["http"]["tls"] = serde_json::json!({ "certificate": certificate, "key": key });
    }
    if setup.with_password {
        let file = dir.join("htpasswd");
        settings["auth"] = serde_json::json!({ "htpasswd": { "realm": "test", "path": file } });
    }
    settings
}
