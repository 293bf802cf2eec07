//! `cwasi invoke --kube`: a node of the function calls it, or any node while the function has no pod.

use std::process::ExitCode;

use cwasi_cli::arguments::Global;
use cwasi_cli::commands::invoke::Invoke;
use cwasi_cli::failure::Failure;

use super::{calling_node, connect, on_node};

/// Calls the function once.
pub async fn run(invoke: &Invoke, global: &Global) -> Result<ExitCode, Failure> {
    let bytes = invoke.bytes()?;
    let cluster = connect(&invoke.on.cluster, global).await?;
    let (node, _) = calling_node(&cluster, &invoke.on.system_namespace, &invoke.function).await?;
    let timeout = format!("--timeout={}", humantime::format_duration(invoke.timeout));
    let caller = format!("--as={}", invoke.caller);
    let namespace = format!("--pod-namespace={}", cluster.namespace);
    let mut words = vec!["invoke", invoke.function.as_str(), &timeout, &caller, &namespace];
    words.extend((!bytes.is_empty()).then_some("--data=-"));
    words.extend(invoke.trace.then_some("--trace"));
    words.extend(invoke.verbose.then_some("--verbose"));
    on_node::run(&cluster, &node, &on_node::words(words, global), &bytes).await
}
