//! Compiles modules, each with a process of its own: the compiler of the module's engine. Runs in the shim daemon.
//!
//! The process has a limit of address space and processor time, a low priority, and a cgroup if one can be made.
//!
//! Invariant: it ends before the future that waits for it is gone. It also ends with this daemon, because it watches
//! the pipe on its stdin.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{PipeReader, PipeWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::compile_cgroup::{CompileCgroups, JobCgroup};
use super::reaper::{Exit, Reaper};
use super::spawn::{Program, SpawnError};
use super::zygotes::Zygotes;
use cwasi_config::node::config_file;
use cwasi_config::{CompileConfig, CompilerLimits, Engine, NodeConfig};
use cwasi_coordinator::{CompileChild, CompileJob};
use cwasi_sys::pidfd::PidFd;

/// Longest shown message of the compiler in bytes.
const MESSAGE_MAX: u64 = 16 * 1024;
/// Longest wait for a killed compiler, whose memory is being freed.
const KILL_MAX: Duration = Duration::from_secs(10);
/// The kernel's file with the machine's memory.
const MEMINFO: &str = "/proc/meminfo";
/// Messages of compiler, libraries and Rust when memory runs out.
const OUT_OF_MEMORY: [&str; 4] =
    ["out of memory", "bad_alloc", "memory allocation of", "Cannot allocate memory"];
/// Offset of a signal's number in an exit status, as in the reaper.
const SIGNAL_BASE: i32 = 128;

#[derive(Clone, Debug)]
pub struct Compiler {
    zygotes: Arc<Zygotes>,
    programs: Arc<BTreeMap<Engine, CompilerProgram>>,
    reaper: Reaper,
    config: CompileConfig,
    /// Memory of all compilers of the node together in bytes.
    memory_total: u64,
    cgroups: Arc<CompileCgroups>,
}

impl Compiler {
    /// A compiler with this node's limits.
    #[must_use]
    pub fn new(node: &NodeConfig, zygotes: &Arc<Zygotes>, reaper: &Reaper) -> Self {
        let programs = Engine::ALL.map(|engine| (engine, CompilerProgram::new(engine)));
        let memory_total = node.compile.memory_total_for(machine_memory());
        Self {
            zygotes: Arc::clone(zygotes),
            programs: Arc::new(programs.into()),
            reaper: reaper.clone(),
            config: node.compile.clone(),
            memory_total,
            cgroups: Arc::new(CompileCgroups::new(
                &node.compile.cgroup,
                &node.cache_dir,
                memory_total,
            )),
        }
    }
}

impl CompileChild for Compiler {
    async fn compile(&self, job: &CompileJob<'_>) -> Result<(), String> {
        let limits = self.config.limits_for(job.length, self.memory_total);
        // Dropped after the process.
        let cgroup = self.cgroups.make(job.slot, limits.memory);
        let no_pipe = |error: std::io::Error| format!("no pipe: {error}");
        let (control, mut lifeline) = std::io::pipe().map_err(no_pipe)?;
        let (output, writer) = std::io::pipe().map_err(no_pipe)?;
        let ticket = self.reaper.ticket();
        let pid = self.start(job, limits, &control, &writer)?;
        let process = Process { pidfd: PidFd::open(pid).ok() };
        let exit = ticket.claim(pid);
        drop((control, writer, ticket));
        if let Some(cgroup) = &cgroup {
            cgroup.take(pid);
        }
        // The compiler starts after this line. If it died before, its exit status says so.
        let _died = lifeline.write_all(b"\n");
        let message = tokio::task::spawn_blocking(move || read_message(output));
        let message = message.await.unwrap_or_default();
        let exit = exit.await.map_err(|_| "the compiler's end was not seen".to_owned())?;
        drop(process);
        verdict(exit, &message, limits, cgroup.as_ref())
    }

    fn check_engine(&self, engine: Engine) -> Result<(), String> {
        self.zygotes.of(engine).map(drop).map_err(|error| error.to_string())
    }
}

/// The program that compiles for one engine.
#[derive(Debug)]
struct CompilerProgram {
    engine: Engine,
    /// Opened once: an upgrade of the node does not change the daemon's programs. Empty while it is not installed.
    opened: OnceLock<Program>,
}

impl CompilerProgram {
    /// Opens the program if it is there.
    fn new(engine: Engine) -> Self {
        let program = Self { engine, opened: OnceLock::new() };
        // What it compiles later gets the error; the cache may have all that is needed.
        let _missing = program.open();
        program
    }

    fn open(&self) -> Result<&Program, String> {
        if let Some(program) = self.opened.get() {
            return Ok(program);
        }
        let program =
            Program::beside(self.engine.compiler_program()).map_err(|error| match error {
                SpawnError::NotInstalled { program, this } => missing(self.engine, program, &this),
                error => error.to_string(),
            })?;
        // Another thread may have been faster; its file counts.
        Ok(self.opened.get_or_init(|| program))
    }
}

