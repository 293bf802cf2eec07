//! A `wasi:cli/run` command that does what its payload on stdin says; it writes every other payload to stdout.
#![expect(missing_docs, reason = "generated")]

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::{env, fs, process};

use cwasi::calls::calls;

wit_bindgen::generate!({
    path: "../../../../abi/wit",
    world: "cwasi:function/imports",
    generate_all,
});

fn main() {
    let mut payload = Vec::new();
    if let Err(error) = io::stdin().read_to_end(&mut payload) {
        eprintln!("stdin: {error}");
        process::exit(2);
    }
    let text = String::from_utf8_lossy(&payload).into_owned();
    let (verb, rest) = text.split_once(' ').unwrap_or((&text, ""));
    let said = match verb {
        "!args" => Ok(env::args().collect::<Vec<_>>().join(" ")),
        "!env" => Ok(env::var(rest).unwrap_or_default()),
        "!ls" => list(rest),
        "!read" => fs::read_to_string(rest),
        "!write" => fs::write(rest, "written").map(|()| "done".to_owned()),
        "!connect" => TcpStream::connect(rest).and_then(|mut stream| {
            let mut text = String::new();
            stream.read_to_string(&mut text).map(|_length| text)
        }),
        "!call" => Ok(call(rest)),
        "!sleep" => {
            std::thread::sleep(std::time::Duration::from_millis(rest.parse().unwrap_or(1)));
            Ok("slept".to_owned())
        }
        "!exit" => {
            eprintln!("leaving");
            process::exit(rest.parse().unwrap_or(1))
        }
        "!panic" => panic!("as requested"),
        _ => {
            let written = io::stdout().write_all(&payload).and_then(|()| io::stdout().flush());
            written.map(|()| String::new())
        }
    };
    match said {
        Ok(text) => print!("{text}"),
        Err(error) => print!("error: {error}"),
    }
}

/// Calls a function, `TARGET PAYLOAD`.
fn call(text: &str) -> String {
    let (target, payload) = text.split_once(' ').unwrap_or((text, ""));
    match calls::call_bytes(target, payload.as_bytes()) {
        Ok(response) => String::from_utf8_lossy(&response).into_owned(),
        Err(error) => format!("error: {:?}: {}", error.code, error.message),
    }
}

fn list(path: &str) -> io::Result<String> {
    let names = fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names.join(" "))
}
