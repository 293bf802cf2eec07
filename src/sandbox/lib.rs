//! The data plane's processes: all run the binary `cwasi-sandbox`, and all are single-threaded.
//!
//! ```text
//! zygote ──fork_sibling──> builder (one per verb) ──libcontainer──> sandbox init (pid 1) ──fork──> workers
//! ```
//!
//! - [`zygote`]: has the engine loaded and forks a builder for each request of the shim.
//! - [`builder`]: does one operation on one container, answers the shim and ends; `builder::executor` becomes
//!   the container's process, native or function.
//! - `awaited`: code that comes after the start; `inherited`: what a function's process has from its builder.
//! - `files`: the directories that guests may open; `host_paths`: where they are without a container.
//! - [`init`]: pid 1 of a function's container; forks and supervises its workers.
//! - [`worker`]: runs guest code, one invocation at a time.
//! - `work`: the input of one invocation, in init's queue and in a worker.
//! - [`device_program`]: device rules of a container as an eBPF program.
//! - [`exec_filter`]: refuses new native code (seccomp).
//! - `memory_ceiling`: the most memory of a worker.
//! - [`worker_table`]: the shared memory in which workers record what they do.
//! - [`stderr`]: log lines of the runtime and of guests' `log`; [`function_log`] drops lines without a reader.
//!
//! The shim speaks to them in `wire::control` messages only.

mod awaited;
pub mod builder;
mod cause_chain;
pub mod device_program;
pub mod dispatch;
mod document;
pub mod exec_filter;
mod exit_codes;
mod files;
mod function_log;
mod host_paths;
mod inherited;
pub mod init;
mod memory_ceiling;
mod messages;
mod privileges;
mod request_limits;
mod stderr;
mod work;
pub mod worker;
pub mod worker_table;
pub mod zygote;
