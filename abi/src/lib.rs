//! The numbers, names and layouts that a CWASI guest and its host share (guest ABI, version 1).
//! Compiled into the host's programs and into every Rust guest.
//!
//! `docs/abi.md` has the same table for other languages. All pointers are `u32` offsets into the guest's linear
//! memory; every import returns an [`Errno`] as `i32` (0 = ok).
//!
//! Invariant: no I/O, no allocation, no unsafe.
#![warn(missing_docs)]
#![no_std]
#![forbid(unsafe_code)]

mod errno;
pub mod interfaces;
mod layout;
mod parts;
pub mod response_head;

pub use errno::Errno;
pub use layout::{CallOptions, Outcome, Ready, RegionInfo, ResponseRef};
pub use parts::{
    PARTS_MAGIC, PARTS_MAX, PARTS_VERSION, PartEntry, PartsBlock, PartsError, parts_head,
    parts_header_len,
};

/// Version of the guest ABI described here.
pub const ABI_VERSION: u32 = 1;

/// The import module of every host function.
pub const IMPORT_MODULE: &str = "cwasi";

/// The guest ABI of the paper's prototype (2023), for functions with `cwasi.compat=2023`.
pub mod prototype {
    /// The import module of [`FUNC_CONNECT`].
    pub const IMPORT_MODULE: &str = "cwasi_export";
    /// `(message_ptr, message_len) -> response_len`: the message is JSON, and the response overwrites it.
    pub const FUNC_CONNECT: &str = "func_connect";
    /// Number of its parameters.
    pub const FUNC_CONNECT_PARAMS: u32 = 2;
    /// `() -> i32`: what a callee exports.
    pub const FUNCTION: &str = "cwasi_function";
}

/// Names of the functions that a guest may import from [`IMPORT_MODULE`].
pub mod import {
    /// `(target_ptr, target_len, payload_ptr, payload_len, outcome_out) -> errno`
    pub const REQUEST_DISPATCHER: &str = "request_dispatcher";
    /// `(target_ptr, target_len, payload_ptr, payload_len, options_ptr, handle_out) -> errno`
    pub const DISPATCH_START: &str = "dispatch_start";
    /// `(handles_ptr, count, timeout_ms, ready_out) -> errno`
    pub const DISPATCH_WAIT: &str = "dispatch_wait";
    /// `(handle) -> errno`
    pub const DISPATCH_FORGET: &str = "dispatch_forget";
    /// `(target_ptr, target_len, payload_ptr, payload_len, outcome_out) -> errno`
    pub const EMIT: &str = "emit";
    /// `(handle, ptr, len) -> errno`
    pub const RESPONSE_READ: &str = "response_read";
    /// `(key_ptr, key_len, value_ptr, value_capacity, value_len_out) -> errno`
    pub const CONTEXT_GET: &str = "context_get";
    /// `(key_ptr, key_len, value_ptr, value_len) -> errno`
    pub const CONTEXT_SET: &str = "context_set";
    /// `(key_ptr, key_len, value_ptr, value_len) -> errno`
    pub const CONTEXT_ADD: &str = "context_add";
    /// `(level, ptr, len) -> errno`
    pub const LOG: &str = "log";
    /// `(ptr, len) -> errno`
    pub const TRAP_MESSAGE: &str = "trap_message";

    /// `(ptr, len) -> errno`
    pub const LINK_OFFER: &str = "link_offer";
    /// `(index, ptr, capacity, len_out) -> errno`
    pub const LINK_READ: &str = "link_read";
    /// `(ptr, len) -> errno`
    pub const LINK_RETURN: &str = "link_return";
    /// `(ptr, capacity, len_out) -> errno`
    pub const LINK_RESULT: &str = "link_result";

    /// `(ptr, len) -> errno`
    pub const REGION_SHARE: &str = "region_share";
    /// `(ptr, len) -> errno`
    pub const REGION_SEAL: &str = "region_seal";
    /// `(ptr, len) -> errno`
    pub const REGION_RELEASE: &str = "region_release";
    /// `(info_out) -> errno`
    pub const REGION_INFO: &str = "region_info";

