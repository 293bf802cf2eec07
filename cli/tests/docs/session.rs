//! Runs pages in a folder that looks like the checkout, and collects where they are wrong.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use cwasi_testbed::page::Page;
use cwasi_testbed::paths::checkout;
use tempfile::TempDir;

use crate::expected::matches;
use crate::pages::{BlockKind, is_built_elsewhere, kind};
use crate::shell::Shell;
use crate::steps::{Step, of_script, on_screen, opens_a_shell, stays};

/// What the folder does not have of the checkout: what it makes itself, and what no page needs.
const OWN: [&str; 4] = ["target", "workflows", "tutorial", ".git"];
/// Makes a network that only the session's processes see, so that fixed ports are free.
const NETWORK: &str = "ip link set lo up && exec \"$@\"";
/// Asks for the exit code of the command before.
const EXIT_CODE: &str = "echo $?";

/// Shells in which pages run.
#[derive(Debug)]
pub struct Session {
    folder: TempDir,
    /// The innermost last.
    shells: Vec<Shell>,
    faults: Vec<String>,
}

impl Session {
    /// A shell in a folder with the checkout's content.
    pub fn new() -> Self {
        // Below target: the toolchain of the checkout applies.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for entry in fs::read_dir(checkout()).unwrap().map(Result::unwrap) {
            let name = entry.file_name();
            if !OWN.contains(&name.to_str().unwrap()) {
                symlink(entry.path(), folder.path().join(name)).unwrap();
            }
        }
        // The file names its modules by paths from its own folder.
        let hello = Path::new("workflows/hello");
        fs::create_dir_all(folder.path().join(hello)).unwrap();
        let file = hello.join("workflow.yaml");
        fs::copy(checkout().join(&file), folder.path().join(&file)).unwrap();
        let programs = Path::new(env!("CARGO_BIN_EXE_cwasi")).parent().unwrap();
        let target = folder.path().join("target");
        fs::create_dir(&target).unwrap();
        symlink(programs, target.join("debug")).unwrap();
        symlink(programs.with_file_name("guests"), target.join("guests")).unwrap();
        let mut session = Self { folder, shells: Vec::new(), faults: Vec::new() };
        session.open("sh");
        session
    }

    /// Opens a shell inside.
    pub fn open(&mut self, command: &str) {
        let mut process = Command::new("unshare");
        process.args(["--net", "sh", "-c", NETWORK, "sh"]).args(command.split_whitespace());
        // What is compiled is kept for the next run.
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("docs");
        process
            .current_dir(self.folder.path())
            // Crates come from where the SDK's own build put them.
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_BUILD_BUILD_DIR", kept.join("build"))
            // Of `cwasi run --local`.
            .env("XDG_CACHE_HOME", kept.join("cache"))
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CONTAINERD_ADDRESS")
            .env_remove("CONTAINERD_NAMESPACE")
            .env_remove("CWASI_CONFIG");
        self.shells.push(Shell::start(process));
    }

    /// Prepares the shell for a page: the folder, and a containerd namespace of its own.
    pub fn begin(&mut self, page: &Page) {
        let name = Path::new(&page.path).file_stem().unwrap().to_str().unwrap();
        let folder = self.folder.path().display();
        let command = format!("cd {folder} && export CONTAINERD_NAMESPACE={name}");
        let outcome = self.shell().run(&command, false, |_| true);
        assert_eq!(outcome.code, 0, "{}", outcome.printed);
    }

    /// Runs the page's blocks.
    pub fn run(&mut self, page: &Page) {
        let builds = is_built_elsewhere(page);
        for block in page.blocks() {
            let first = block.line + 1;
            match kind(&block) {
                BlockKind::Console => self.steps(page, &on_screen(block.text, first)),
                BlockKind::Commands => self.steps(page, &of_script(block.text, first)),
                BlockKind::File(name) if !builds => self.write(name, block.text),
                BlockKind::File(_) | BlockKind::NotRun(_) | BlockKind::Text => {}
            }
        }
    }

    fn shell(&mut self) -> &mut Shell {
        self.shells.last_mut().unwrap()
    }

    /// A file of the page, in the shell's folder.
    fn write(&mut self, name: &str, text: &str) {
        let folder = self.shell().run("pwd", false, |_| true).printed;
        let path = Path::new(folder.trim()).join(name);
        assert!(!path.is_symlink(), "{name} is a file of the checkout, which no page may change");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let parent = path.parent().unwrap().canonicalize().unwrap();
        let inside = self.folder.path().canonicalize().unwrap();
        assert!(parent.starts_with(inside), "{name} would be in the checkout");
        fs::write(path, text).unwrap();
    }

    fn steps(&mut self, page: &Page, steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            if opens_a_shell(&step.command) {
                self.open(&step.command);
            } else if step.command == "exit" {
                self.exit(page, step);
            } else {
                let asks = steps.get(index + 1).is_some_and(|next| next.command == EXIT_CODE);
                self.step(page, step, asks);
            }
        }
    }

    fn step(&mut self, page: &Page, step: &Step, code_follows: bool) {
        // The harness prints after each command, so the code of the one before has to be kept.
        let command = match step.command.as_str() {
            EXIT_CODE => "echo $code".to_owned(),
            // `end_jobs` reads their ids.
            command if stays(command) => format!("{command}\njobs=\"$jobs $!\""),
            command => format!("{command}\ncode=$?; (exit $code)"),
        };
        let as_shown =
            |printed: &str| step.output.as_ref().is_none_or(|output| matches(output, printed));
        let outcome = self.shell().run(&command, stays(&step.command), as_shown);
        let place = format!("{}:{}: {}", page.path, step.line, step.command);
        if outcome.code != 0 && !code_follows {
            self.faults.push(format!("{place}\nended with {}:\n{}", outcome.code, outcome.printed));
        } else if !as_shown(&outcome.printed) {
            self.faults.push(format!("{place}\nprinted:\n{}", outcome.printed));
        }
    }

    fn exit(&mut self, page: &Page, step: &Step) {
        let (status, printed) = self.shells.pop().unwrap().exit();
        if !status.success() {
            self.faults.push(format!("{}:{}: exit: {status}\n{printed}", page.path, step.line));
        }
    }

    /// Ends all shells; fails if a page is wrong.
    pub fn finish(mut self) {
        while let Some(shell) = self.shells.pop() {
            let (status, printed) = shell.exit();
            if !status.success() {
                self.faults.push(format!("a shell ended with {status}:\n{printed}"));
            }
        }
        assert!(self.faults.is_empty(), "\n{}", self.faults.join("\n\n"));
    }
}
