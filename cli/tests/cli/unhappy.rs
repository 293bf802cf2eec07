//! Every verb when something is wrong: arguments, files, the node's configuration, containerd, functions. A verb
//! without a row here fails `every_verb_has_a_row`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use clap::CommandFactory as _;
use cwasi_cli::commands::Arguments;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::scene::{Stage, workflow_text};
use super::{cwasi, stderr, stdout};

/// How a command ends: its exit code, and a part of what it says on stderr; on stdout for code 0 and 1.
type End = (i32, &'static str);

/// A verb, and its ends.
///
/// In arguments, `{GOOD}` is a workflow file, `{TEXT}` a file that is neither workflow nor module, `{MODULE}` a module,
/// `{NONE}` a path at which nothing is, `{FULL}` a folder in which no file can be made.
struct Verb {
    name: &'static str,
    /// With which it gets as far as containerd, if it needs that.
    arguments: &'static str,
    /// Its end where no containerd answers; `None` = it serves, or has the same end as with one.
    without_containerd: Option<End>,
    /// True if it reads the node's configuration.
    configured: bool,
    /// Other arguments that have an end before containerd is asked.
    wrong: &'static [(&'static str, End)],
    /// Arguments and their ends on a node with a containerd and no function.
    on_empty_node: &'static [(&'static str, End)],
}

const AWAY: Option<End> = Some((69, "containerd does not answer at /does/not/exist.sock: "));
const NO_WORKFLOW: [(&str, End); 4] = [
    ("/dev/zero", (66, "workflow file /dev/zero cannot be read: it is no regular file")),
    ("{NONE}", (66, "workflow file /does/not/exist cannot be read: No such file")),
    ("{TEXT}", (65, "text:1:1: the file must be a mapping")),
    (
        "{GOOD} --set spec.functions.f.modul=x",
        (65, "command line: spec.functions.f has the unknown field `modul`"),
    ),
];
const NO_IMAGE: (&str, End) = (
    "{GOOD} --set spec.functions.f={image: localhost/none:1, role: secondary}",
    (66, "image localhost/none:1 is not in containerd's namespace"),
);

/// What most rows have.
const VERB: Verb = Verb {
    name: "",
    arguments: "",
    without_containerd: AWAY,
    configured: true,
    wrong: &[],
    on_empty_node: &[],
};

