//! The command line. Address and namespace are named as those of `ctr` and `nerdctl`.

use std::path::PathBuf;

use clap::{Args, Parser};

use crate::commands::Verb;

/// containerd's socket, unless the user names another one.
const ADDRESS_DEFAULT: &str = "/run/containerd/containerd.sock";
/// containerd's namespace, unless the user names another one.
const NAMESPACE_DEFAULT: &str = "default";

/// Run and inspect workflows of WebAssembly functions on containerd
#[derive(Debug, Parser)]
#[command(name = "cwasi", version, propagate_version = true, max_term_width = 100)]
pub struct Arguments {
    /// What holds for every verb.
    #[command(flatten)]
    pub global: Global,
    /// The verb.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Arguments of every verb.
#[derive(Clone, Debug, Args)]
pub struct Global {
    /// containerd's socket
    #[arg(
        short,
        long,
        global = true,
        env = "CONTAINERD_ADDRESS",
        default_value = ADDRESS_DEFAULT,
        value_name = "PATH"
    )]
    pub address: PathBuf,
    /// containerd's namespace
    #[arg(
        short,
        long,
        global = true,
        env = "CONTAINERD_NAMESPACE",
        default_value = NAMESPACE_DEFAULT,
        value_name = "NAME"
    )]
    pub namespace: String,
    /// containerd's snapshotter
    #[arg(
        long,
        global = true,
        env = "CONTAINERD_SNAPSHOTTER",
        default_value = "overlayfs",
        value_name = "NAME"
    )]
    pub snapshotter: String,
    /// Print results as JSON
    #[arg(long, global = true)]
    pub json: bool,
}
