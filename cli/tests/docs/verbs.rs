//! The command's verbs and flags, as `cwasi help` has them and as the pages have them.

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use cwasi_cli::commands::Arguments;
use cwasi_testbed::page::Page;

/// The page with all verbs.
const PAGE: &str = "docs/cli.md";
const HELP: &str = "help";

fn verbs() -> BTreeSet<String> {
    let command = Arguments::command();
    command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect()
}

/// Long flags of all verbs, with their dashes.
fn flags() -> BTreeSet<String> {
    fn collect(command: &clap::Command, flags: &mut BTreeSet<String>) {
        let names = command.get_arguments().filter_map(clap::Arg::get_long);
        flags.extend(names.map(|name| format!("--{name}")));
        command.get_subcommands().for_each(|verb| collect(verb, flags));
    }
    let mut flags = BTreeSet::new();
    collect(&Arguments::command(), &mut flags);
    flags
}

#[test]
fn the_page_has_every_verb() {
    let page = Page::read(PAGE);
    let named: BTreeSet<String> = page
        .commands()
        .iter()
        .flat_map(|code| {
            let code = code.strip_prefix("cwasi ").unwrap_or(code);
            code.split_whitespace().next().map(str::to_owned)
        })
        .collect();
    let missing: Vec<_> = verbs().into_iter().filter(|verb| !named.contains(verb)).collect();
    assert_eq!(missing, Vec::<String>::new(), "{PAGE} lacks these verbs");
}

#[test]
fn verbs_and_flags_on_pages_exist() {
    let (verbs, flags) = (verbs(), flags());
    let mut wrong = Vec::new();
    let mut seen = 0;
    for page in Page::all() {
        for code in page.commands() {
            let Some(command) = code.strip_prefix("cwasi ") else {
                continue;
            };
            let words: Vec<&str> = command.split_whitespace().collect();
            let verb = words.iter().find(|word| word.chars().all(|c| c.is_ascii_lowercase()));
            if let Some(verb) = verb.filter(|verb| !verbs.contains(**verb) && **verb != HELP) {
                wrong.push(format!("{}: cwasi {verb}", page.path));
            }
            let unknown = |word: &&&str| {
                let flag = word.split('=').next().unwrap();
                flag.starts_with("--") && !flags.contains(flag)
            };
            wrong.extend(words.iter().filter(unknown).map(|word| format!("{}: {word}", page.path)));
            seen += 1;
        }
    }
    assert!(seen > 30, "{seen} commands");
    assert_eq!(wrong, Vec::<String>::new(), "the command knows no such verb or flag");
}
