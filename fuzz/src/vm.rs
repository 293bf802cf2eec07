//! Of `src/vm`: what changes and makes modules, and reads answers of name servers.

#[path = "../../src/vm/sockets/dns.rs"]
pub mod dns;
#[path = "../../src/vm/fingerprint.rs"]
pub mod fingerprint;
#[path = "../../src/vm/sockets/names.rs"]
pub mod names;
#[path = "../../src/vm/state.rs"]
pub mod state;
#[path = "../../src/vm/trampoline/mod.rs"]
pub mod trampoline;
#[path = "../../src/vm/wasi_calls.rs"]
mod wasi_calls;