    /// Every one of them with its number of `i32` parameters: what a module may import and a host must offer.
    pub const SIGNATURES: [(&str, u32); 19] = [
        (REQUEST_DISPATCHER, 5),
        (DISPATCH_START, 6),
        (DISPATCH_WAIT, 4),
        (DISPATCH_FORGET, 1),
        (EMIT, 5),
        (RESPONSE_READ, 3),
        (CONTEXT_GET, 5),
        (CONTEXT_SET, 4),
        (CONTEXT_ADD, 4),
        (LOG, 3),
        (TRAP_MESSAGE, 2),
        (LINK_OFFER, 2),
        (LINK_READ, 4),
        (LINK_RETURN, 2),
        (LINK_RESULT, 3),
        (REGION_SHARE, 2),
        (REGION_SEAL, 2),
        (REGION_RELEASE, 2),
        (REGION_INFO, 1),
    ];

    /// Number of `i32` parameters of a host function, which returns one `i32`; `None` when it does not exist.
    #[must_use]
    pub fn parameters(name: &str) -> Option<u32> {
        SIGNATURES.iter().find(|(known, _)| *known == name).map(|(_, parameters)| *parameters)
    }
}

/// The empty function that the coordinator appends to a module which embeds others, so that the engine can
/// be led back into it (`docs/embedding.md`). No image may export it.
pub const HOME_EXPORT: &str = "cwasi.home";

/// Exports whose names begin so are the runtime's. No image may have one.
pub const RESERVED_EXPORTS: &str = "cwasi.";
/// The immutable global that the compiler appends to a module whose instances can be brought back to an earlier state.
pub const STATE_EXPORT: &str = "cwasi.state";
/// Under this name and a number from 0 on the compiler exports each mutable global of such a module.
pub const GLOBAL_EXPORT: &str = "cwasi.global.";

/// Under this name one of these is exported that is 0 as long as the module has called no function of WASI that leaves something
/// behind; only where the module imports such functions.
pub const WASI_CALLED_EXPORT: &str = "cwasi.wasi";

/// The table that the compiler appends to a module with linked functions: the callees, in the order of its imports of
/// them.
pub const LINKED_CALLEES_EXPORT: &str = "cwasi.linked.callees";
/// A mutable `i64` of such a module: of the calls of a function, the host makes those whose number has none of its bits.
pub const LINKED_MASK_EXPORT: &str = "cwasi.linked.mask";
/// A mutable `i32` of such a module: 1 + the number of the linked function that it calls; 0 = none.
pub const LINKED_RUNNING_EXPORT: &str = "cwasi.linked.running";
/// Under this name and its number such a module exports how often it has called a linked function, a mutable `i64`.
pub const LINKED_CALLS_EXPORT: &str = "cwasi.linked.calls.";

/// Names of the functions that a guest exports.
pub mod export {
    /// `(len, align) -> ptr`, 0 when out of memory.
    pub const ALLOC: &str = "cwasi_alloc";
    /// `(ptr, len, align)`
    pub const FREE: &str = "cwasi_free";
    /// `(payload_ptr, payload_len, response_out) -> status`, 0 = answered, anything else = failed.
    pub const HANDLE: &str = "cwasi_handle";
    /// An immutable `i32` global, the offset of 8 bytes, 4-aligned: where each invocation tells its response.
    pub const RESPONSE: &str = "cwasi_response";
    /// An immutable `i32` global, the offset of [`PAYLOAD_BUFFER_LEN`](super::PAYLOAD_BUFFER_LEN) bytes: where the host
    /// may put a short payload.
    pub const PAYLOAD: &str = "cwasi_payload";
    /// `()`, called once per instance before anything else when exported.
    pub const INITIALIZE: &str = "_initialize";
    /// `()`, one invocation of a WASI command.
    pub const START: &str = "_start";
    /// The linear memory.
    pub const MEMORY: &str = "memory";
}

