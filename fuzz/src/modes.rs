//! Of `src/modes`: the local buffer, and Redis' wire protocol without its clients.

#[path = "../../src/modes/call.rs"]
mod call;
#[path = "../../src/modes/causes/mod.rs"]
pub mod causes;
#[path = "../../src/modes/error.rs"]
mod error;
#[path = "../../src/modes/local/mod.rs"]
pub mod local;
#[path = "../../src/modes/payload.rs"]
mod payload;
#[path = "../../src/modes/networked/resp.rs"]
pub mod resp;

pub use call::{CallJoin, ModeKind, OutgoingCall};
pub use causes::{Overload, TooLarge};
pub use error::CallError;
pub use payload::{OutgoingPayload, Payload};