fn missing(engine: Engine, program: &str, this: &Path) -> String {
    format!(
        "the compiler of the engine {engine} is not installed on this node: `{program}` is neither beside {} nor in \
         PATH; install all programs of the runtime",
        this.display()
    )
}

impl Compiler {
    fn start(
        &self,
        job: &CompileJob<'_>,
        limits: CompilerLimits,
        control: &PipeReader,
        output: &PipeWriter,
    ) -> Result<i32, String> {
        let memory = format!("--memory={}", limits.memory);
        let cpu_seconds = format!("--cpu-seconds={}", limits.cpu_seconds);
        let mut arguments: Vec<&OsStr> =
            job.engine.compiler_arguments().iter().map(OsStr::new).collect();
        arguments.extend(["--supervised", memory.as_str(), cpu_seconds.as_str()].map(OsStr::new));
        arguments.extend([job.wasm.as_os_str(), job.out.as_os_str()]);
        let descriptors = [(control.as_fd(), 0), (output.as_fd(), 1), (output.as_fd(), 2)];
        let program = self.programs[&job.engine].open()?;
        program.spawn(&arguments, &descriptors, &[]).map_err(|error| error.to_string())
    }
}

/// A compiler's process; dropping it ends the process.
struct Process {
    /// `None` if it ended before it could be opened.
    pidfd: Option<PidFd>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let Some(pidfd) = &self.pidfd else { return };
        // An ended process takes no signal.
        if pidfd.signal(libc::SIGKILL).is_ok() && !pidfd.wait(KILL_MAX) {
            tracing::error!("a compiler that was killed does not end");
        }
    }
}

fn read_message(output: PipeReader) -> String {
    let mut text = Vec::new();
    let mut limited = output.take(MESSAGE_MAX);
    let read = limited.read_to_end(&mut text);
    // Bytes beyond the limit are read and dropped, or the compiler would block.
    let drained = std::io::copy(&mut limited.into_inner(), &mut std::io::sink());
    let _ = (read, drained);
    String::from_utf8_lossy(&text).trim().to_owned()
}

/// The meaning of a compiler's exit status. An error names the exceeded limit's setting.
fn verdict(
    exit: Exit,
    message: &str,
    limits: CompilerLimits,
    cgroup: Option<&JobCgroup>,
) -> Result<(), String> {
    if exit.status == 0 {
        return Ok(());
    }
    let out_of_memory = cgroup.is_some_and(JobCgroup::ran_out_of_memory)
        || OUT_OF_MEMORY.iter().any(|words| message.contains(words));
    if out_of_memory {
        let (mib, file) = (limits.memory >> 20, config_file());
        return Err(format!(
            "the compiler needs more than its {mib} MiB of memory: raise memory, memory_per_mib or memory_total under [compile] in the node's configuration ({})",
            file.display()
        ));
    }
    if exit.status == SIGNAL_BASE + Signal::SIGXCPU as i32 {
        let (seconds, file) = (limits.cpu_seconds, config_file());
        return Err(format!(
            "the compiler needs more than its {seconds} s of processor time: raise cpu_seconds or cpu_seconds_per_mib under [compile] in the node's configuration ({})",
            file.display()
        ));
    }
    Err(format!("the compiler ended with status {}: {message}", exit.status))
}

/// Memory of this machine in bytes; `u64::MAX` if the kernel does not say.
fn machine_memory() -> u64 {
    let text = std::fs::read_to_string(MEMINFO).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn the_limit_that_ended_a_compiler_is_named() {
        let limits = CompilerLimits { memory: 512 << 20, cpu_seconds: 120 };
        let says = |status, message: &str| {
            let exit = Exit { status, at: SystemTime::UNIX_EPOCH };
            verdict(exit, message, limits, None)
        };
        assert_eq!(says(0, ""), Ok(()));
        for (status, message, part) in [
            (134, "LLVM ERROR: out of memory", "512 MiB of memory: raise memory,"),
            (134, "what():  std::bad_alloc", "512 MiB"),
            (152, "", "120 s of processor time: raise cpu_seconds"),
            (1, "loading failed", "status 1: loading failed"),
        ] {
            let error = says(status, message).unwrap_err();
            assert!(error.contains(part), "{part} missing in: {error}");
        }
    }

    #[test]
    fn a_missing_compiler_is_named_with_its_engine() {
        let error = missing(Engine::Wasmtime, "cwasi-compiler", Path::new("/usr/bin/cwasi-shim"));
        assert!(error.contains("the engine wasmtime is not installed"), "{error}");
        assert!(
            error.contains("`cwasi-compiler` is neither beside /usr/bin/cwasi-shim"),
            "{error}"
        );
    }

    #[test]
    fn the_machine_has_memory() {
        assert!((1 << 20..u64::MAX).contains(&machine_memory()));
    }
}