/// Keys of `context_get`. Values are UTF-8 text.
pub mod context_key {
    /// Name of the running function.
    pub const FUNCTION: &str = "function";
    /// Name of the workflow, empty when there is none.
    pub const WORKFLOW: &str = "workflow";
    /// Id of this invocation: 32 lower-case hexadecimal digits.
    pub const INVOCATION_ID: &str = "invocation_id";
    /// Milliseconds left until the deadline, decimal; empty when there is no deadline.
    pub const DEADLINE_MS: &str = "deadline_ms";
    /// How often this call was tried, starting at 1, decimal.
    pub const ATTEMPT: &str = "attempt";
    /// Name of the calling function, empty in a primary.
    pub const CALLER: &str = "caller";
    /// W3C trace context of this invocation, empty when not traced.
    pub const TRACEPARENT: &str = "traceparent";
    /// What goes with it for tracing systems: `tracestate` of W3C trace context, empty without.
    pub const TRACESTATE: &str = "tracestate";
    /// Id of the run of the workflow that this invocation belongs to: 32 lower-case hexadecimal digits.
    pub const RUN_ID: &str = "run_id";
    /// Method of the HTTP request; empty, as the next ones, if the call did not come by HTTP.
    pub const HTTP_METHOD: &str = "http.method";
    /// Path of the HTTP request behind the function's name, with its `/`.
    pub const HTTP_PATH: &str = "http.path";
    /// Query of the HTTP request, without `?`.
    pub const HTTP_QUERY: &str = "http.query";
    /// Names of the HTTP request's headers, lower-case, each followed by a line feed.
    pub const HTTP_HEADERS: &str = "http.headers";
    /// Before a header's lower-case name: its value. `context_set` and `context_add` set the response's.
    pub const HTTP_HEADER: &str = "http.header.";
    /// All headers in their order, each `name: value` and a line feed; a header with several values has several lines.
    pub const HTTP_FIELDS: &str = "http.fields";
    /// `context_set` only: status of the HTTP response, three digits.
    pub const HTTP_STATUS: &str = "http.status";
    /// Before a property of an OpenWhisk activation, such as `activation_id`: its value; empty if there is none.
    pub const OPENWHISK: &str = "openwhisk.";
}

/// Levels of `log`.
pub mod log_level {
    /// Something failed.
    pub const ERROR: u32 = 1;
    /// Something looks wrong.
    pub const WARN: u32 = 2;
    /// Worth telling.
    pub const INFO: u32 = 3;
    /// For the author of the function.
    pub const DEBUG: u32 = 4;
    /// Every step.
    pub const TRACE: u32 = 5;
}

