//! The documentation as a book: its summary lists every page, links lead somewhere, and what pages name exists: targets
//! of `make`, tests of promises, texts of errors. `cargo test -p cwasi-cli --test docs` runs the commands that it shows.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use cwasi_testbed::page::Page;

/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";
/// Quotes errors in blocks ```` ```text ````.
const TROUBLESHOOTING: &str = "docs/troubleshooting.md";
/// Names the test of each promise.
const PROMISES: &str = "docs/promises.md";
/// Has the results of the cases.
const RESULTS: &str = "docs/performance.md";
/// Stands for any text in a quoted error.
const ANY: char = '…';
/// Where texts of errors are.
const SOURCES: [&str; 4] = ["abi/src", "cli/src", "host-functions/src", "src"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page, by its path from the checkout.
fn pages() -> BTreeMap<PathBuf, Page> {
    let pages: BTreeMap<_, _> =
        Page::all().into_iter().map(|page| (PathBuf::from(&page.path), page)).collect();
    assert!(pages.len() > 20, "{} pages", pages.len());
    pages
}

/// Targets of the page's links to other files and to its own headings.
fn links(page: &Page) -> Vec<String> {
    let prose = page.prose();
    // Every second part lies between backticks, and is code.
    let words: Vec<&str> = prose.split('`').collect();
    let text: String = words.iter().step_by(2).copied().collect::<Vec<_>>().join("`");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let inside = |target: &&str| !target.contains("://") && !target.starts_with("mailto:");
    targets.map(|(target, _)| target).filter(inside).map(str::to_owned).collect()
}

/// What `link` on `page` leads to: a file, and a heading of it.
fn target(page: &Path, link: &str) -> (PathBuf, Option<String>) {
    let (file, heading) = match link.split_once('#') {
        Some((file, heading)) => (file, Some(heading.to_owned())),
        None => (link, None),
    };
    if file.is_empty() {
        return (page.to_owned(), heading);
    }
    let mut path = PathBuf::new();
    for part in page.parent().unwrap().join(file).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{} links to {link}", page.display()),
            part => path.push(part),
        }
    }
    (path, heading)
}

/// The anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(page: &Page) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in page.prose().lines().filter(|line| line.starts_with('#')) {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}"));
        let free =
            std::iter::once(anchor.clone()).chain(again).find(|name| !anchors.contains(name));
        anchors.extend(free);
    }
    anchors
}

