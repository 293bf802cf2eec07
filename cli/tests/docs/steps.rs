//! The commands of a block, one after the other.

use cwasi_testbed::page::command;

/// A command, and what it prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its line within the page.
    pub line: usize,
    /// The command, with the lines that continue it.
    pub command: String,
    /// The lines that it prints; none when the page does not show them.
    pub output: Option<Vec<String>>,
}

/// The commands of a shell's screen, whose first line is line `first` of the page.
pub fn on_screen(text: &str, first: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, content) in (first..).zip(text.lines()) {
        match (command(content), steps.last_mut()) {
            (_, Some(step)) if step.command.ends_with('\\') => {
                step.command.push('\n');
                step.command.push_str(content);
            }
            (Some(command), _) => {
                let command = command.to_owned();
                steps.push(Step { line, command, output: Some(Vec::new()) });
            }
            (None, Some(step)) => step.output.get_or_insert_default().push(content.to_owned()),
            (None, None) => panic!("line {line}: a block `console` begins with a command"),
        }
    }
    for step in &mut steps {
        // Empty lines before the next command are for the reader.
        let output = step.output.get_or_insert_default();
        while output.last().is_some_and(String::is_empty) {
            output.pop();
        }
    }
    steps
}

/// The commands of a script, whose first line is line `first` of the page.
pub fn of_script(text: &str, first: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for (line, content) in (first..).zip(text.lines()) {
        match steps.last_mut() {
            Some(step) if step.command.ends_with('\\') => {
                step.command.push('\n');
                step.command.push_str(content);
            }
            _ if content.trim().is_empty() || content.starts_with('#') => {}
            _ => steps.push(Step { line, command: content.to_owned(), output: None }),
        }
    }
    steps
}

/// Whether a command opens a shell beside one or two private containerds.
pub fn opens_a_shell(command: &str) -> bool {
    let mut words = command.split_whitespace();
    words.next().is_some_and(|program| program.ends_with("cwasi-testbed"))
        && command.ends_with("-- sh")
}

/// Whether a command goes on in the background.
pub fn stays(command: &str) -> bool {
    command.ends_with('&') && !command.ends_with("&&")
}

#[test]
fn a_screen_is_commands_with_their_output() {
    let steps = on_screen("# a \\\n    b\none\n\ntwo\n\n# c\n", 10);
    assert_eq!(steps.len(), 2);
    assert_eq!((steps[0].line, steps[0].command.as_str()), (10, "a \\\n    b"));
    assert_eq!(steps[0].output.as_deref(), Some(&["one".into(), String::new(), "two".into()][..]));
    assert_eq!((steps[1].line, steps[1].output.as_deref()), (16, Some(&[][..])));
}

#[test]
fn a_script_is_its_commands() {
    let steps = of_script("# why\na \\\n b\n\nc\n", 3);
    let found: Vec<_> = steps.iter().map(|step| (step.line, step.command.as_str())).collect();
    assert_eq!(found, [(4, "a \\\n b"), (7, "c")]);
}

#[test]
fn shells_and_background_jobs_are_recognized() {
    assert!(opens_a_shell("target/debug/cwasi-testbed two-nodes -- sh"));
    assert!(!opens_a_shell("target/debug/cwasi-testbed with -- true"));
    assert!(stays("cwasi gateway &") && !stays("true"));
}