const VERBS: &[Verb] = &[
    Verb {
        name: "run",
        arguments: "{GOOD}",
        wrong: &[
            NO_WORKFLOW[0],
            NO_WORKFLOW[1],
            NO_WORKFLOW[2],
            NO_WORKFLOW[3],
            (
                "{GOOD} --set spec.functions.f.role=secondary",
                (65, "has no primary, so there is nothing to run: cwasi deploy "),
            ),
        ],
        on_empty_node: &[
            (
                "{GOOD} --set spec.functions.f={image: localhost/none:1}",
                (66, "image localhost/none:1 is not in containerd's namespace"),
            ),
            ("{GOOD} --snapshotter none", (70, "snapshotter none cannot be used: this containerd")),
        ],
        ..VERB
    },
    Verb {
        name: "deploy",
        arguments: "{GOOD} --set spec.functions.f.role=secondary",
        wrong: &[
            NO_WORKFLOW[0],
            NO_WORKFLOW[1],
            NO_WORKFLOW[2],
            NO_WORKFLOW[3],
            ("{GOOD}", (65, "has no secondary, so there is nothing to deploy: cwasi run ")),
            (
                "{GOOD} --set spec.functions.f.schedule='@hourly'",
                (65, "function f: deploy runs nothing at times, so `schedule` works in a cluster"),
            ),
        ],
        on_empty_node: &[NO_IMAGE],
        ..VERB
    },
    Verb {
        name: "ps",
        wrong: &[
            ("--workflow", (2, "a value is required")),
            ("w", (2, "--kube")),
            ("--kube -v", (2, "cannot be used with")),
            ("--namespace a/b", (2, "a namespace has letters and digits")),
            ("--snapshotter=", (2, "a value is required")),
        ],
        on_empty_node: &[("", (0, "CONTAINER  FUNCTION")), ("--workflow none", (0, "CONTAINER"))],
        ..VERB
    },
    Verb {
        name: "rm",
        arguments: "none",
        wrong: &[
            ("", (2, "required")),
            ("f --workflow w", (2, "cannot be used with")),
            ("f --timeout 5", (2, "--kube")),
        ],
        on_empty_node: &[
            ("none", (66, "has no container or function none")),
            ("--workflow none", (66, "has no container of workflow none")),
        ],
        ..VERB
    },
    Verb {
        name: "logs",
        arguments: "none",
        wrong: &[
            ("", (2, "required")),
            ("f --tail some", (2, "invalid digit")),
            ("f --since soon", (2, "a time looks like")),
        ],
        on_empty_node: &[
            ("none", (66, "has no container or function none")),
            ("--workflow none", (66, "has no container of workflow none")),
        ],
        ..VERB
    },
    Verb {
        name: "scale",
        arguments: "none 2",
        wrong: &[("f many", (2, "invalid digit")), ("f 65", (2, "65 is not in 0..=64"))],
        on_empty_node: &[("none 2", (66, "cwasi deploy FILE"))],
        ..VERB
    },
    Verb {
        name: "invoke",
        arguments: "none",
        // It calls the function's receiver itself.
        without_containerd: Some((66, "no route to function `none`")),
        wrong: &[
            ("none -d @{NONE}", (66, "payload /does/not/exist cannot be read: No such file")),
            ("none --timeout soon", (2, "expected number")),
            ("none --timeout 500000000000y", (2, "--timeout is longer than")),
            ("none -d @", (2, "use --data @FILE")),
            ("none --context c", (2, "--kube")),
            ("none --kube --pod-namespace n", (2, "cannot be used with")),
            ("a/", (65, "a/")),
        ],
        on_empty_node: &[("none", (66, "no route to function `none`"))],
        ..VERB
    },
    Verb {
        name: "top",
        arguments: "--count 1 --interval 1ms",
        wrong: &[("--interval soon", (2, "expected number"))],
        on_empty_node: &[("--count 1 --interval 1ms", (0, "CALLER  CALLEE"))],
        ..VERB
    },
    Verb {
        name: "trace",
        without_containerd: None,
        wrong: &[
            ("ffffffff", (66, "ffffffff")),
            ("last", (66, "no trace")),
            ("--html page.html", (2, "required")),
        ],
        ..VERB
    },
    Verb {
        name: "lint",
        arguments: "{GOOD}",
        without_containerd: Some((0, "")),
        configured: false,
        wrong: &NO_WORKFLOW,
        on_empty_node: &[(
            "{GOOD} --set spec.functions.f={image: localhost/none:1, role: secondary}",
            (1, "f: image localhost/none:1 is not in containerd's namespace"),
        )],
    },
    Verb {
        name: "explain",
        arguments: "gateway none",
        wrong: &[("none", (2, "required")), ("f g --host --file w", (2, "cannot be used with"))],
        on_empty_node: &[
            ("none f", (66, "has no function none; name its workflow with --file")),
            ("gateway none", (1, "gateway -> none: no route")),
            ("none f --file {GOOD}", (66, "has no function none that runs")),
            ("f g --file {NONE}", (66, "cannot be read")),
        ],
        ..VERB
    },
    Verb {
        name: "inspect",
        arguments: "localhost/none:1",
        wrong: &[
            ("{NONE}.wasm", (66, "there is no file /does/not/exist.wasm")),
            ("{TEXT}", (65, "is not a WebAssembly module")),
        ],
        on_empty_node: &[("localhost/none:1", (66, "image localhost/none:1 cannot be found"))],
        ..VERB
    },
    Verb {
        name: "compile",
        arguments: "{TEXT}",
        without_containerd: Some((65, "is not a WebAssembly module")),
        wrong: &[
            ("{NONE}", (66, "module /does/not/exist cannot be read: No such file")),
            ("/dev/zero", (66, "module /dev/zero cannot be read: it is no regular file")),
            ("--engine wasmer {MODULE}", (2, "possible values: wasmtime, wasmedge")),
            ("--sign {NONE} {MODULE}", (66, "key /does/not/exist cannot be read")),
            ("--sign {TEXT} {MODULE}", (65, "openssl genpkey -algorithm ed25519")),
            ("--sign {TEXT} --image x {MODULE}", (2, "cannot be used with")),
            ("--processor native {MODULE}", (2, "--sign <KEY>")),
            ("--sign {TEXT}", (2, "<MODULE>")),
        ],
        ..VERB
    },
    Verb {
        name: "image build",
        arguments: "-t localhost/none:1 {MODULE}",
        wrong: &[
            ("{MODULE}", (2, "--tag <NAME>")),
            ("-t localhost/x:1", (2, "<MODULE>")),
            ("-t localhost/x:1 --from-artifact a {MODULE}", (2, "cannot be used with")),
            ("--tag= {MODULE}", (2, "a value is required for '--tag <NAME>'")),
            (
                "-t localhost/x:1 {NONE}",
                (66, "module /does/not/exist cannot be read: No such file"),
            ),
            (
                "-t localhost/x:1 /dev/zero",
                (66, "module /dev/zero cannot be read: it is no regular file"),
            ),
            ("-t localhost/x:1 {TEXT}", (65, "is not a WebAssembly module")),
            ("-t localhost/x:1 --code {TEXT} {MODULE}", (65, "is not named after the module")),
            ("-t localhost/x:1 --kind layer --code {TEXT} {MODULE}", (2, "needs --kind plain")),
            ("-t localhost/x:1 -o {FULL}/x.tar {MODULE}", (70, "x.tar cannot be written: ")),
            ("-t x:1 --push {MODULE}", (2, "`x:1` names no registry: use REGISTRY/NAME:TAG")),
            ("-t localhost/X:1 --push {MODULE}", (2, "no name of an image")),
            ("-t localhost/x:1 --plain-http {MODULE}", (2, "--push")),
            ("-t localhost/x:1 --push -o x.tar {MODULE}", (2, "cannot be used with")),
        ],
        ..VERB
    },
    Verb {
        name: "image ls",
        wrong: &[("more", (2, "unexpected argument 'more'"))],
        on_empty_node: &[("", (0, "IMAGE"))],
        ..VERB
    },
    Verb {
        name: "image prune",
        wrong: &[("more", (2, "unexpected argument 'more'"))],
        on_empty_node: &[("", (0, "")), ("--json", (0, "[]"))],
        ..VERB
    },
    Verb {
        name: "doctor",
        without_containerd: Some((1, "containerd does not answer at /does/not/exist.sock")),
        configured: false,
        ..VERB
    },
    Verb {
        name: "completions",
        arguments: "bash",
        without_containerd: Some((0, "_cwasi()")),
        configured: false,
        wrong: &[
            ("cobol", (2, "possible values")),
            ("bash --json", (2, "cannot be used with --json")),
        ],
        ..VERB
    },
    Verb {
        name: "gateway",
        arguments: "--listen 192.0.2.1:80 --allow-anonymous",
        without_containerd: Some((69, "cannot listen on 192.0.2.1:80: ")),
        wrong: &[
            ("--listen here", (2, "invalid socket address")),
            ("--tls-cert {TEXT}", (2, "--tls-key")),
            ("--tls-cert {TEXT} --tls-key {TEXT}", (65, "text: ")),
            ("--json", (2, "cannot be used with --json")),
            ("--client-ca {TEXT}", (2, "--client-ca needs --tls-cert")),
            ("--token-file {NONE}", (66, "/does/not/exist")),
            ("--config {NONE}", (66, "/does/not/exist cannot be read: No such file")),
        ],
        ..VERB
    },
    Verb {
        name: "openwhisk",
        arguments: "--listen 127.0.0.1:0",
        without_containerd: None,
        wrong: &[
            ("--listen here", (2, "invalid socket address")),
            ("--listen 192.0.2.1:80", (77, "listen on a loopback address")),
            ("--token-file none", (66, "token file none")),
            ("--allow-dir none", (66, "--allow-dir none")),
            ("--json", (2, "cannot be used with --json")),
        ],
        ..VERB
    },
    Verb {
        name: "dashboard",
        arguments: "--listen 192.0.2.1:80",
        without_containerd: Some((2, "ssh -L")),
        wrong: &[
            ("--listen here", (2, "invalid socket address")),
            ("--json", (2, "cannot be used with --json")),
        ],
        ..VERB
    },
    Verb {
        name: "metrics",
        without_containerd: Some((0, "# EOF")),
        wrong: &[
            ("--listen here", (2, "ADDRESS:PORT")),
            ("--json", (2, "cwasi top --json")),
            ("--listen 192.0.2.1:80", (69, "cannot listen on 192.0.2.1:80")),
            ("--listen unix:{FULL}/s", (69, "/proc/sys/s")),
        ],
        ..VERB
    },
    Verb {
        name: "man",
        arguments: "{FULL}",
        without_containerd: Some((70, "manual pages cannot be written to /proc/sys")),
        configured: false,
        wrong: &[("{FULL} --json", (2, "cannot be used with --json"))],
        ..VERB
    },
    Verb {
        name: "schema",
        without_containerd: Some((0, "https://json-schema.org/draft/2020-12/schema")),
        configured: false,
        wrong: &[
            ("x", (2, "unexpected argument")),
            ("--markdown --json", (2, "cannot be used with --json")),
        ],
        ..VERB
    },
];

