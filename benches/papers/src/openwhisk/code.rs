//! What `/init` delivers: an action's module or native program; and how large its source and its code are.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cwasi_bench::fixture::guest;

use super::messages;
use crate::sides::images::stripped;

/// Bodies of `/init` by action.
pub type Bodies = BTreeMap<&'static str, Arc<str>>;

/// Sources of the actions, as the thesis' Tables 1 and 2 count them.
const SOURCES: [(&str, &str); 5] = [
    ("hello", include_str!("../../actions/src/hello.rs")),
    ("hash", include_str!("../../actions/src/hash.rs")),
    ("prime", include_str!("../../actions/src/prime.rs")),
    ("net", include_str!("../../actions/src/net.rs")),
    ("sleep", include_str!("../../actions/src/sleep.rs")),
];

/// What an action's code is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Module,
    /// A native program, without symbols.
    Program,
    /// The platform has it already.
    None,
}

/// The bodies that deliver these actions.
///
/// # Errors
/// When code was not built.
pub fn bodies(programs: &Path, form: Form, actions: &[&'static str]) -> Result<Bodies> {
    let body =
        |action: &&'static str| Ok((*action, messages::init(action, &of(programs, form, action)?)));
    actions.iter().map(body).collect()
}

/// The code of an action.
///
/// # Errors
/// When it was not built.
pub fn of(programs: &Path, form: Form, action: &str) -> Result<Vec<u8>> {
    match form {
        Form::Module => guest(programs, &format!("papers_{action}")),
        Form::Program => {
            let (folder, name) = (tempfile::tempdir()?, format!("papers-{action}"));
            let program = stripped(folder.path(), &name, &programs.join(&name))?;
            fs::read(&program).with_context(|| program.display().to_string())
        }
        Form::None => Ok(Vec::new()),
    }
}

/// Lines of code of each action: neither blank nor a comment.
#[must_use]
pub fn lines() -> Vec<(&'static str, usize)> {
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
    SOURCES.map(|(action, source)| (action, source.lines().filter(is_code).count())).to_vec()
}

/// The module with one more custom section, so that no cache knows it.
#[must_use]
pub fn unknown(module: &[u8], number: u64) -> Vec<u8> {
    /// Id of a custom section, its length, and that of its name, which is empty.
    const HEAD: [u8; 3] = [0, 9, 0];
    [module, &HEAD[..], &number.to_le_bytes()[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_has_a_source_with_lines() {
        let names: Vec<&str> = lines().iter().map(|(action, _)| *action).collect();
        assert_eq!(names, bench_actions::ACTIONS.map(|(name, _)| name));
        assert!(lines().iter().all(|(_, lines)| (5..60).contains(lines)), "{:?}", lines());
    }

    #[test]
    fn a_custom_section_makes_a_module_unknown() {
        let changed = unknown(b"\0asm", 1);
        assert_eq!(changed[4..], [0, 9, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        assert_ne!(changed, unknown(b"\0asm", 2));
    }
}
