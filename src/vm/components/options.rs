//! What a component is loaded with. Runs in the builder.

use cwasi_vm::sockets::WriteLine;
use cwasi_wasi::SocketNetwork;

/// What the engine knows of a component's container.
#[derive(Clone, Debug)]
pub struct ComponentOptions {
    /// Most bytes of a linear memory; `None` = 4 GiB.
    pub memory_max: Option<u64>,
    /// Allowed destinations; `None` = no sockets, and no HTTP requests.
    pub network: Option<SocketNetwork>,
    /// Writes lines about refused requests.
    pub log: Option<WriteLine>,
    /// The kernel says which pages were written.
    pub scans_pages: bool,
    /// It has asynchronous functions, as `settings` say, too.
    pub is_async: bool,
}
