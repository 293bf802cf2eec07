//! The engine conformance suite with WasmEdge.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

mod suite;

/// The engine of this process: the engines' signal handlers are in each other's way.
const TESTED: cwasi_config::Engine = cwasi_config::Engine::Wasmedge;