#[test]
fn the_summary_lists_every_page_once() {
    let mut listed = BTreeSet::new();
    for link in links(&Page::read(SUMMARY)) {
        let (path, _) = target(Path::new(SUMMARY), &link);
        assert!(listed.insert(path.clone()), "{SUMMARY} lists {} twice", path.display());
    }
    let missing: Vec<_> = pages()
        .into_keys()
        .filter(|page| page.starts_with("docs") && page != Path::new(SUMMARY))
        .filter(|page| !listed.contains(page))
        .collect();
    assert_eq!(missing, Vec::<PathBuf>::new(), "not in {SUMMARY}");
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let headings: BTreeMap<_, _> =
        pages.iter().map(|(path, page)| (path.clone(), anchors(page))).collect();
    let mut wrong = Vec::new();
    for (page, content) in &pages {
        for link in links(content) {
            let (path, heading) = target(page, &link);
            let is_there = root().join(&path).exists();
            let has_heading = heading.as_ref().is_none_or(|heading| {
                headings.get(&path).is_some_and(|headings| headings.contains(heading))
            });
            if !is_there || !has_heading {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "these links lead nowhere");
}

#[test]
fn pages_of_the_book_link_to_pages_of_the_book() {
    let pages = pages();
    let listed: BTreeSet<_> = links(&pages[Path::new(SUMMARY)])
        .iter()
        .map(|link| target(Path::new(SUMMARY), link).0)
        .collect();
    let mut wrong = Vec::new();
    for page in &listed {
        for link in links(&pages[page]) {
            let (path, _) = target(page, &link);
            let is_page = path.extension().is_some_and(|extension| extension == "md");
            if is_page && !listed.contains(&path) {
                wrong.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "{SUMMARY} does not list what these links lead to");
}

#[test]
fn targets_of_make_exist() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<_> = makefile
        .lines()
        .filter_map(|line| line.split_once(':'))
        .filter(|(target, _)| target.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'))
        .map(|(target, _)| target.to_owned())
        .collect();
    let mut named = BTreeSet::new();
    for page in Page::all() {
        for command in page.commands() {
            for rest in format!(" {command}").split(" make ").skip(1) {
                let word = rest.chars().take_while(|c| !" '`;)|&\"".contains(*c));
                named.insert((page.path.clone(), word.collect::<String>()));
            }
        }
    }
    assert!(named.len() > 20, "{named:?}");
    // A variable may stand before the target.
    let is_target = |word: &str| targets.contains(word) || word.contains('=');
    let wrong: Vec<_> = named.into_iter().filter(|(_, word)| !is_target(word)).collect();
    assert_eq!(wrong, [], "the Makefile has no such targets");
}

/// Names between backticks in the last column of a page's tables.
fn names_in_last_column(page: &Page) -> BTreeSet<String> {
    let prose = page.prose();
    let cells = prose.lines().filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'));
    let last = cells.filter_map(|cells| cells.rsplit('|').next());
    last.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn every_promise_has_its_test_or_case() {
    let mut code = String::new();
    let folders = SOURCES.iter().chain(&["cli/tests", "tests"]);
    folders.for_each(|folder| source(&root().join(folder), &mut code));
    let measured = fs::read_to_string(root().join("docs/performance.md")).unwrap();
    let named = names_in_last_column(&Page::read(PROMISES));
    assert!(named.len() > 20, "{named:?}");
    let exists = |name: &String| {
        code.contains(&format!("fn {name}("))
            || code.contains(&format!("fn {name}<"))
            || measured.contains(&format!("| `{name}` |"))
    };
    let wrong: Vec<_> = named.into_iter().filter(|name| !exists(name)).collect();
    assert_eq!(wrong, Vec::<String>::new(), "{PROMISES} names no such tests or cases");
}

#[test]
fn every_promised_ratio_has_its_result() {
    let text = |page: &str| fs::read_to_string(root().join(page)).unwrap();
    let (promises, results) = (text(PROMISES), text(RESULTS));
    let (_, ratios) = promises.split_once("## Times and ratios").unwrap();
    let rows: Vec<_> = ratios.lines().filter(|line| line.ends_with("` |")).collect();
    assert!(rows.len() > 5, "{ratios}");
    for row in rows {
        let cells: Vec<_> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [_promise, result, case] = cells[..] else { panic!("{row}") };
        let is_result = |line: &str| {
            line.starts_with(&format!("| {case} |")) && line.ends_with(&format!("| {result} |"))
        };
        assert!(results.lines().any(is_result), "{RESULTS} has no row of {case} with {result}");
    }
}

/// All code in `folder`, with strings that continue on a further line in one line.
fn source(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            source(&entry.path(), text);
        } else {
            let mut continued = false;
            for line in fs::read_to_string(entry.path()).unwrap_or_default().lines() {
                let line = if continued { line.trim_start() } else { line };
                continued = line.ends_with('\\');
                text.push_str(line.trim_end_matches('\\'));
                if !continued {
                    text.push('\n');
                }
            }
        }
    }
}

#[test]
fn errors_that_the_troubleshooting_page_quotes_exist() {
    let page = Page::read(TROUBLESHOOTING);
    let mut text = String::new();
    SOURCES.iter().for_each(|folder| source(&root().join(folder), &mut text));
    let quoted: Vec<_> = page.blocks().into_iter().filter(|block| block.info == "text").collect();
    assert!(quoted.len() > 10, "{} quoted errors", quoted.len());
    let mut wrong = Vec::new();
    for block in quoted {
        let error = block.text.lines().collect::<Vec<_>>().join(" ");
        for part in error.split(ANY).map(str::trim).filter(|part| part.len() > 1) {
            if !text.contains(part) {
                wrong.push(format!("{TROUBLESHOOTING}:{}: {part}", block.line));
            }
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "no error has these texts");
}
