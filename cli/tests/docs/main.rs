//! Runs the commands that the documentation shows, and compares what they print with what the page says.
//!
//! - A block ```` ```console ```` is a shell's screen. A line that begins with `# ` is a command, and the lines below it
//!   are all that the command prints. `…` stands for any text, a line `…` for any lines, and a time for any time.
//! - A block ```` ```sh ```` is commands whose output the page does not show.
//! - A block with a file's name (```` ```toml count/Cargo.toml ````) is that file.
//! - Every command has to succeed, unless `echo $?` follows it.
//! - `not-run:REASON` behind the language keeps a block from being run; [`NOT_RUN`] has the reasons.
//!
//! The blocks of a page run in order, in a network of the test's own. A page that opens a shell beside a private
//! containerd (`cwasi-testbed with -- sh`) begins without one; all others begin in such a shell.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod expected;
mod pages;
mod session;
mod shell;
mod steps;
mod verbs;

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use cwasi_testbed::page::Page;
use pages::{NOT_RUN, not_run, opens_a_shell};
use session::Session;

/// Pages with a test of their own, because they take longest.
const ALONE: [&str; 3] = ["README.md", "docs/quick-start.md", "docs/tutorial.md"];

/// Two of them start functions of the same name in one namespace of containerd: their cgroups are the same.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone(path: &str) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut session = Session::new();
    session.run(&Page::read(path));
    session.finish();
}

#[test]
fn the_readme_is_true() {
    alone(ALONE[0]);
}

#[test]
fn the_quick_start_is_true() {
    alone(ALONE[1]);
}

#[test]
fn the_tutorial_is_true() {
    alone(ALONE[2]);
}

#[test]
fn all_other_pages_are_true() {
    let mut session = Session::new();
    session.open("target/debug/cwasi-testbed with -- sh");
    for page in Page::all().iter().filter(|page| !ALONE.contains(&page.path.as_str())) {
        assert!(!opens_a_shell(page), "{} opens a shell: give it a test of its own", page.path);
        session.begin(page);
        session.run(page);
    }
    session.finish();
}

#[test]
fn blocks_that_are_not_run_have_a_reason() {
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    for page in Page::all() {
        for (line, reason) in not_run(&page) {
            println!("{}:{line}: {reason}", page.path);
            if NOT_RUN.iter().any(|(known, _)| *known == reason) {
                used.insert(reason.to_owned());
            } else {
                wrong.push(format!("{}:{line} has the unknown reason `{reason}`", page.path));
            }
        }
    }
    let unused = NOT_RUN.iter().filter(|(reason, _)| !used.contains(*reason));
    wrong.extend(unused.map(|(reason, _)| format!("no block has the reason `{reason}`")));
    assert_eq!(wrong, Vec::<String>::new());
}
