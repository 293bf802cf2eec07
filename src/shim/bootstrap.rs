//! The command line between containerd and a shim binary: `start`, `delete`, `-info`, `-v`. Runs in the launcher.
//!
//! containerd executes this program twice per container. It links neither the reactor nor the daemon's other parts:
//! the dynamic linker's work for them would take longer than the launcher's own.
//!
//! It replaces `containerd_shim::run`, because one daemon serves a group, its address and state are in our directory,
//! and that function would misread some of standard input (`options`).

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;

use containerd_shim::Flags;
use containerd_shim::protos::protobuf::Message as _;
use containerd_shim::protos::types::introspection::{RuntimeInfo, RuntimeVersion};

use super::arguments::ShimArguments;
use super::{cleanup, features, launcher, options};
use cwasi_config::node::named_file;
use cwasi_config::{NodeConfig, NodeConfigError};
use cwasi_host::{group, state};

/// The name in `-v` and `-info`.
const NAME: &str = "containerd-shim-cwasi-v1";
/// The description of each annotation in `-info`.
const ANNOTATION_MEANING: &str = "container annotation, see docs/annotations.md";

/// A failed command; containerd shows it to the user.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// Arguments that containerd would not pass.
    #[error(
        "{0}; this program is started by containerd: ctr run --runtime io.containerd.cwasi.v1 …"
    )]
    Usage(String),
    /// The current directory is unknown.
    #[error("the bundle directory is gone: {0}")]
    Bundle(#[source] std::io::Error),
    /// Standard output is closed.
    #[error("standard output cannot be written: {0}")]
    Output(#[source] std::io::Error),
    #[error(transparent)]
    Options(#[from] options::OptionsError),
    #[error(transparent)]
    Config(#[from] NodeConfigError),
    #[error(transparent)]
    Group(#[from] group::GroupError),
    #[error(transparent)]
    State(#[from] state::StateError),
    /// `start`.
    #[error(transparent)]
    Launch(#[from] launcher::LaunchError),
    /// `delete`.
    #[error(transparent)]
    Cleanup(#[from] cleanup::CleanupError),
}

/// Runs the command in `arguments` (without the program's name).
///
/// # Errors
/// Each text is for the user.
pub fn run(arguments: &[OsString]) -> Result<(), BootstrapError> {
    let flags = containerd_shim::parse(arguments)
        .map_err(|error| BootstrapError::Usage(error.to_string()))?;
    if flags.version {
        return print(format!("{NAME}:\n  Version: {}\n", env!("CARGO_PKG_VERSION")).as_bytes());
    }
    if flags.info {
        return print(&info());
    }
    let bundle = bundle(&flags)?;
    match flags.action.as_str() {
        "start" => {
            let arguments = parse_arguments(&flags)?;
            let (config, file) = node_config(options::from_stdin()?)?;
            let address = launcher::start(&arguments, &bundle, &config, file.as_deref())?;
            print(address.as_bytes())
        }
        "delete" => {
            let arguments = parse_arguments(&flags)?;
            let response = cleanup::delete(&arguments.namespace, &arguments.id, &bundle)?;
            print(&response)
        }
        other => Err(BootstrapError::Usage(format!("unknown action {other:?}"))),
    }
}

fn parse_arguments(flags: &Flags) -> Result<ShimArguments, BootstrapError> {
    ShimArguments::of(flags)
        .ok_or_else(|| BootstrapError::Usage("-namespace and -id are required".to_owned()))
}

/// containerd starts this program in the bundle; for `delete` it passes `-bundle`.
fn bundle(flags: &Flags) -> Result<PathBuf, BootstrapError> {
    if flags.bundle.is_empty() {
        std::env::current_dir().map_err(BootstrapError::Bundle)
    } else {
        Ok(PathBuf::from(&flags.bundle))
    }
}

/// The configuration, and its file.
fn node_config(
    options: options::RuntimeOptions,
) -> Result<(NodeConfig, Option<PathBuf>), NodeConfigError> {
    let (config, file) = match options.source {
        options::ConfigSource::Default => (NodeConfig::load(None, None), named_file()),
        options::ConfigSource::Path(path) => (NodeConfig::load(None, Some(&path)), Some(path)),
        options::ConfigSource::Body(text) => (NodeConfig::load(Some(&text), None), None),
    };
    Ok((config?.with(&options.runc)?, file))
}

/// `RuntimeInfo` for `ctr plugins inspect-runtime` and the CRI of containerd 2.x, with features and annotations.
fn info() -> Vec<u8> {
    let version = RuntimeVersion {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..RuntimeVersion::default()
    };
    let mut info = RuntimeInfo { name: NAME.to_owned(), ..RuntimeInfo::default() };
    info.version = Some(version).into();
    info.features = Some(features::any()).into();
    info.annotations = cwasi_config::annotations::KEYS
        .iter()
        .map(|key| ((*key).to_owned(), ANNOTATION_MEANING.to_owned()))
        .collect();
    info.write_to_bytes().expect("a message without required fields can always be written")
}

fn print(bytes: &[u8]) -> Result<(), BootstrapError> {
    let mut out = std::io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(BootstrapError::Output)
}
