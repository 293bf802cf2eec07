//! The pages of the documentation, and which of their blocks are commands.

use cwasi_testbed::page::{Block, Page, command};

use crate::steps;

/// Why a block is not run here, and what runs or checks it instead.
pub const NOT_RUN: [(&str, &str); 6] = [
    (
        "minutes",
        "builds, tests or measures for minutes; tests/book.rs checks that targets of make exist",
    ),
    ("cluster", "needs a Kubernetes cluster; make test-kubernetes does the same"),
    ("machine", "writes into the machine's own folders"),
    (
        "registry",
        "needs a registry of yours; cargo test -p cwasi-cli --test cli -- registry has one",
    ),
    ("other-projects", "fetches the sources of other projects, or builds their test suites"),
    (
        "compilers",
        "needs the compilers of other languages; cargo test --test e2e -- languages:: runs them",
    ),
];
/// Marks such a block.
const NOT_RUN_PREFIX: &str = "not-run:";
/// Marks the command that compiles the file before it, which the end-to-end tests `languages` and `component_languages` run.
const BUILD: &str = "build";

/// What a block is for the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind<'a> {
    /// Commands and what they print.
    Console,
    Commands,
    /// A file of this name.
    File(&'a str),
    /// Commands that are not run, and why.
    NotRun(&'a str),
    Text,
}

/// What `block` is.
pub fn kind<'a>(block: &Block<'a>) -> BlockKind<'a> {
    let note = block.note();
    match (block.language(), note.strip_prefix(NOT_RUN_PREFIX)) {
        (_, Some(reason)) => BlockKind::NotRun(reason),
        ("console", _) => BlockKind::Console,
        ("sh", _) if note != BUILD => BlockKind::Commands,
        _ if note.contains('.') => BlockKind::File(note),
        _ => BlockKind::Text,
    }
}

/// Whether the page's files are for compilers: other tests write them.
pub fn is_built_elsewhere(page: &Page) -> bool {
    page.blocks().iter().any(|block| block.note() == BUILD)
}

/// Whether a command of the page opens a shell beside a private containerd.
pub fn opens_a_shell(page: &Page) -> bool {
    let opens = |line: &str| steps::opens_a_shell(command(line).unwrap_or(line));
    let is_run =
        |block: &Block<'_>| matches!(kind(block), BlockKind::Console | BlockKind::Commands);
    let mut blocks = page.blocks().into_iter().filter(is_run);
    blocks.any(|block| block.text.lines().any(opens))
}

/// Line and reason of the blocks that are not run.
pub fn not_run(page: &Page) -> Vec<(usize, &str)> {
    page.blocks()
        .into_iter()
        .filter_map(|block| match kind(&block) {
            BlockKind::NotRun(reason) => Some((block.line, reason)),
            _ => None,
        })
        .collect()
}
