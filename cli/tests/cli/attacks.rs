//! A mount's source that a neighbour replaces between the end of a function and its next start: by containerd, which
//! has the container's specification, and by the command, which has the workflow file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cwasi_testbed::run::Outcome;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::scene::Stage;
use super::stderr;

const CONTAINER: &str = "w.svc";
/// Starts while source and link are swapped all the time.
const STARTS: usize = 5;

/// A folder that a function records in, beside a link to a folder that is not the function's.
struct Sources {
    data: PathBuf,
    link: PathBuf,
    secret: PathBuf,
}

impl Sources {
    fn new(stage: &Stage) -> Self {
        let folder = stage.folder.path();
        let (shared, secret) = (folder.join("shared"), folder.join("secret"));
        let (data, link) = (shared.join("data"), shared.join("link"));
        fs::create_dir_all(&data).unwrap();
        fs::create_dir(&secret).unwrap();
        symlink("../secret", &link).unwrap();
        Self { data, link, secret }
    }

    /// Each name gets what the other one had, at once.
    fn swap(&self) {
        renameat2(AT_FDCWD, &self.data, AT_FDCWD, &self.link, RenameFlags::RENAME_EXCHANGE)
            .unwrap();
    }

    fn secret_is_empty(&self) {
        assert_eq!(fs::read_dir(&self.secret).unwrap().count(), 0, "written where the link leads");
    }
}

/// What containerd's restart monitor and its clients do: a new task of the container that is there.
fn start_again(stage: &Stage) -> Outcome {
    stage.scene.ctr(["tasks", "start", "--null-io", "--detach", CONTAINER])
}

fn end(stage: &Stage) {
    stage.scene.kill(CONTAINER, "KILL");
    stage.scene.wait_stopped(CONTAINER);
    stage.scene.delete_task(CONTAINER);
}

#[test]
fn a_mount_that_is_replaced_while_its_function_is_down_is_not_mounted_at_the_next_start() {
    let stage = Stage::new("cli-attack-restart");
    let sources = Sources::new(&stage);
    let functions = format!(
        "    svc: {{module: {}, role: secondary, mounts: [{{source: {}, target: /log}}]}}\n",
        stage.guest("server"),
        sources.data.display()
    );
    let file = stage.workflow("w", &functions);
    let record = |line: &str| stage.ok(&["invoke", "svc", "--data", &format!("!record {line}")]);
    stage.ok(&["deploy", &file]);
    record("1");
    sources.swap();
    // A function that runs keeps the folder that it got.
    record("2");
    end(&stage);
    let restarted = start_again(&stage);
    assert_ne!(restarted.code, 0, "started with the link");
    let said = &restarted.stderr;
    assert!(said.contains("is a symbolic link to ../secret"), "{said}");
    let deployed = stage.cwasi().args(["deploy", &file]).output().unwrap();
    assert!(!deployed.status.success(), "deployed with the link");
    let said = stderr(&deployed);
    assert!(said.contains("is a symbolic link to ../secret"), "{said}");
    sources.secret_is_empty();
    sources.swap();
    stage.ok(&["deploy", &file]);
    record("3");
    let lines = fs::read_to_string(sources.data.join("executed")).unwrap();
    assert_eq!(lines.lines().count(), 3, "{lines}");

    // Whether the source is a link when the builder opens it is the clock's to decide.
    let has_ended = AtomicBool::new(false);
    let starts = || {
        end(&stage);
        for _ in 0..STARTS {
            let started = start_again(&stage);
            if started.code == 0 {
                record("4");
                end(&stage);
            } else {
                assert!(started.stderr.contains("symbolic link"), "{}", started.stderr);
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                sources.swap();
            }
        });
        let ended = scope.spawn(starts).join();
        has_ended.store(true, Ordering::Relaxed);
        ended.unwrap();
    });
    sources.secret_is_empty();
    // With its log: other tests look whether the node's folder of logs is gone.
    stage.ok(&["rm", "--workflow", "w"]);
}
