//! A namespace of a private containerd in which the command runs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cwasi_testbed::paths::ContainerdVersion;
use cwasi_testbed::scene::{Scene, guests_dir};

use super::{cwasi, stderr, stdout};

/// The runtime's launcher, beside this command: a build of the whole workspace makes both.
fn shim() -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_cwasi")).parent().unwrap();
    folder.join("containerd-shim-cwasi-v1").display().to_string()
}

/// Path of a guest's module.
pub fn guest(name: &str) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_cwasi")).parent().unwrap();
    guests_dir(programs).join(format!("{name}.wasm")).display().to_string()
}

/// A workflow file of these functions.
pub fn workflow_text(name: &str, functions: &str) -> String {
    format!(
        "apiVersion: cwasi.dev/v1alpha1\nkind: Workflow\nmetadata: {{name: {name}}}\nspec:\n  functions:\n{functions}"
    )
}

/// One test's namespace and folder.
pub struct Stage {
    pub scene: Scene,
    pub folder: tempfile::TempDir,
}

impl Stage {
    /// A namespace whose name begins with `name`.
    pub fn new(name: &str) -> Self {
        Self::on(ContainerdVersion::V1_6, name)
    }

    /// The same on any containerd.
    pub fn on(version: ContainerdVersion, name: &str) -> Self {
        let namespace = format!("{name}-{}", std::process::id());
        let scene = Scene::in_turn(version, &shim(), &namespace);
        Self { scene, folder: tempfile::tempdir().unwrap() }
    }

    /// The command in this namespace.
    pub fn cwasi(&self) -> Command {
        let ready = self.scene.containerd.ready();
        let mut command = cwasi();
        command
            .env("CONTAINERD_ADDRESS", ready.address())
            .env("CONTAINERD_NAMESPACE", &self.scene.namespace)
            .env("CWASI_CONFIG", self.scene.node.config())
            .env("TMPDIR", self.scene.node.temporary());
        command
    }

    /// Runs the command to its end, with success; its stdout.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.cwasi().args(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "cwasi {arguments:?}: {}\n{}",
            stderr(&output),
            stdout(&output)
        );
        stdout(&output)
    }

    /// Runs the command to its end with this exit code; its stdout.
    pub fn ok_or(&self, code: i32, arguments: &[&str]) -> String {
        let output: Output = self.cwasi().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "cwasi {arguments:?}: {}", stderr(&output));
        stdout(&output)
    }

    /// Runs the command to its end with this exit code; its stderr.
    pub fn fails(&self, code: i32, arguments: &[&str]) -> String {
        let output: Output = self.cwasi().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "cwasi {arguments:?}: {}", stderr(&output));
        stderr(&output)
    }

    /// Path of a guest's module.
    pub fn guest(&self, name: &str) -> String {
        guest(name)
    }

    /// Writes a workflow file of these functions.
    pub fn workflow(&self, name: &str, functions: &str) -> String {
        let path: PathBuf = self.folder.path().join(format!("{name}.yaml"));
        std::fs::write(&path, workflow_text(name, functions)).unwrap();
        path.display().to_string()
    }

    /// `greeter`, and `hello` that calls it.
    pub fn hello(&self) -> String {
        let (greeter, hello) = (self.guest("greeter"), self.guest("hello-caller"));
        self.workflow(
            "hello",
            &format!(
                "    greeter: {{module: {greeter}, role: secondary}}\n    \
                 hello: {{module: {hello}, args: [Ada, Grace]}}\n"
            ),
        )
    }

    /// Ids of all containers.
    pub fn containers(&self) -> Vec<String> {
        let list = self.scene.ctr(["containers", "ls", "--quiet"]).success().text();
        list.lines().map(str::to_owned).collect()
    }
}
