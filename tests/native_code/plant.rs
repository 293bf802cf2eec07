//! A root file system with native code in it that leaves a mark when it runs.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use cwasi_sandbox::exec_filter;
use cwasi_sys::mount_flags;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::wait::WaitStatus;

use crate::harness;

const MARK: &str = "/mark";
/// The dynamic linker inside the root.
const LOADER: &str = "/loader";
const LOADED_BY: &str = "-Wl,--dynamic-linker=/loader";
/// Longest that one attempt takes.
const ATTEMPT_MAX: Duration = Duration::from_secs(60);
/// Leaves the mark as soon as it is loaded.
const LIBRARY: &str = r#"
    #include <fcntl.h>
    __attribute__((constructor)) static void planted(void) { creat("/mark", 0600); }
    /* what gconv modules have: "incomplete input" */
    int gconv(void) { return 7; }
"#;
/// Leaves the mark when it is executed, needs nothing else of the root.
const PROGRAM: &str = r#"
    #include <fcntl.h>
    int main(void) { return creat("/mark", 0600) < 0; }
"#;
const INNOCENT: &str = "int main(void) { return 0; }";

/// What keeps planted code out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Barrier {
    None,
    Filter,
    /// The root's mount runs nothing.
    Mount,
}

/// A root file system.
pub struct Root {
    dir: tempfile::TempDir,
    /// Where the dynamic linker looks first: `/lib/x86_64-linux-gnu`, for example.
    libraries: PathBuf,
}

impl Root {
    pub fn new() -> Self {
        let root = Self { dir: tempfile::tempdir().unwrap(), libraries: libraries() };
        for folder in [Path::new("/etc"), Path::new("/tmp"), &root.libraries] {
            std::fs::create_dir_all(root.host(folder)).unwrap();
        }
        root
    }

    /// The host's path of one inside the root.
    pub fn host(&self, inside: &Path) -> PathBuf {
        self.dir.path().join(inside.strip_prefix("/").unwrap())
    }

    pub fn write(&self, inside: &str, text: &str) {
        let path = self.host(Path::new(inside));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// Where libraries lie, inside the root.
    pub fn libraries(&self) -> &Path {
        &self.libraries
    }

    /// A library that leaves the mark.
    pub fn plant(&self, inside: &Path) {
        self.compile(LIBRARY, inside, &["-shared", "-fPIC"]);
    }

    /// A library of this name where the dynamic linker looks first.
    pub fn plant_library(&self, name: &str) {
        self.plant(&self.libraries.join(name));
    }

    /// A program that leaves the mark.
    pub fn plant_program(&self, inside: &Path) {
        self.compile(PROGRAM, inside, &[LOADED_BY]);
        self.copy_loader();
    }

    /// A program that does nothing.
    pub fn place_program(&self, inside: &Path) {
        self.compile(INNOCENT, inside, &[LOADED_BY]);
        self.copy_loader();
    }

    /// The machine's `C.UTF-8` under another name and with another character set, whose name is as long.
    pub fn copy_locale(&self, name: &str, charset: &str) {
        let data = std::fs::read("/usr/lib/locale/C.utf8/LC_CTYPE").unwrap();
        let old = b"UTF-8\0";
        let at = data.windows(old.len()).rposition(|window| window == old).unwrap();
        let new = [&data[..at], charset.as_bytes(), &data[at + charset.len()..]].concat();
        let path = self.host(&Path::new("/usr/lib/locale").join(name).join("LC_CTYPE"));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, new).unwrap();
    }

    fn compile(&self, source: &str, inside: &Path, flags: &[&str]) {
        let out = self.host(inside);
        std::fs::create_dir_all(out.parent().unwrap()).unwrap();
        let file = self.dir.path().join("planted.c");
        std::fs::write(&file, source).unwrap();
        let compiled = Command::new("cc").args(flags).arg("-o").args([&out, &file]).status();
        assert!(compiled.unwrap().success(), "cc makes {}", out.display());
    }

    /// The dynamic linker, under the name that programs of these tests have for it, and the C library.
    fn copy_loader(&self) {
        let copy = |host: &Path, inside: &Path| {
            let copy = self.host(inside);
            std::fs::copy(host, &copy).unwrap();
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        copy(&mapped("ld-linux"), Path::new(LOADER));
        let library = mapped("libc.so.6");
        copy(&library, &library);
    }

    /// Makes the root a mount, in a mount namespace that ends with this process.
    fn mount(&self) {
        let (none, path) = (None::<&str>, self.dir.path());
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        mount(Some(path), path, none, MsFlags::MS_BIND, none).unwrap();
    }

    /// Whether `attempt` in this root makes planted code run. `attempt` must return.
    fn runs_planted_code(&self, barrier: Barrier, attempt: fn()) -> bool {
        let output = tempfile::tempfile().unwrap();
        let ended = harness::in_child(&output, || {
            self.mount();
            nix::unistd::chroot(self.dir.path()).unwrap();
            nix::unistd::chdir("/").unwrap();
            match barrier {
                Barrier::None => {}
                Barrier::Filter => exec_filter::install().unwrap(),
                Barrier::Mount => assert!(mount_flags::forbid_exec(Path::new("/")).unwrap()),
            }
            attempt();
        });
        let ended = ended.wait(ATTEMPT_MAX);
        assert!(matches!(ended, Some(WaitStatus::Exited(_, 0))), "{ended:?}: {}", read(output));
        let mark = self.host(Path::new(MARK));
        let marked = mark.exists();
        if marked {
            std::fs::remove_file(mark).unwrap();
        }
        marked
    }

    /// Planted code runs without a barrier (or this shows nothing), and not with one.
    pub fn check(&self, attempt: fn()) {
        let runs = |barrier| self.runs_planted_code(barrier, attempt);
        assert!(runs(Barrier::None), "the attempt does not reach planted code");
        for barrier in [Barrier::Filter, Barrier::Mount] {
            assert!(!runs(barrier), "planted code ran: {barrier:?}");
        }
    }
}

fn read(mut file: File) -> String {
    use std::io::{Read as _, Seek as _};
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text
}

/// Path of a library that this process has loaded.
fn mapped(name: &str) -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..]));
    PathBuf::from(path.into_iter().find(|path| path.contains(name)).unwrap())
}

fn libraries() -> PathBuf {
    mapped("libc.so.6").parent().unwrap().to_owned()
}