/// The files that rows name.
struct Files {
    folder: tempfile::TempDir,
    module: PathBuf,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let module = folder.path().join("f.wasm");
        fs::write(&module, wat::parse_str("(module (func (export \"_start\")))").unwrap()).unwrap();
        fs::write(folder.path().join("text"), "neither\n").unwrap();
        let functions = format!("    f: {{module: {}}}\n", module.display());
        fs::write(folder.path().join("good"), workflow_text("w", &functions)).unwrap();
        Self { folder, module }
    }

    /// Runs a verb with these arguments.
    fn run(&self, mut command: Command, verb: &Verb, arguments: &str) -> Output {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        // A word in braces may have spaces.
        let mut words: Vec<String> = Vec::new();
        for word in arguments.split(' ').filter(|word| !word.is_empty()) {
            match words.last_mut() {
                Some(last) if last.contains("={") && !last.ends_with('}') => {
                    *last = format!("{last} {word}");
                }
                _ => words.push(word.to_owned()),
            }
        }
        let words = words.into_iter().map(|word| {
            word.replace("{GOOD}", &file("good"))
                .replace("{TEXT}", &file("text"))
                .replace("{MODULE}", &self.module.display().to_string())
                .replace("{NONE}", "/does/not/exist")
                .replace("{FULL}", "/proc/sys")
        });
        command.args(verb.name.split(' ')).args(words).current_dir(self.folder.path());
        command.output().unwrap()
    }

    /// A command that finds neither containerd nor functions.
    fn alone(&self) -> Command {
        let config = self.folder.path().join("node.toml");
        let state = self.folder.path().display();
        fs::write(&config, format!("state_dir = '{state}/s'\ncache_dir = '{state}/c'\n")).unwrap();
        let mut command = cwasi();
        command.env("CWASI_CONFIG", config).env("CONTAINERD_ADDRESS", "/does/not/exist.sock");
        // Traces of this user's own local runs are none of these commands'.
        command.env("XDG_STATE_HOME", self.folder.path());
        command
    }
}

