//! The code blocks of a page of the documentation.

/// A fenced block.
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
}
