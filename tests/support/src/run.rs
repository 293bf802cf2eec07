//! `ctr run` for tests: one builder, bounded waits, all output.

use std::io::{Read, Write as _};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::containerd::Containerd;
use crate::containerd_config::RUNTIME;
use crate::node_dir::NodeDir;

/// Longest time for any one command; a first start compiles its module.
const COMMAND_MAX: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(5);

/// Result of a command.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit code, 128+signal when it was killed.
    pub code: i32,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Outcome {
    /// Stderr without the runtime's own lines: the first start of a module says that it is compiled.
    #[must_use]
    pub fn guest_stderr(&self) -> String {
        let lines = self.stderr.split_inclusive('\n');
        lines.filter(|line| !line.starts_with("cwasi: ")).collect()
    }

    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// The same outcome when the exit code is 0.
    ///
    /// # Panics
    /// With everything that the command said when it failed.
    #[must_use = "the outcome holds the output"]
    pub fn success(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.text(), self.stderr);
        self
    }
}

/// stdin of a command.
pub struct Input {
    bytes: Vec<u8>,
    /// Called after the last byte and before the end is sent.
    before_end: Box<dyn FnOnce() + Send>,
}

/// A command that still runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Running {
    /// Starts `command` with `stdin` as its input.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, stdin: Option<Input>) -> Result<Self> {
        command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        if let (Some(input), Some(mut pipe)) = (stdin, child.stdin.take()) {
            thread::spawn(move || {
                // A reader that closed early is the command's own business.
                let _closed = pipe.write_all(&input.bytes);
                (input.before_end)();
            });
        }
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Ok(Self { child, stdout, stderr })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True when it has ended.
    #[must_use]
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end within the bound; it is killed then.
    pub fn finish(mut self) -> Result<Outcome> {
        use std::os::unix::process::ExitStatusExt as _;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if start.elapsed() > COMMAND_MAX {
                self.child.kill()?;
                self.child.wait()?;
                bail!("a command did not end within {COMMAND_MAX:?}");
            }
            thread::sleep(POLL);
        };
        let join = |handle: Option<JoinHandle<Vec<u8>>>| {
            handle.map(|handle| handle.join().expect("a reader does not panic")).unwrap_or_default()
        };
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        let stdout = join(self.stdout.take());
        let stderr = String::from_utf8_lossy(&join(self.stderr.take())).into_owned();
        Ok(Outcome { code, stdout, stderr })
    }
}

