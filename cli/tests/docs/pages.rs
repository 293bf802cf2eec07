//! The pages of the documentation, and which of their blocks are commands.

use std::fs;
use std::path::Path;

use cwasi_testbed::page::{Block, blocks};
use cwasi_testbed::place::checkout;

use crate::steps;

/// Why a block is not run here, and what runs or checks it instead.
pub const NOT_RUN: [(&str, &str); 5] = [
    (
        "minutes",
        "builds, tests or measures for minutes; tests/book.rs checks that targets of make exist",
    ),
    ("cluster", "needs a Kubernetes cluster; make test-kubernetes does the same"),
    ("machine", "writes into the machine's own folders"),
    ("other-projects", "fetches and builds the test suites of other projects"),
    (
        "compilers",
        "needs the compilers of other languages; cargo test --test e2e_languages runs them",
    ),
];
/// Marks such a block.
const NOT_RUN_PREFIX: &str = "not-run:";
/// Marks the command that compiles the file before it, which `e2e_languages` runs.
const BUILD: &str = "build";
/// Folders with pages, from the checkout; `""` is the checkout itself.
const FOLDERS: [&str; 4] = ["", "docs", "guest-sdk/rust", "workflows/vehicle-paths"];

/// What a block is for the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// Commands and what they print.
    Console,
    /// Commands.
    Commands,
    /// A file of this name.
    File(&'a str),
    /// Commands that are not run, and why.
    NotRun(&'a str),
    /// Something to read.
    Text,
}

/// What `block` is.
pub fn kind<'a>(block: &Block<'a>) -> Kind<'a> {
    let note = block.note();
    match (block.language(), note.strip_prefix(NOT_RUN_PREFIX)) {
        (_, Some(reason)) => Kind::NotRun(reason),
        ("console", _) => Kind::Console,
        ("sh", _) if note != BUILD => Kind::Commands,
        _ if note.contains('.') => Kind::File(note),
        _ => Kind::Text,
    }
}

/// A page.
#[derive(Debug)]
pub struct Page {
    /// Its path from the checkout.
    pub path: String,
    text: String,
}

impl Page {
    /// Reads it.
    pub fn read(path: &str) -> Self {
        let text = fs::read_to_string(checkout().join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text }
    }

    /// Every page with commands, by name.
    pub fn all() -> Vec<Self> {
        let mut paths = Vec::new();
        for folder in FOLDERS {
            for entry in fs::read_dir(checkout().join(folder)).unwrap().map(Result::unwrap) {
                let name = entry.file_name().into_string().unwrap();
                if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                    paths.push(Path::new(folder).join(name).display().to_string());
                }
            }
        }
        paths.sort();
        let pages: Vec<_> = paths.iter().map(|path| Self::read(path)).collect();
        assert!(pages.len() > 15, "{paths:?}");
        pages
    }

    /// Its blocks.
    pub fn blocks(&self) -> Vec<Block<'_>> {
        blocks(&self.text)
    }

    /// Whether a command of it opens a shell beside a private containerd.
    pub fn opens_a_shell(&self) -> bool {
        let opens = |block: &Block<'_>| {
            matches!(kind(block), Kind::Console | Kind::Commands)
                && block
                    .text
                    .lines()
                    .any(|line| steps::opens_a_shell(line.trim_start_matches("# ")))
        };
        self.blocks().iter().any(opens)
    }

    /// Line and reason of the blocks that are not run.
    pub fn not_run(&self) -> Vec<(usize, &str)> {
        self.blocks()
            .into_iter()
            .filter_map(|block| match kind(&block) {
                Kind::NotRun(reason) => Some((block.line, reason)),
                _ => None,
            })
            .collect()
    }

    /// Its commands, one line each, and its code between backticks.
    pub fn code(&self) -> Vec<String> {
        let blocks = self.blocks();
        let lines = blocks.iter().flat_map(|block| {
            let prompt = match block.language() {
                "console" => Some("# "),
                "sh" => Some(""),
                _ => None,
            };
            block.text.lines().filter_map(move |line| line.strip_prefix(prompt?))
        });
        let mut rest = self.text.as_str();
        let mut code: Vec<String> = lines.map(str::to_owned).collect();
        for block in &blocks {
            // What stands before the block is prose.
            let Some((prose, after)) = rest.split_once(block.text) else { continue };
            code.extend(inline(prose));
            rest = after;
        }
        code.extend(inline(rest));
        code
    }
}

/// Texts between single backticks.
fn inline(prose: &str) -> Vec<String> {
    prose.replace("```", "").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}
