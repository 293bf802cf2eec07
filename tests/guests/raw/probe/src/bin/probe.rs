//! A WASI command that does what its arguments say; the first is the verb.
//!
//! Runs inside a guest, as a primary.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::{env, fs, process};

use cwasi_abi::Errno;
use raw_calls::{call, context, emit, misbehave, pattern};

/// Passes stdin on, each part at once.
fn copy() -> io::Result<()> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
    let mut part = [0; 8192];
    loop {
        let len = stdin.read(&mut part)?;
        if len == 0 {
            return Ok(());
        }
        stdout.write_all(&part[..len])?;
        stdout.flush()?;
    }
}

fn main() -> io::Result<()> {
    let args: Vec<String> = env::args().collect();
    let arg = |index: usize| args.get(index).map(String::as_str).unwrap_or_default();
    match arg(1) {
        "args" => args.iter().for_each(|one| println!("{one}")),
        "env" => env::vars().for_each(|(key, value)| println!("{key}={value}")),
        "cat" => copy()?,
        "both" => {
            println!("{}", arg(2));
            eprintln!("{}", arg(3));
        }
        "print" => (0..number(arg(2))).for_each(|line| println!("{line} {}", arg(3))),
        "ls" => list(arg(2))?,
        "read" => print!("{}", fs::read_to_string(arg(2))?),
        "write" => fs::write(arg(2), arg(3))?,
        "alloc" => drop(allocate(number(arg(2)))),
        "hold" => {
            let _held = allocate(number(arg(2)));
            misbehave("block", "");
        }
        "context" => println!("{:?}", context(arg(2))),
        "call" => one_call(arg(2), arg(3).as_bytes()),
        "call-size" => sized_call(arg(2), number(arg(3))),
        "calls" => args.iter().skip(3).for_each(|payload| report_call(arg(2), payload.as_bytes())),
        "emit" => args.iter().skip(3).for_each(|payload| report_emit(arg(2), payload.as_bytes())),
        "emit-sized" => emit_sized(arg(2), number(arg(3)), number(arg(4))),
        "repeat" => repeat(arg(2), number(arg(3)), arg(4)),
        "number" => number_calls(arg(2), arg(3))?,
        "say-then" => {
            println!("{}", arg(2));
            misbehave(arg(3), arg(4));
        }
        verb => {
            misbehave(verb, arg(2));
            eprintln!("probe knows no {verb:?}");
            process::exit(64);
        }
    }
    Ok(())
}

fn number(text: &str) -> usize {
    text.parse().expect("the test gives a number")
}

fn list(dir: &str) -> io::Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    names.iter().for_each(|name| println!("{name}"));
    Ok(())
}

/// Touches `mib` MiB, one after the other.
fn allocate(mib: usize) -> Vec<Vec<u8>> {
    let blocks: Vec<Vec<u8>> =
        (0..mib).map(|_| std::hint::black_box(vec![1_u8; 1 << 20])).collect();
    println!("allocated {} MiB", blocks.len());
    blocks
}

fn one_call(target: &str, payload: &[u8]) {
    match call(target, payload) {
        Ok(response) => {
            io::stdout().write_all(&response).expect("stdout takes it");
        }
        Err((errno, message)) => {
            eprintln!("{}: {message}", errno.name());
            process::exit(errno.code());
        }
    }
}

/// Calls and says in one line how it ended, whatever the end.
fn report_call(target: &str, payload: &[u8]) {
    match call(target, payload) {
        Ok(response) => println!("ok: {}", String::from_utf8_lossy(&response)),
        Err((errno, message)) => println!("{}: {message}", errno.name()),
    }
}

/// Leaves a message and says in one line whether it is kept.
fn report_emit(target: &str, payload: &[u8]) {
    match emit(target, payload) {
        Ok(()) => println!("kept"),
        Err((errno, message)) => println!("{}: {message}", errno.name()),
    }
}

/// Leaves `times` messages of `len` bytes, and counts how that ended.
fn emit_sized(target: &str, times: usize, len: usize) {
    let payload = pattern(len);
    count_ends(
        (0..times).map(|_| emit(target, &payload).map_or_else(|(errno, _)| errno, |()| Errno::Ok)),
    );
}

/// Sends `len` bytes to a function that answers with what it got.
fn sized_call(target: &str, len: usize) {
    let payload = pattern(len);
    match call(target, &payload) {
        Ok(response) if response == payload => println!("{len} bytes came back"),
        Ok(response) => panic!("{len} bytes sent, {} other bytes came back", response.len()),
        Err((errno, message)) => {
            eprintln!("{}: {message}", errno.name());
            process::exit(errno.code());
        }
    }
}

/// Calls `times` times one after the other and counts how they ended.
fn repeat(target: &str, times: usize, payload: &str) {
    let call = || call(target, payload.as_bytes()).map_or_else(|(errno, _)| errno, |_| Errno::Ok);
    count_ends((0..times).map(|_| call()));
}

fn count_ends(all: impl Iterator<Item = Errno>) {
    let mut ends: BTreeMap<&str, usize> = BTreeMap::new();
    for end in all {
        *ends.entry(end.name()).or_default() += 1;
    }
    ends.iter().for_each(|(name, count)| println!("{name} {count}"));
}

/// Calls with `!record 0`, `!record 1`, … until `DIR/stop` exists, and notes in `DIR/ended` how each one ended.
fn number_calls(target: &str, dir: &str) -> io::Result<()> {
    let mut ended = fs::File::create(format!("{dir}/ended"))?;
    for number in 0_u64.. {
        if fs::exists(format!("{dir}/stop"))? {
            break;
        }
        let end = match call(target, format!("!record {number}").as_bytes()) {
            Ok(_) => Errno::Ok,
            Err((errno, message)) => {
                eprintln!("{number}: {message}");
                errno
            }
        };
        writeln!(ended, "{number} {}", end.name())?;
    }
    Ok(())
}
