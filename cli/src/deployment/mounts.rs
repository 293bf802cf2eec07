//! What is wrong with the mounts of a function, as far as the host shows it. The runtime checks the image's links, too.

use std::path::{Path, PathBuf};

use cwasi_config::mount_target::{MountProblem, folder_target};
use cwasi_sys::resolved_path::{Links, ResolveError, ResolvedPath};

use crate::failure::{Exit, Failure};
use cwasi_workflow::{Function, Mount};

/// All problems of the function's mounts and its working directory, but for sources that are missing.
#[must_use]
pub fn problems(function: &Function) -> Vec<String> {
    let Function { mounts, working_dir, .. } = function;
    let targets = mounts.iter().filter_map(|mount| {
        let problem = engine_problem(mount).or_else(|| missing_target(mounts, mount))?;
        Some(format!("mount {}: the target {problem}", mount.target))
    });
    let links = mounts.iter().filter_map(|mount| {
        let link = link_in_source(mount)?;
        Some(format!("mount {}: the source {link}", mount.target))
    });
    let folder = working_dir.iter().filter_map(|path| {
        let on_host = on_host(mounts, path)?.1;
        let text = format!(
            "workingDir {} is no folder: on the host it would be {}",
            path.display(),
            on_host.display()
        );
        (!on_host.is_dir()).then_some(text)
    });
    links.chain(targets).chain(folder).collect()
}

/// A symbolic link in the mount's source, which the runtime would refuse.
fn link_in_source(mount: &Mount) -> Option<ResolveError> {
    let refused = ResolvedPath::open(&mount.source, Links::Refuse).err()?;
    matches!(refused, ResolveError::Link { .. }).then_some(refused)
}

/// Why the engine cannot show a mounted folder to the function; single files may have any name.
fn engine_problem(mount: &Mount) -> Option<MountProblem> {
    folder_target(Path::new(&mount.target)).err().filter(|_| mount.source.is_dir())
}

/// A mount in another one, which has no place for it.
fn missing_target(mounts: &[Mount], mount: &Mount) -> Option<MountProblem> {
    let others = mounts.iter().filter(|other| other.target != mount.target);
    let (around, on_host) = on_host(others, Path::new(&mount.target))?;
    (around.read_only && !on_host.exists()).then_some(MountProblem::Missing)
}

/// The innermost mount around a path, and where the path is on the host.
fn on_host<'a>(
    mounts: impl IntoIterator<Item = &'a Mount>,
    path: &Path,
) -> Option<(&'a Mount, PathBuf)> {
    let around = mounts.into_iter().filter(|mount| path.starts_with(&mount.target));
    let mount = around.max_by_key(|mount| Path::new(&mount.target).components().count())?;
    let below = path.strip_prefix(&mount.target).unwrap_or(path);
    // Of a single file nothing is below it.
    let at = if below == Path::new("") { mount.source.clone() } else { mount.source.join(below) };
    Some((mount, at))
}

/// A single file that is mounted in a mounted folder.
#[must_use]
pub fn file_in_folder(mounts: &[Mount]) -> Option<&Mount> {
    mounts.iter().filter(|mount| mount.source.is_file()).find(|file| {
        let others = mounts.iter().filter(|other| other.target != file.target);
        on_host(others, Path::new(&file.target)).is_some()
    })
}

/// Checks that the sources of mounts exist, and that the function will see them.
///
/// # Errors
/// The first problem.
pub fn check(function: &Function) -> Result<(), Failure> {
    let name = &function.name;
    if let Some(mount) = function.mounts.iter().find(|mount| !mount.source.exists()) {
        let text = format!("function {name}: {} does not exist", mount.source.display());
        return Err(Failure::text(Exit::Missing, text));
    }
    match problems(function).first() {
        Some(problem) => Err(Failure::text(Exit::Data, format!("function {name}: {problem}"))),
        None => Ok(()),
    }
}
