//! What callers and callees noted about each call, and what must hold between the two. Notes lie outside of the
//! containers, so they stay when their writer is killed: a caller's are lines of a file of its own, an execution is a
//! file that is named by the call's number.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Errnos, as `abi.md` has them, and the caller's own for an answer with other bytes.
const OK: i32 = 0;
const WRONG_ANSWER: i32 = 99;
/// The call was not accepted: no such function, overloaded, unreachable.
const NOT_ACCEPTED: [i32; 3] = [3, 6, 10];
/// It is unknown whether the callee ran: timeout, broken.
const UNKNOWN: [i32; 2] = [5, 11];
/// Violations that are listed in full.
const WRONG_SHOWN_MAX: usize = 40;

/// One call, by what was noted about it.
#[derive(Debug, Default)]
struct Call {
    caller: String,
    /// Errno and text of each end.
    ends: Vec<(i32, String)>,
    executed: usize,
}

/// All calls of a run.
#[derive(Debug, Default)]
pub struct Account {
    calls: BTreeMap<u64, Call>,
    /// What must not be; one line each.
    pub wrong: Vec<String>,
    /// Calls whose caller was killed while they were under way.
    orphans: usize,
}

impl Account {
    /// Reads the notes in `dir`. `callers` are the names of the callers' files, `killed` those of callers that were
    /// killed, whose calls need not have ended.
    pub fn read(dir: &Path, callers: &[String], killed: &BTreeSet<String>) -> Self {
        let text = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        let accounts = callers.iter().map(|name| (name.as_str(), text(name)));
        let executed = std::fs::read_dir(dir.join("executed")).into_iter().flatten().flatten();
        let executed = executed.map(|file| file.file_name().to_string_lossy().into_owned());
        Self::of(accounts.collect(), &executed.collect::<Vec<_>>(), killed)
    }

    fn of(callers: Vec<(&str, String)>, executed: &[String], killed: &BTreeSet<String>) -> Self {
        let mut account = Self::default();
        for (name, text) in &callers {
            let is_done = account.read_caller(name, text);
            if !is_done && !killed.contains(*name) {
                account.wrong.push(format!("{name} ended early, and nobody killed it"));
            }
        }
        for note in executed {
            let number = note.trim_end_matches('.').parse().ok();
            let call = number.and_then(|number: u64| account.calls.get_mut(&number));
            match call {
                Some(call) => call.executed += 1,
                None => account.wrong.push(format!("executed, but never sent: {note:?}")),
            }
        }
        let mut wrong = Vec::new();
        for (number, call) in &account.calls {
            if call.ends.is_empty() && killed.contains(&call.caller) {
                account.orphans += 1;
            }
            if let Some(what) = call.violation(killed.contains(&call.caller)) {
                wrong.push(format!("call {number} of {}: {what}: {call:?}", call.caller));
            }
        }
        account.wrong.extend(wrong);
        let more = account.wrong.len().saturating_sub(WRONG_SHOWN_MAX);
        if more > 0 {
            account.wrong.truncate(WRONG_SHOWN_MAX);
            account.wrong.push(format!("and {more} more"));
        }
        account
    }

    /// True when the caller came to its own end.
    fn read_caller(&mut self, name: &str, text: &str) -> bool {
        let mut is_done = false;
        for line in text.lines() {
            let fields: Vec<&str> = line.splitn(4, ' ').collect();
            let number = fields.get(1).and_then(|field| field.parse::<u64>().ok());
            match (fields[0], number, &fields[1..]) {
                ("s", Some(number), [_]) => {
                    let call = Call { caller: name.to_owned(), ..Call::default() };
                    if self.calls.insert(number, call).is_some() {
                        self.wrong.push(format!("{name}: {number} was sent twice"));
                    }
                }
                ("e", Some(number), [_, errno, text]) => {
                    let errno = errno.parse().unwrap_or(i32::MAX);
                    match self.calls.get_mut(&number) {
                        Some(call) => call.ends.push((errno, (*text).to_owned())),
                        None => {
                            self.wrong.push(format!("{name}: {number} ended, but was not sent"))
                        }
                    }
                }
                ("done", None, []) => is_done = true,
                _ => self.wrong.push(format!("{name}: {line:?} is no note")),
            }
        }
        is_done
    }

    /// Calls that were answered.
    pub fn answered(&self) -> usize {
        self.ended(OK).count()
    }

    fn ended(&self, errno: i32) -> impl Iterator<Item = &Call> {
        self.calls.values().filter(move |call| call.ends.first().is_some_and(|end| end.0 == errno))
    }

