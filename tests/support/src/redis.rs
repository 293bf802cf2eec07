//! Private Redis and Valkey servers, each on a port of its own, which end with their owner.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::paths;
use crate::port::free_port;

/// Longest wait for a server's first answer.
const READY_MAX: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisVersion {
    /// Debian 12's Redis 7.
    Redis7,
    /// Debian 13's Valkey 8.
    Valkey8,
}

impl RedisVersion {
    /// Folder of its unpacked package.
    pub(crate) const fn folder(self) -> &'static str {
        match self {
            Self::Redis7 => "redis-7",
            Self::Valkey8 => "valkey-8",
        }
    }

    const fn program(self, what: Program) -> &'static str {
        match (self, what) {
            (Self::Redis7, Program::Server) => "redis-server",
            (Self::Redis7, Program::Client) => "redis-cli",
            (Self::Valkey8, Program::Server) => "valkey-server",
            (Self::Valkey8, Program::Client) => "valkey-cli",
        }
    }

    /// Names of server and client.
    pub(crate) const fn programs(self) -> [&'static str; 2] {
        [self.program(Program::Server), self.program(Program::Client)]
    }

    /// Folders of the libraries that were unpacked with it.
    pub(crate) fn libraries(self) -> Result<Vec<PathBuf>> {
        let lib = paths::unpacked(self.folder(), "usr/lib")?;
        Ok(fs::read_dir(&lib)?.flatten().map(|entry| entry.path()).collect())
    }

    /// A command of this server's package, with the libraries that were unpacked with it.
    fn command(self, what: Program) -> Result<Command> {
        let bin = paths::unpacked(self.folder(), "usr/bin")?;
        let libraries = self.libraries()?;
        // Dies with the thread that started it, however that ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .arg(bin.join(self.program(what)))
            .env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?)
            .stdin(Stdio::null());
        Ok(command)
    }
}

#[derive(Clone, Copy)]
enum Program {
    Server,
    Client,
}

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct Setup {
    pub kind: RedisVersion,
    /// Address that it listens at.
    pub bind: IpAddr,
    /// Further arguments, as in its configuration file: `["--appendonly", "yes"]`.
    pub args: Vec<String>,
    /// TLS alone, with this certificate and key as PEM files.
    pub tls: Option<(PathBuf, PathBuf)>,
}

impl From<RedisVersion> for Setup {
    fn from(kind: RedisVersion) -> Self {
        Self { kind, bind: Ipv4Addr::LOCALHOST.into(), args: Vec::new(), tls: None }
    }
}

#[derive(Debug)]
pub struct Redis {
    setup: Setup,
    dir: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Redis {
    /// Starts one; its default limits are the package's.
    ///
    /// # Panics
    /// When set-up has not unpacked it or it does not start.
    #[must_use]
    pub fn start(setup: impl Into<Setup>) -> Self {
        let setup = setup.into();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let port = free_port(setup.bind);
        let mut redis = Self { setup, dir, port, child: None };
        redis.restart();
        redis
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}:{}", self.setup.bind, self.port)
    }

    /// The URL for a user (`name:password@`, or nothing).
    #[must_use]
    pub fn url_for(&self, user: &str) -> String {
        let scheme = if self.setup.tls.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://{user}{}", self.address())
    }

    /// The URL without a user.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for("")
    }

    /// Kills it at once. Data that was only in its memory is lost.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended on its own.
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }

    /// The server's process.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> i32 {
        let child = self.child.as_ref().expect("a running server");
        i32::try_from(child.id()).expect("process ids are positive and below 2^22")
    }

    /// Starts it again, at the same address and with the same directory.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart(&mut self) {
        self.stop();
        self.launch().unwrap_or_else(|error| panic!("{error:#}"));
    }

    fn launch(&mut self) -> Result<()> {
        let mut command = self.setup.kind.command(Program::Server)?;
        command.args(["--bind", &self.setup.bind.to_string(), "--dir"]).arg(self.dir.path());
        command.args(["--save", "", "--daemonize", "no", "--protected-mode", "no"]);
        command.arg("--unixsocket").arg(self.socket());
        match &self.setup.tls {
            None => command.args(["--port", &self.port.to_string()]),
            Some((certificate, key)) => command
                .args(["--port", "0", "--tls-port", &self.port.to_string()])
                .args(["--tls-auth-clients", "no", "--tls-cert-file"])
                .arg(certificate)
                .arg("--tls-key-file")
                .arg(key),
        };
        command.args(&self.setup.args);
        let log = fs::File::create(self.log())?;
        let child = command.stdout(log.try_clone()?).stderr(log).spawn();
        self.child = Some(child.context("start setpriv")?);
        let start = Instant::now();
        while !self.answers() {
            let ended =
                self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || start.elapsed() > READY_MAX {
                bail!("no server: {}", fs::read_to_string(self.log()).unwrap_or_default());
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn answers(&self) -> bool {
        // Whatever it says to an unknown user, it is there.
        self.try_cli(&["PING"]).is_ok_and(|said| said.contains("PONG") || said.contains("NOAUTH"))
    }

    /// Sends one command over its Unix socket. Returns the answer.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn cli(&self, args: &[&str]) -> String {
        self.try_cli(args).unwrap_or_else(|error| panic!("{error:#}"))
    }

    fn try_cli(&self, args: &[&str]) -> Result<String> {
        let mut command = self.setup.kind.command(Program::Client)?;
        let output = command.arg("-s").arg(self.socket()).args(args).output()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() {
            bail!("{args:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(text)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Its directory, for certificates and the like.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.stop();
    }
}