/// Waits until `list` names `id`, for a bounded time: it may have come and gone.
fn wait_listed(mut list: Command, id: &str) {
    /// Far longer than a start takes, compilation included.
    const LISTED_MAX: Duration = Duration::from_secs(20);
    let start = Instant::now();
    while start.elapsed() < LISTED_MAX {
        let listed = list.output().is_ok_and(|output| {
            String::from_utf8_lossy(&output.stdout).lines().any(|line| line == id)
        });
        if listed {
            return;
        }
        thread::sleep(POLL);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            // It may end on its own in this moment.
            let _ended = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is still what the command wrote.
        let _partial = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started or does not end within the bound.
pub fn output(command: Command) -> Result<Outcome> {
    Running::start(command, None)?.finish()
}

/// `command` with a terminal of its own, of 41 lines and 83 columns.
///
/// # Panics
/// When its words are not UTF-8.
#[must_use]
pub fn on_terminal(command: &Command) -> Command {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> =
        words.map(|word| format!("'{}'", word.to_str().expect("tests' words are UTF-8"))).collect();
    let mut terminal = Command::new("script");
    let line = format!("stty rows 41 cols 83; {}", quoted.join(" "));
    terminal.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    for (key, value) in command.get_envs() {
        terminal.env(key, value.expect("no variable is removed"));
    }
    terminal
}

/// One `ctr run`.
#[derive(Clone, Debug)]
pub struct Run {
    namespace: String,
    image: String,
    id: String,
    flags: Vec<String>,
    args: Vec<String>,
    stdin: Option<Vec<u8>>,
    runtime: String,
    /// The node, if it is not the fixture's own.
    node: Option<NodeDir>,
}

impl Run {
    /// Container `id` from `image` with our runtime.
    #[must_use]
    pub fn new(namespace: &str, image: &str, id: &str) -> Self {
        Self {
            namespace: namespace.into(),
            image: image.into(),
            id: id.into(),
            flags: Vec::new(),
            args: Vec::new(),
            stdin: None,
            runtime: RUNTIME.into(),
            node: None,
        }
    }

    /// Another runtime than ours, to compare.
    #[must_use]
    pub fn runtime(mut self, name: &str) -> Self {
        self.runtime = name.into();
        self
    }

    /// Another node than the fixture's own: its configuration is an option of the runtime.
    #[must_use]
    pub fn node(mut self, node: &NodeDir) -> Self {
        self.node = Some(node.clone());
        self
    }

    /// Arguments, the program first.
    #[must_use]
    pub fn args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Another flag of `ctr run`.
    #[must_use]
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    #[must_use]
    pub fn annotation(self, key: &str, value: &str) -> Self {
        self.flag("--annotation").flag(format!("{key}={value}"))
    }

    #[must_use]
    pub fn env(self, key: &str, value: &str) -> Self {
        self.flag("--env").flag(format!("{key}={value}"))
    }

    /// One bind mount; `access` is `rw` or `ro`.
    #[must_use]
    pub fn mount(self, host: &std::path::Path, inside: &str, access: &str) -> Self {
        let host = host.display();
        self.flag("--mount")
            .flag(format!("type=bind,src={host},dst={inside},options=rbind:{access}"))
    }

    /// Bytes for stdin; without it, stdin is empty.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    #[must_use]
    pub fn command(&self, containerd: &Containerd, detach: bool) -> Command {
        let mut command = self.ctr(containerd);
        command.args(["run", if detach { "--detach" } else { "--rm" }]);
        command.args(["--runtime", &self.runtime]);
        let own = containerd.ready().node();
        command.arg("--fifo-dir").arg(self.node.as_ref().unwrap_or(&own).fifos());
        // Other runtimes have no such option.
        if let Some(node) = self.node.as_ref().filter(|_| self.runtime == RUNTIME) {
            command.arg("--runtime-config-path").arg(node.config());
        }
        command.args(&self.flags).args([&self.image, &self.id]).args(&self.args);
        command
    }

    fn ctr(&self, containerd: &Containerd) -> Command {
        let own = containerd.ready().node();
        containerd.ctr_for(&self.namespace, self.node.as_ref().unwrap_or(&own))
    }

    /// Runs it attached, to its end, and removes it.
    ///
    /// # Errors
    /// When `ctr` cannot be started or does not end.
    pub fn output(self, containerd: &Containerd) -> Result<Outcome> {
        self.spawn(containerd)?.finish()
    }

    /// Starts it attached.
    ///
    /// # Errors
    /// When `ctr` cannot be started.
    pub fn spawn(mut self, containerd: &Containerd) -> Result<Running> {
        let stdin = self.stdin.take().map(|bytes| {
            // `ctr run` forgets an end of its stdin that comes before the task exists, and then waits for ever.
            let mut list = self.ctr(containerd);
            list.args(["task", "ls", "--quiet"]);
            let id = self.id.clone();
            Input { bytes, before_end: Box::new(move || wait_listed(list, &id)) }
        });
        Running::start(self.command(containerd, false), stdin)
    }

    /// Starts it detached; returns once `ctr` has.
    ///
    /// # Errors
    /// When `ctr` cannot be started or does not end.
    pub fn detach(self, containerd: &Containerd) -> Result<Outcome> {
        output(self.command(containerd, true))
    }
}