/// What is wrong with the end of a command; a failure has no result.
fn fault(output: &Output, (code, part): End, what: &str) -> Option<String> {
    let (out, err) = (stdout(output), stderr(output));
    let said = if code <= 1 { &out } else { &err };
    // An error is said once.
    let twice = |line: &str| {
        let mut parts: Vec<_> = line.split(": ").filter(|part| part.len() > 12).collect();
        let all = parts.len();
        parts.dedup();
        parts.len() < all
    };
    let problem = if output.status.code() != Some(code) {
        format!("ends with {:?} instead of {code}", output.status.code())
    } else if !said.contains(part) {
        format!("does not say {part:?}")
    } else if err.lines().any(twice) {
        "says the same twice".to_owned()
    } else if code > 1 && !out.is_empty() {
        "has a result although it failed".to_owned()
    } else {
        return None;
    };
    Some(format!("cwasi {what} {problem}:\n{out}{err}"))
}

/// Fails with all of them.
fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Names of all verbs that do something, as `image build`.
pub fn verbs() -> BTreeSet<String> {
    let mut verbs = BTreeSet::new();
    leaves(&Arguments::command(), "", &mut verbs);
    verbs
}

fn leaves(command: &clap::Command, path: &str, found: &mut BTreeSet<String>) {
    let below: Vec<_> = command.get_subcommands().filter(|it| it.get_name() != "help").collect();
    if below.is_empty() {
        found.insert(path.trim_start().to_owned());
    }
    for verb in below {
        leaves(verb, &format!("{path} {}", verb.get_name()), found);
    }
}