    /// What came out, for people.
    pub fn table(
        &self,
        version: &str,
        seed: u64,
        seconds: u64,
        faults: &BTreeMap<&str, u32>,
    ) -> String {
        let mut text = format!("{version}, seed {seed}, {seconds} s\n");
        let faults: Vec<_> = faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        let _ = writeln!(text, "  killed: {}", faults.join(", "));
        let executed: usize = self.calls.values().map(|call| call.executed).sum();
        let _ = writeln!(text, "  calls sent {}, executed {executed}", self.calls.len());
        let errnos: BTreeSet<i32> =
            self.calls.values().flat_map(|call| &call.ends).map(|end| end.0).collect();
        let _ = writeln!(text, "  {:>7} {:>8} {:>9}  for example", "errno", "calls", "executed");
        for errno in errnos {
            let executed: usize = self.ended(errno).map(|call| call.executed).sum();
            let example = self.ended(errno).next().map_or("", |call| call.ends[0].1.as_str());
            let count = self.ended(errno).count();
            let _ = writeln!(text, "  {errno:>7} {count:>8} {executed:>9}  {example}");
        }
        let _ = writeln!(
            text,
            "  {:>7} {:>8}            their caller was killed",
            "none", self.orphans
        );
        let _ = writeln!(text, "  wrong: {}", self.wrong.len());
        text
    }
}

impl Call {
    /// What is wrong with it.
    fn violation(&self, caller_killed: bool) -> Option<&'static str> {
        if self.executed > 1 {
            return Some("executed twice");
        }
        match self.ends.as_slice() {
            [] if caller_killed => None,
            [] => Some("it never ended"),
            [(OK, _)] if self.executed == 1 => None,
            [(OK, _)] => Some("answered, and not executed"),
            [(WRONG_ANSWER, _)] => Some("answered with other bytes"),
            [(errno, _)] if NOT_ACCEPTED.contains(errno) && self.executed == 0 => None,
            [(errno, _)] if NOT_ACCEPTED.contains(errno) => Some("not accepted, and executed"),
            [(errno, _)] if UNKNOWN.contains(errno) => None,
            [_] => Some("no fault ends a call like this"),
            _ => Some("it ended twice"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(caller: &str, executed: &str, killed: bool) -> String {
        let killed = killed.then(|| "c".to_owned()).into_iter().collect();
        let executed: Vec<_> = executed.split_whitespace().map(str::to_owned).collect();
        Account::of(vec![("c", caller.to_owned())], &executed, &killed).wrong.join("\n")
    }

    #[test]
    fn what_may_be_is_not_wrong() {
        let sound =
            "s 1\ns 2\ne 2 6 queue full\ne 1 0 ok\ns 3\ne 3 11 broken off\ns 4\ne 4 5 late\ndone\n";
        assert_eq!(wrong(sound, "1 3", false), "");
        assert_eq!(wrong("s 1\n", "", true), "");
        assert_eq!(wrong("s 1\n", "1", true), "");
    }

    #[test]
    fn what_must_not_be_is_noticed() {
        for (caller, executed, says) in [
            ("s 1\ne 1 0 ok\ndone\n", "1 1.", "executed twice"),
            ("s 1\ne 1 11 broken\ndone\n", "1 1.", "executed twice"),
            ("s 1\ne 1 0 ok\ndone\n", "", "not executed"),
            ("s 1\ne 1 10 nobody\ndone\n", "1", "not accepted, and executed"),
            ("s 1\ne 1 3 nobody\ndone\n", "1", "not accepted, and executed"),
            ("s 1\ne 1 6 full\ndone\n", "1", "not accepted, and executed"),
            ("s 1\ndone\n", "", "never ended"),
            ("s 1\ne 1 0 ok\ne 1 0 ok\ndone\n", "1", "ended twice"),
            ("s 1\ne 1 99 other\ndone\n", "1", "other bytes"),
            ("s 1\ne 1 8 failed\ndone\n", "1", "no fault ends"),
            ("s 1\ne 1 7 trapped\ndone\n", "1", "no fault ends"),
            ("s 1\ne 1 15 internal\ndone\n", "1", "no fault ends"),
            ("e 1 0 ok\ndone\n", "", "not sent"),
            ("done\n", "7", "never sent"),
            ("s 1\ne 1 0 ok\n", "1", "ended early"),
        ] {
            let found = wrong(caller, executed, false);
            assert!(found.contains(says), "{caller:?} {executed:?}: {found:?}");
        }
    }
}