/// Longest function name in bytes (a DNS label, as Kubernetes names are).
pub const FUNCTION_NAME_MAX: usize = 63;
/// Longest target of a call in bytes: a function name, or a namespace, `/` and a function name.
pub const TARGET_MAX: usize = 255;
/// Alignment that the host asks `cwasi_alloc` for when it copies a payload: a Rust guest can own the block
/// as a `Vec<u8>`.
pub const PAYLOAD_ALIGN: u32 = 1;
/// Length in bytes of the memory at the global `cwasi_payload`.
pub const PAYLOAD_BUFFER_LEN: usize = 1024;
/// Pages of regions and of payloads that are mapped, in bytes; where the host has others, nothing is mapped.
pub const REGION_PAGE: u32 = 4096;
/// Length of a huge page in bytes (x86-64, and 64-bit ARM with 4 KiB pages): payloads as long as this are aligned to it
/// where that gives them such pages.
pub const HUGE_PAGE: u32 = 2 << 20;
/// Longest payload or response in bytes that is copied wherever it lies; only longer ones are shared or mapped.
pub const INLINE_MAX: usize = 64 * 1024;
/// Most regions that one instance can have at a time.
pub const REGIONS_MAX: usize = 512;
/// Longest head of a request, or of a response that an invocation sets with `context_set` and `context_add`: bytes of
/// all keys and values, with [`METADATA_OVERHEAD`] for each pair. It fits into an envelope.
pub const METADATA_MAX: usize = 64 * 1024;
/// Bytes that a key and its value need besides themselves in an envelope, at most.
pub const METADATA_OVERHEAD: usize = 8;
/// Most headers of a request, and most that an invocation sets with `context_set` and `context_add`.
pub const METADATA_ENTRIES_MAX: usize = 256;
/// Longest log message in bytes; longer ones are cut at a character boundary.
pub const LOG_MESSAGE_MAX: usize = 16 * 1024;
/// Longest text of `trap_message` in bytes; longer ones are cut at a character boundary.
pub const TRAP_MESSAGE_MAX: usize = 2 * 1024;
/// Most buffers that one call of an embedded function can be offered.
pub const LINK_ARGUMENTS_MAX: usize = 16;
/// Longest key in bytes of calls that are handled together.
pub const JOIN_KEY_MAX: usize = 255;
/// Most calls that one invocation can have in flight.
pub const CALLS_IN_FLIGHT_MAX: usize = 1024;
/// `timeout_ms` of a wait that only the calls' deadlines end.
pub const WAIT_FOR_EVER: u32 = u32::MAX;
/// Largest payload or response in bytes, whatever the configuration says.
pub const PAYLOAD_MAX: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    extern crate std;

    use std::format;

    use super::*;

    const TABLE: &str = include_str!("../../docs/abi.md");

    #[test]
    fn the_documents_table_is_this_crate() {
        for errno in Errno::ALL {
            let row = format!("| {} | {} |", errno.code(), errno.name());
            assert!(TABLE.contains(&row), "docs/abi.md lacks {row}");
        }
        for (name, _) in import::SIGNATURES {
            assert!(
                TABLE.contains(&format!("CWASI_IMPORT(\"{name}\")")),
                "docs/abi.md lacks {name}"
            );
            assert!(
                TABLE.contains(&format!("**`{name}`**")),
                "docs/abi.md does not explain {name}"
            );
        }
        for name in [
            export::ALLOC,
            export::FREE,
            export::HANDLE,
            export::RESPONSE,
            export::PAYLOAD,
            export::INITIALIZE,
            export::START,
            export::MEMORY,
            context_key::FUNCTION,
            context_key::WORKFLOW,
            context_key::INVOCATION_ID,
            context_key::DEADLINE_MS,
            context_key::ATTEMPT,
            context_key::CALLER,
            context_key::TRACEPARENT,
            context_key::TRACESTATE,
            context_key::RUN_ID,
            context_key::HTTP_METHOD,
            context_key::HTTP_PATH,
            context_key::HTTP_QUERY,
            context_key::HTTP_HEADERS,
            context_key::HTTP_FIELDS,
            context_key::HTTP_STATUS,
        ] {
            assert!(TABLE.contains(&format!("| `{name}` |")), "docs/abi.md lacks {name}");
        }
    }

    #[test]
    fn the_documents_bounds_are_this_crates() {
        let [page, huge_page] = [REGION_PAGE, HUGE_PAGE].map(|len| len as usize);
        for bound in [
            FUNCTION_NAME_MAX,
            TARGET_MAX,
            JOIN_KEY_MAX,
            LOG_MESSAGE_MAX,
            METADATA_MAX,
            TRAP_MESSAGE_MAX,
            INLINE_MAX,
            PAYLOAD_BUFFER_LEN,
            page,
            huge_page,
        ] {
            assert!(TABLE.contains(&format!("{bound} bytes")), "docs/abi.md lacks {bound} bytes");
        }
        let calls = format!("{CALLS_IN_FLIGHT_MAX} calls in flight");
        assert!(TABLE.contains(&calls), "docs/abi.md lacks CALLS_IN_FLIGHT_MAX");
        assert!(
            TABLE.contains(&format!("{WAIT_FOR_EVER} waits")),
            "docs/abi.md lacks WAIT_FOR_EVER"
        );
        assert!(TABLE.contains(&format!("{REGIONS_MAX} regions")), "docs/abi.md lacks REGIONS_MAX");
        assert!(TABLE.contains(&format!("at most {PARTS_MAX}")), "docs/abi.md lacks PARTS_MAX");
        let [a, b, c, d] = PARTS_MAGIC.to_le_bytes().map(char::from);
        assert!(TABLE.contains(&format!("\"{a}{b}{c}{d}\"")), "docs/abi.md lacks PARTS_MAGIC");
    }
}
