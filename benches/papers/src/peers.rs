//! Programs of other projects, which become sides if this machine has them: in the folder of the variable PEERS, or on
//! `PATH`. Nothing of them is part of this repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Folder with such programs, and with what belongs to them.
const FOLDER: &str = "PEERS";
/// OpenFaaS' server in front of a function's own.
pub const OF_WATCHDOG: &str = "of-watchdog";
/// The executor of WOW. Its actions lie beside it, as archives of code for it: `wow-hash.zip`, `wow-net.zip`.
pub const WOW_EXECUTOR: &str = "wow-executor";
/// runwasi's shims, by the names that containerd finds them by.
pub const RUNWASI_WASMTIME: &str = "containerd-shim-wasmtime-v1";
pub const RUNWASI_WASMEDGE: &str = "containerd-shim-wasmedge-v1";
/// The shim of the CWASI paper, whose own name is ours, too.
pub const PROTOTYPE: &str = "cwasi-prototype";

/// A program that this report can use.
struct Known {
    name: &'static str,
    /// Flag that prints its version, if it has one.
    version: Option<&'static str>,
    /// What the report lacks without it.
    missing: &'static str,
}

const KNOWN: [Known; 5] = [
    Known {
        name: OF_WATCHDOG,
        version: Some("-version"),
        missing: "no figure has OpenFaaS’ server in front of the native function",
    },
    Known {
        name: WOW_EXECUTOR,
        version: None,
        missing: "no figure has WOW’s own executor beside ours",
    },
    Known {
        name: RUNWASI_WASMTIME,
        version: None,
        missing: "no figure has components and modules in runwasi’s wasmtime shim",
    },
    Known {
        name: RUNWASI_WASMEDGE,
        version: None,
        missing: "no figure has a module in runwasi’s WasmEdge shim",
    },
    Known { name: PROTOTYPE, version: None, missing: "no figure has the CWASI paper’s own shim" },
];

/// The path of a program.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::var_os(FOLDER).map(PathBuf::from);
    folders
        .into_iter()
        .chain(std::env::split_paths(&paths))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// What lies beside a program.
#[must_use]
pub fn beside(program: &Path, name: &str) -> Option<Vec<u8>> {
    fs::read(program.with_file_name(name)).ok()
}

/// Name and version of each program that is there.
#[must_use]
pub fn versions() -> Vec<(String, String)> {
    let version = |known: &Known| {
        let program = find(known.name)?;
        Some((known.name.to_owned(), described(&program, known.version)))
    };
    KNOWN.iter().filter_map(version).collect()
}

/// Name of each program that is not there, and what the report lacks.
#[must_use]
pub fn missing() -> Vec<(String, String)> {
    let lacks = |known: &&Known| find(known.name).is_none();
    let reason = |known: &Known| {
        let reason = format!("it is neither in the folder {FOLDER} nor on PATH: {}", known.missing);
        (known.name.to_owned(), reason)
    };
    KNOWN.iter().filter(lacks).map(reason).collect()
}

/// The file `NAME.version` beside the program, what the program says of itself, and its size: a build may name no
/// version.
fn described(program: &Path, flag: Option<&str>) -> String {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let note = beside(program, &format!("{name}.version"));
    let note = note.map(|text| first_line(&text));
    let said = flag.and_then(|flag| {
        let output = Command::new(program).arg(flag).stdin(Stdio::null()).output().ok()?;
        Some(without_time(&first_line(&[output.stdout, output.stderr].concat())))
    });
    let size = fs::metadata(program).map_or(0, |file| file.len());
    let parts = [note, said, Some(format!("{size} bytes"))];
    parts.into_iter().flatten().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// A line without the time at its beginning: of-watchdog logs its version, and two runs of one program are to say the same.
fn without_time(line: &str) -> String {
    let is_time = |word: &&str| word.chars().all(|it| it.is_ascii_digit() || "/:.-".contains(it));
    line.split(' ').skip_while(is_time).collect::<Vec<_>>().join(" ")
}

fn first_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_described_by_its_note_and_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("executor");
        fs::write(&program, "12345").unwrap();
        assert_eq!(described(&program, None), "5 bytes");
        fs::write(folder.path().join("executor.version"), "revision abc\nmore").unwrap();
        assert_eq!(described(&program, None), "revision abc, 5 bytes");
        assert_eq!(beside(&program, "executor.version").unwrap()[..8], *b"revision");
        assert!(find("no-such-program").is_none());
        assert_eq!(without_time("2026/11/29 08:25:56 Version: 1.2"), "Version: 1.2");
        assert_eq!(without_time("v24.19.0"), "v24.19.0");
    }
}