#[test]
fn every_verb_has_a_row() {
    let rows: BTreeSet<_> = VERBS.iter().map(|verb| verb.name.to_owned()).collect();
    assert_eq!(rows, verbs());
}

#[test]
fn wrong_arguments_and_files_are_named() {
    let files = Files::new();
    let common = [("--no-such-flag", (2, "unexpected argument '--no-such-flag'"))];
    let runs = VERBS.iter().flat_map(|verb| {
        let ends = common.iter().chain(verb.wrong);
        ends.map(move |(arguments, end)| (verb, arguments, end))
    });
    none(
        runs.filter_map(|(verb, arguments, end)| {
            let output = files.run(files.alone(), verb, arguments);
            fault(&output, *end, &format!("{} {arguments}", verb.name))
        })
        .collect(),
    );
}

#[test]
fn without_containerd_each_verb_says_where_it_looked_or_works() {
    let files = Files::new();
    let ends = VERBS.iter().filter_map(|verb| Some((verb, verb.without_containerd?)));
    let run = |verb: &Verb| files.run(files.alone(), verb, verb.arguments);
    none(ends.filter_map(|(verb, end)| fault(&run(verb), end, verb.name)).collect());
}

#[test]
fn a_wrong_configuration_is_named_by_each_verb_that_reads_it() {
    let files = Files::new();
    let wrong = files.folder.path().join("wrong.toml");
    fs::write(&wrong, "node = 'a'\nstate_dri = '/s'\n").unwrap();
    let fifo = files.folder.path().join("fifo.toml");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let [wrong, fifo] = [wrong, fifo].map(|path| path.display().to_string());
    let mut faults = Vec::new();
    for verb in VERBS.iter().filter(|verb| verb.configured) {
        for (config, end) in [
            (fifo.as_str(), (66, "fifo.toml cannot be read: it is no regular file")),
            ("/does/not/exist", (66, "configuration file /does/not/exist cannot be read: No such")),
            (wrong.as_str(), (65, "wrong.toml is not valid: line 2: unknown field `state_dri`")),
        ] {
            let mut command = files.alone();
            command.env("CWASI_CONFIG", config);
            let what = format!("{} with CWASI_CONFIG={config}", verb.name);
            faults.extend(fault(&files.run(command, verb, verb.arguments), end, &what));
        }
    }
    none(faults);
}

#[test]
fn what_a_node_does_not_have_is_named() {
    let (stage, files) = (Stage::new("cli-unhappy"), Files::new());
    let mut faults = Vec::new();
    for verb in VERBS {
        for (arguments, end) in verb.on_empty_node {
            let output = files.run(stage.cwasi(), verb, arguments);
            faults.extend(fault(&output, *end, &format!("{} {arguments}", verb.name)));
        }
    }
    none(faults);
    assert_eq!(stage.containers(), Vec::<String>::new());
}
