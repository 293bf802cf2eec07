//! The folders of this user that the environment names. A process of root may have another user's (`su`, `sudo -E`), who
//! could lead it elsewhere: each of them, and all above it, is this user's or root's, or is refused.

use std::env;
use std::path::{Path, PathBuf};

use cwasi_config::node::{CONFIG_VARIABLE, named_file};
use cwasi_sys::owned_path;

use crate::failure::{Exit, Failure};

/// The user's traces and the like, below the folder for state.
const STATE: &str = "cwasi";
/// The traces in it.
const TRACES: &str = "traces";
/// The user's configuration, below the folder for configurations.
const CONFIG: &str = "cwasi/config.toml";
const HOME: &str = "HOME";

/// Folder of what outlives this user's runs: a state directory with `traces` alone. `None` without a home.
///
/// # Errors
/// When another user could change it.
pub fn user_state() -> Result<Option<PathBuf>, Failure> {
    let Some((variable, base)) = base("XDG_STATE_HOME", ".local/state") else { return Ok(None) };
    let state = owned(variable, &base.join(STATE))?;
    owned(variable, &state.join(TRACES))?;
    Ok(Some(state))
}

/// Folder for compiled modules; its own check says why it is not used. `None` without a home.
pub(super) fn cache() -> Option<PathBuf> {
    base("XDG_CACHE_HOME", ".cache").map(|(_, base)| base)
}

/// The user's configuration file, and whether it has to exist. `None` without a home.
///
/// # Errors
/// When another user could change it.
pub(super) fn config_file() -> Result<Option<(PathBuf, bool)>, Failure> {
    check_named_config()?;
    if let Some(named) = named_file() {
        return Ok(Some((named, true)));
    }
    let Some((variable, base)) = base("XDG_CONFIG_HOME", ".config") else { return Ok(None) };
    Ok(Some((owned(variable, &base.join(CONFIG))?, false)))
}

/// Checks the configuration file that the environment names, if it names one.
///
/// # Errors
/// When another user could change it.
pub fn check_named_config() -> Result<(), Failure> {
    let Some(named) = named_file() else { return Ok(()) };
    let absolute = std::path::absolute(&named).unwrap_or(named);
    owned(CONFIG_VARIABLE, &absolute).map(drop)
}

/// Folder for the sockets of this user's runs. Sockets' paths are short: not below a long `TMPDIR`.
///
/// # Errors
/// When another user could change it.
pub(super) fn runtime() -> Result<PathBuf, Failure> {
    const VARIABLE: &str = "XDG_RUNTIME_DIR";
    match named(VARIABLE).filter(|base| base.is_dir()) {
        Some(base) => owned(VARIABLE, &base),
        None => Ok(PathBuf::from("/tmp")),
    }
}

/// One of the user's folders, and the variable that says so: `variable` itself, or else `folder` below the home
/// directory.
fn base(variable: &'static str, folder: &str) -> Option<(&'static str, PathBuf)> {
    let home = || Some((HOME, env::home_dir().filter(|path| path.is_absolute())?.join(folder)));
    named(variable).map(|path| (variable, path)).or_else(home)
}

fn named(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn owned(variable: &str, path: &Path) -> Result<PathBuf, Failure> {
    owned_path::check(path).map_err(|error| {
        let instead = match variable {
            HOME => "set HOME to the home of this user (su -, sudo -H)".to_owned(),
            _ => format!("unset {variable}, or use su - or sudo without -E"),
        };
        let text = format!("{} of ${variable} is not used: {error}; {instead}", path.display());
        Failure::text(Exit::Denied, text)
    })
}
