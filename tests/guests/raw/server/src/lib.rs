//! A reactor that does what its payload says: `!verb argument`; any other payload comes back unchanged.
//!
//! Runs inside a guest, as a secondary: one instance per request.

use std::alloc::{Layout, alloc};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::atomic::{AtomicU32, Ordering};

use cwasi_abi::ResponseRef;
use raw_calls::{call, context, misbehave, pattern};

/// Requests that this instance served; 1 in every request when instances are fresh.
static SERVED: AtomicU32 = AtomicU32::new(0);

/// The host brings a payload.
#[unsafe(no_mangle)]
pub extern "C" fn cwasi_alloc(len: u32, align: u32) -> *mut u8 {
    let Ok(layout) = Layout::from_size_align((len as usize).max(1), align as usize) else {
        return std::ptr::null_mut();
    };
    // SAFETY:
    // - The layout's size is at least 1.
    unsafe { alloc(layout) }
}

/// Never called for what a request still uses.
#[unsafe(no_mangle)]
pub extern "C" fn cwasi_free(_ptr: u32, _len: u32, _align: u32) {}

/// One request.
///
/// # Safety
/// The host gives a filled block from `cwasi_alloc` and an aligned place for one `ResponseRef`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cwasi_handle(
    payload_ptr: *const u8,
    payload_len: u32,
    response_out: *mut ResponseRef,
) -> i32 {
    SERVED.fetch_add(1, Ordering::Relaxed);
    let payload = match payload_len {
        0 => &[],
        // SAFETY:
        // - The host gives the block that it asked `cwasi_alloc` for, filled, and nobody else uses it.
        len => unsafe { std::slice::from_raw_parts(payload_ptr, len as usize) },
    };
    let (status, response) = match handle(payload) {
        Ok(response) => (0, response),
        Err(message) => (1, message.into_bytes()),
    };
    let response = response.leak();
    let place = ResponseRef {
        ptr: u32::try_from(response.as_ptr().addr()).expect("guest pointers have 32 bits"),
        len: u32::try_from(response.len()).expect("guest lengths have 32 bits"),
    };
    // SAFETY:
    // - The host gives an aligned place for one `ResponseRef`.
    unsafe { response_out.write(place) };
    status
}

/// Notes in `/log/executed` that this request ran: its number and its invocation id.
fn record(number: &str) -> std::io::Result<Vec<u8>> {
    let id = context("invocation_id").unwrap_or_default();
    let mut log = OpenOptions::new().create(true).append(true).open("/log/executed")?;
    log.write_all(format!("{number} {id}\n").as_bytes())?;
    Ok(number.as_bytes().to_vec())
}

fn handle(payload: &[u8]) -> Result<Vec<u8>, String> {
    let Some(order) = payload.strip_prefix(b"!") else { return Ok(payload.to_vec()) };
    let order = String::from_utf8_lossy(order).into_owned();
    let (verb, argument) = order.split_once(' ').unwrap_or((&order, ""));
    match verb {
        "fail" => Err(argument.to_owned()),
        "size" => Ok(pattern(argument.parse().map_err(|_| "size wants a number")?)),
        "served" => Ok(SERVED.load(Ordering::Relaxed).to_string().into_bytes()),
        "sleep" => {
            let ms = argument.parse().map_err(|_| "sleep wants milliseconds")?;
            std::thread::sleep(std::time::Duration::from_millis(ms));
            Ok(b"slept".to_vec())
        }
        "record" => record(argument).map_err(|error| error.to_string()),
        "context" => context(argument).map(String::into_bytes).map_err(|errno| errno.to_string()),
        "call" => {
            let (target, payload) = argument.split_once(' ').unwrap_or((argument, ""));
            call(target, payload.as_bytes())
                .map_err(|(errno, message)| format!("{}: {message}", errno.name()))
        }
        _ => {
            misbehave(verb, argument);
            Err(format!("server knows no {verb:?}"))
        }
    }
}
