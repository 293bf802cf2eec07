//! The pages of the documentation: their blocks of code, their commands, their prose.

use std::fs;
use std::path::Path;

use crate::paths::checkout;

/// Folders with pages, from the checkout; `""` is the checkout itself.
const FOLDERS: [&str; 7] = [
    "",
    "docs",
    "guest-sdk/rust",
    "tests/guests",
    "third_party",
    "workflows/functions",
    "workflows/vehicle-paths",
];

#[derive(Clone, Debug)]
pub struct Page {
    /// Its path from the checkout.
    pub path: String,
    pub text: String,
}

impl Page {
    /// Reads it.
    ///
    /// # Panics
    /// When it is not there.
    #[must_use]
    pub fn read(path: &str) -> Self {
        let text = fs::read_to_string(checkout().join(path))
            .unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text }
    }

    /// Every page, by its path.
    ///
    /// # Panics
    /// When a folder cannot be read.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut paths = Vec::new();
        for folder in FOLDERS {
            let entries = fs::read_dir(checkout().join(folder))
                .unwrap_or_else(|error| panic!("{folder}: {error}"));
            let files = entries.flatten().map(|entry| Path::new(folder).join(entry.file_name()));
            paths.extend(files.filter(|path| path.extension().is_some_and(|it| it == "md")));
        }
        paths.sort();
        paths.iter().map(|path| Self::read(&path.display().to_string())).collect()
    }

    /// Its blocks of code.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block<'_>> {
        blocks(&self.text)
    }

    /// Its text without blocks of code.
    #[must_use]
    pub fn prose(&self) -> String {
        let mut inside = false;
        let shown = |line: &&str| {
            let fence = line.starts_with(FENCE);
            inside ^= fence;
            !inside && !fence
        };
        self.text.lines().filter(shown).collect::<Vec<_>>().join("\n")
    }

    /// The lines of its commands, and its code between backticks.
    #[must_use]
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for block in self.blocks() {
            let lines = block.text.lines();
            match block.language() {
                "console" => commands.extend(lines.filter_map(command).map(str::to_owned)),
                "sh" => commands.extend(lines.map(str::to_owned)),
                _ => {}
            }
        }
        // Every second part lies between backticks.
        commands.extend(self.prose().split('`').skip(1).step_by(2).map(str::to_owned));
        commands
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// Line of its opening fence, from 1.
    pub line: usize,
    /// What follows the opening fence's backticks: a language, then what the project's tests read.
    pub info: &'a str,
    /// Between the fences; its lines end in `\n`.
    pub text: &'a str,
}

impl<'a> Block<'a> {
    /// The first word after the opening fence: `console`, `sh`, `toml`…
    #[must_use]
    pub fn language(&self) -> &'a str {
        self.info.split_whitespace().next().unwrap_or_default()
    }

    /// The words after the language: a file's name, `build`, or `not-run:REASON`.
    #[must_use]
    pub fn note(&self) -> &'a str {
        self.info.split_once(' ').map_or("", |(_, note)| note.trim())
    }
}

/// Opening and closing fence.
const FENCE: &str = "```";
/// What stands before a command in a block `console`.
const PROMPT: &str = "# ";

/// The command in a line of a block `console`; none in a line that a command printed. A comment of Prometheus' text
/// format (`# EOF`, `# HELP …`) is no command.
#[must_use]
pub fn command(line: &str) -> Option<&str> {
    let command = line.strip_prefix(PROMPT)?;
    let first = command.split_whitespace().next().unwrap_or_default();
    let is_comment = !first.is_empty() && first.chars().all(|c| c.is_ascii_uppercase());
    (!is_comment).then_some(command)
}

/// Every block, in the page's order. A block that is not closed ends with the page.
#[must_use]
pub fn blocks(page: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<(usize, &str, usize)> = None;
    let mut offset = 0;
    for (index, line) in page.split_inclusive('\n').enumerate() {
        let end = offset + line.len();
        if let Some(info) = line.strip_prefix(FENCE).map(str::trim) {
            match open.take() {
                Some((line, info, start)) => {
                    blocks.push(Block { line, info, text: &page[start..offset] });
                }
                None => open = Some((index + 1, info, end)),
            }
        }
        offset = end;
    }
    blocks.extend(open.map(|(line, info, start)| Block { line, info, text: &page[start..] }));
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_line_and_note() {
        let page = "x\n```sh\na\n```\n\n```c next.c\nint a;\n\nint b;\n```\ny\n";
        let found = blocks(page);
        assert_eq!(found[0], Block { line: 2, info: "sh", text: "a\n" });
        assert_eq!(found[1], Block { line: 6, info: "c next.c", text: "int a;\n\nint b;\n" });
        assert_eq!((found[1].language(), found[1].note()), ("c", "next.c"));
        assert_eq!(found[0].note(), "");
    }

    #[test]
    fn comments_of_metrics_are_no_commands() {
        assert_eq!(command("# cwasi ps"), Some("cwasi ps"));
        assert_eq!(command("# A=1 cwasi ps"), Some("A=1 cwasi ps"));
        assert_eq!((command("# EOF"), command("cwasi ps")), (None, None));
    }
}
