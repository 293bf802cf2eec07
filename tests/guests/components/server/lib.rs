//! A `cwasi:function/handler` that does what its payload says; it returns every other payload unchanged.
#![expect(missing_docs, reason = "generated")]

use std::cell::Cell;

use cwasi::calls::calls::{self, Part};
use cwasi::calls::context;
use cwasi::calls::types::{CallError, Payload};
use exports::cwasi::function::handler::Guest;

wit_bindgen::generate!({
    path: "../../../../abi/wit",
    world: "cwasi:function/function",
    generate_all,
});

thread_local! {
    static SERVED: Cell<u32> = const { Cell::new(0) };
}

struct Server;

impl Guest for Server {
    fn handle(payload: Vec<u8>) -> Result<Vec<u8>, String> {
        SERVED.set(SERVED.get() + 1);
        if payload.first() != Some(&b'!') {
            return Ok(payload);
        }
        let text = String::from_utf8(payload).map_err(|error| error.to_string())?;
        let words: Vec<&str> = text.splitn(3, ' ').collect();
        let said = match *words {
            ["!served"] => SERVED.get().to_string(),
            ["!fail", ..] => return Err(text["!fail ".len()..].to_owned()),
            ["!context", key] => context::get(key).ok_or("no such key")?,
            ["!set", key, value] => {
                context::set(key, value).map_err(explained)?;
                "set".to_owned()
            }
            ["!log", ..] => {
                context::log(context::Level::Warn, &text["!log ".len()..]);
                "logged".to_owned()
            }
            ["!call", target, payload] => {
                return calls::call_bytes(target, payload.as_bytes()).map_err(explained);
            }
            ["!emit", target, payload] => {
                calls::emit(target, &Payload::new(payload.as_bytes())).map_err(explained)?;
                "emitted".to_owned()
            }
            ["!fan", target, payloads] => fan(target, payloads)?,
            ["!parts", target, parts] => group(target, parts)?,
            ["!send", target, count] => send(target, count.parse().map_err(|_| "no number")?)?,
            ["!sleep", ms] => {
                let ms = ms.parse().map_err(|_| "no number")?;
                std::thread::sleep(std::time::Duration::from_millis(ms));
                "slept".to_owned()
            }
            ["!loop"] => loop {
                std::hint::black_box(());
            },
            ["!size", count] => {
                return Ok(vec![b'x'; count.parse().map_err(|_| "no number")?]);
            }
            ["!trap"] => std::process::abort(),
            ["!exit"] => std::process::exit(1),
            _ => return Err(format!("unknown: {text}")),
        };
        Ok(said.into_bytes())
    }
}

/// Calls `target` with each word, all at the same time, and joins the responses in the order of their calls.
fn fan(target: &str, payloads: &str) -> Result<String, String> {
    let words = payloads.split(' ').enumerate();
    let start = |(number, word): (usize, &str)| {
        let part: Option<Part> = None;
        let call = calls::start(target, &Payload::new(word.as_bytes()), part.as_ref());
        call.map(|call| (number, call)).map_err(explained)
    };
    let mut open = words.map(start).collect::<Result<Vec<_>, _>>()?;
    let mut said = vec![String::new(); open.len()];
    while !open.is_empty() {
        let waiting: Vec<_> = open.iter().map(|(_, call)| call).collect();
        let ended = calls::wait(&waiting, None).map_err(explained)?;
        let (number, _call) = open.remove(usize::try_from(ended.index).unwrap_or(0));
        said[number] = match ended.outcome {
            Ok(response) => {
                let bytes = response.read(0, response.length());
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Err(error) => explained(error),
        };
    }
    Ok(said.join(" "))
}

/// Sends `target` the parts of one group, `KEY COUNT`, all at the same time; each is `KEY` and its number. Returns
/// what all of them get.
fn group(target: &str, text: &str) -> Result<String, String> {
    let (key, count) = text.split_once(' ').ok_or("no key and count")?;
    let parts: u32 = count.parse().map_err(|_| "no number")?;
    let start = |number: u32| {
        let part = Part { key: key.to_owned(), parts, number };
        let payload = Payload::new(format!("{key}{number}").as_bytes());
        calls::start(target, &payload, Some(&part)).map_err(explained)
    };
    let mut open = (0..parts).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut said = String::new();
    while !open.is_empty() {
        let waiting: Vec<_> = open.iter().collect();
        let ended = calls::wait(&waiting, None).map_err(explained)?;
        open.remove(usize::try_from(ended.index).unwrap_or(0));
        let response = ended.outcome.map_err(explained)?;
        let text = String::from_utf8_lossy(&response.read(0, response.length())).into_owned();
        if !said.is_empty() && said != text {
            return Err(format!("one part got {said}, another {text}"));
        }
        said = text;
    }
    Ok(said)
}

/// Sends `target` this many bytes, which it returns.
fn send(target: &str, count: usize) -> Result<String, String> {
    #[expect(clippy::cast_possible_truncation, reason = "only the low byte is wanted")]
    let bytes: Vec<u8> = (0..count).map(|at| (at.wrapping_mul(31) ^ (at >> 8)) as u8).collect();
    let response = calls::call_bytes(target, &bytes).map_err(explained)?;
    if response == bytes {
        return Ok(format!("{count} bytes came back"));
    }
    Err(format!("{count} bytes sent, {} other bytes came back", response.len()))
}

fn explained(error: CallError) -> String {
    format!("{:?}: {}", error.code, error.message)
}

export!(Server);
