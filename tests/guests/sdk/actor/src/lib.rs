//! A secondary whose first argument says what it does with every request.
//!
//! Runs inside a guest, one instance per request. Without an argument it is an echo.

use std::fmt::Write as _;

#[cwasi::handler]
fn act(payload: Vec<u8>) -> Result<Vec<u8>, String> {
    let args: Vec<String> = std::env::args().collect();
    let argument = args.get(2).map(String::as_str).unwrap_or_default();
    match args.get(1).map_or("echo", String::as_str) {
        "echo" => Ok(payload),
        "reverse" => Ok(payload.into_iter().rev().collect()),
        "checksum" => Ok(checksum(&payload).into_bytes()),
        "length" => Ok(payload.len().to_string().into_bytes()),
        "fail" => Err(format!("refused: {argument}")),
        "panic" => panic!("cannot go on with {} bytes", payload.len()),
        "chain" => cwasi::call(argument, &payload).map_err(|error| error.to_string()),
        "name" => Ok(argument.as_bytes().to_vec()),
        "nap" => Ok(nap(argument, payload)),
        "fan" => fan(argument, &payload).map_err(|error| error.to_string()),
        "log" => Ok(log(&payload)),
        "print" => {
            println!("{}", String::from_utf8_lossy(&payload));
            Ok(payload)
        }
        "context" => Ok(context().into_bytes()),
        "http" => http(&payload).map_err(|errno| errno.to_string()),
        "head" => head(&payload).map_err(|errno| errno.to_string()),
        "hog" => hog(),
        other => Err(format!("actor knows no {other:?}")),
    }
}

/// Says what request it was; its answer is 201 with a header.
fn http(payload: &[u8]) -> Result<Vec<u8>, cwasi::ErrorKind> {
    use cwasi::http::{header, method, path, query, set_header, set_status};
    set_status(201)?;
    set_header("X-Length", payload.len().to_string())?;
    let seen = [method(), path(), query(), header("X-Test"), header("Authorization")];
    Ok(seen.join("|").into_bytes())
}

/// The request's headers that begin with `x-`, a line each. Its answer has a header of as many bytes as the payload
/// says, and the response to `HEAD` has that length.
fn head(payload: &[u8]) -> Result<Vec<u8>, cwasi::ErrorKind> {
    use cwasi::http::{headers, method, set_header};
    let length = String::from_utf8_lossy(payload).parse().unwrap_or_default();
    set_header("x-long", vec![b'\xe9'; length])?;
    if method() == "HEAD" {
        set_header("content-length", "12345")?;
    }
    let seen = headers().into_iter().filter(|(name, _)| name.starts_with("x-"));
    Ok(seen.flat_map(|(name, value)| [name.as_bytes(), b"=", &value, b"\n"].concat()).collect())
}

/// Takes memory until something ends it.
fn hog() -> ! {
    let mut held = Vec::new();
    loop {
        held.push(vec![1_u8; 1 << 20]);
    }
}

/// Length and FNV-1a of the bytes, as the caller computes them too.
fn checksum(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{} {hash:016x}", bytes.len())
}

fn log(payload: &[u8]) -> Vec<u8> {
    cwasi::log::init();
    cwasi::log::error!("error {}", String::from_utf8_lossy(payload));
    cwasi::log::info!("info {}", payload.len());
    cwasi::log::debug!("not shown unless CWASI_LOG says so");
    Vec::new()
}

fn context() -> String {
    let context = cwasi::context();
    let mut text = String::new();
    for (name, value) in [
        ("function", &context.function),
        ("workflow", &context.workflow),
        ("invocation_id", &context.invocation_id),
        ("caller", &context.caller),
        ("traceparent", &context.traceparent),
        ("attempt", &context.attempt.to_string()),
        ("run_id", &context.run_id),
        ("time_left", &format!("{:?}", context.time_left)),
    ] {
        writeln!(text, "{name}={value}").expect("a String takes it");
    }
    text
}

/// Answers after so many milliseconds.
fn nap(milliseconds: &str, payload: Vec<u8>) -> Vec<u8> {
    let milliseconds = milliseconds.parse().expect("a number");
    std::thread::sleep(std::time::Duration::from_millis(milliseconds));
    payload
}

/// Has five calls in flight, takes the first answer that comes, gives one call up and leaves the others.
fn fan(target: &str, payload: &[u8]) -> Result<Vec<u8>, cwasi::CallError> {
    let calls = (0..4).map(|_| cwasi::start(target, payload));
    let mut ends = cwasi::as_completed(calls);
    let answer = ends.next().expect("one of four").1?;
    std::mem::forget(ends);
    drop(cwasi::start(target, payload));
    Ok(answer.into())
}
