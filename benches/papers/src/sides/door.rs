//! Functions that answer HTTP at a port of the machine: ours by `cwasi.http=PORT`, native servers by runc.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cwasi_testbed::port::free_port;
use cwasi_testbed::run::Run;
use cwasi_testbed::scene::Scene;

use super::images::RUNC;
use super::load::{Target, millis};
use super::runwasi::{LISTENS_AT, Shim};

/// Longest wait for a function's first answer; its first start compiles it.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Between two attempts to reach it.
const POLL: Duration = Duration::from_micros(200);

/// How a function starts.
#[derive(Clone, Debug)]
pub struct Function {
    /// Name of the side.
    pub side: String,
    pub image: String,
    /// Our runtime and its annotations; none for a native server.
    pub annotations: Option<Vec<(&'static str, String)>>,
    /// runwasi's runtime in place of ours or of runc.
    pub shim: Option<Shim>,
    pub env: Vec<(&'static str, String)>,
    /// Arguments, if the image's are not enough.
    pub args: Vec<&'static str>,
}

impl Function {
    /// One of ours, for this engine.
    #[must_use]
    pub fn ours(side: &str, image: &str, engine: &str) -> Self {
        let annotations = vec![
            ("cwasi.role", "secondary".to_owned()),
            ("cwasi.engine", engine.to_owned()),
            ("cwasi.queue", "1024".to_owned()),
        ];
        let (side, image) = (side.to_owned(), image.to_owned());
        let annotations = Some(annotations);
        Self { side, image, annotations, shim: None, env: Vec::new(), args: Vec::new() }
    }

    /// A native server.
    #[must_use]
    pub fn native(side: &str, image: &str, args: &[&'static str]) -> Self {
        let (side, image) = (side.to_owned(), image.to_owned());
        let args = args.to_vec();
        Self { side, image, annotations: None, shim: None, env: Vec::new(), args }
    }

    /// A component in this shim of runwasi.
    #[must_use]
    pub fn runwasi(shim: Shim, image: &str) -> Self {
        Self { shim: Some(shim.clone()), ..Self::native(shim.side, image, &[]) }
    }

    /// With one more annotation, if it is ours.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: &str) -> Self {
        if let Some(annotations) = &mut self.annotations {
            annotations.push((key, value.to_owned()));
        }
        self
    }

    #[must_use]
    pub fn env(mut self, key: &'static str, value: &str) -> Self {
        self.env.push((key, value.to_owned()));
        self
    }

    /// `ctr run`, whose container's output nobody reads.
    fn command(&self, scene: &Scene, id: &str, port: u16) -> Command {
        let mut run =
            Run::new(&scene.namespace, &self.image, id).flag("--net-host").flag("--null-io");
        run = match &self.annotations {
            Some(annotations) => {
                let name = id.to_owned();
                let own = [("cwasi.function", name), ("cwasi.http", port.to_string())];
                let all = annotations.iter().cloned().chain(own);
                all.fold(run, |run, (key, value)| run.annotation(key, &value))
            }
            None => match &self.shim {
                Some(shim) => {
                    run.runtime(&shim.runtime()).env(LISTENS_AT, &format!("127.0.0.1:{port}"))
                }
                None => run.runtime(RUNC).env("PORT", &port.to_string()),
            },
        };
        run = self.env.iter().fold(run, |run, (key, value)| run.env(key, value));
        let mut command = run.args(self.args.iter().copied()).command(&scene.containerd, true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Starts it; `ctr run` has ended. It may not answer yet.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start<'a>(&self, scene: &'a Scene, id: &str) -> Result<Door<'a>> {
        let port = free_port(Ipv4Addr::LOCALHOST.into());
        let output =
            self.command(scene, id, port).spawn().context("ctr run")?.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{id} did not start: {said}");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Ok(Door { scene, id: id.to_owned(), address })
    }

    /// The same, once it has answered a query.
    ///
    /// # Errors
    /// As [`Self::start`], and when it does not answer.
    pub fn open<'a>(&self, scene: &'a Scene, id: &str, query: &str) -> Result<Door<'a>> {
        let door = self.start(scene, id)?;
        door.first(query)?;
        Ok(door)
    }
}

/// A function at a port, until it is dropped.
pub struct Door<'a> {
    scene: &'a Scene,
    pub id: String,
    pub address: SocketAddr,
}

impl Door<'_> {
    #[must_use]
    pub fn target(&self, query: &str) -> Target {
        Target::new(self.address, query)
    }

    /// Asks until somebody answers: milliseconds of the request that got the answer.
    ///
    /// # Errors
    /// When nobody does, or the answer is none.
    pub fn first(&self, query: &str) -> Result<f64> {
        let (target, started) = (self.target(query), Instant::now());
        loop {
            let asked = Instant::now();
            match target.send() {
                Ok(mut stream) => {
                    super::load::answer(&mut stream).with_context(|| self.id.clone())?;
                    return Ok(millis(asked));
                }
                Err(error) if started.elapsed() > ANSWER_MAX => {
                    bail!("{} does not answer: {error:#}", self.id)
                }
                Err(_nobody) => std::thread::sleep(POLL),
            }
        }
    }
}

impl Drop for Door<'_> {
    fn drop(&mut self) {
        // What is left behind shows at the scene's end.
        let _task = self.scene.ctr(["task", "rm", "--force", &self.id]);
        let _container = self.scene.ctr(["container", "rm", &self.id]);
    }
}
