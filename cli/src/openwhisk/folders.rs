//! The folders that actions may ask for. They are open from the executor's start on, so that another folder, or a link, in
//! their place is no substitute.

use std::path::{Path, PathBuf};

use cwasi_sys::resolved_path::{Links, ResolveError, ResolvedPath};
use cwasi_workflow::Mount;

use super::error::ActionError;
use crate::failure::{Exit, Failure};

/// A folder of the command line.
struct AllowedFolder {
    opened: ResolvedPath,
    /// Its path at the start, without links.
    path: PathBuf,
}

/// The folders of the command line.
pub(super) struct AllowedFolders(Vec<AllowedFolder>);

/// A folder that an action gets.
#[derive(Debug)]
pub(super) struct ActionFolder {
    pub(super) mount: Mount,
    /// Open until the action has started, so that its identity stays its own.
    pub(super) opened: ResolvedPath,
}

impl AllowedFolders {
    /// Opens the folders.
    ///
    /// # Errors
    /// The first that is none.
    pub(super) fn open(dirs: &[PathBuf]) -> Result<Self, Failure> {
        let open = |dir: &PathBuf| {
            let refused = |why: String| {
                let text = format!("--allow-dir {}: {why}", dir.display());
                Failure::text(Exit::Missing, text)
            };
            let opened = ResolvedPath::open(dir, Links::Follow);
            let opened = opened.map_err(|error| refused(reason(&error)))?;
            if !opened.is_folder() {
                return Err(refused("it is no folder".to_owned()));
            }
            let path = opened.current_path()?;
            Ok(AllowedFolder { opened, path })
        };
        dirs.iter().map(open).collect::<Result<_, _>>().map(Self)
    }

    /// The folder at `dir`, where it really is, with its own path in the action.
    ///
    /// # Errors
    /// When the command line does not allow it, or somebody has put something else in its place.
    pub(super) fn find(&self, dir: &Path) -> Result<ActionFolder, ActionError> {
        let denied = || ActionError::Denied(format!("dir {}", dir.display()));
        let target = dir.to_str().filter(|_| dir.is_absolute()).ok_or_else(denied)?;
        let source = dir.canonicalize().map_err(|_missing| denied())?;
        let (allowed, below) = self.around(&source).ok_or_else(denied)?;
        let replaced = |error| ActionError::Folder { dir: dir.to_owned(), why: reason(&error) };
        let now = ResolvedPath::open(&allowed.path, Links::Refuse);
        now.and_then(|now| now.expect(allowed.opened.identity())).map_err(replaced)?;
        let opened = allowed.opened.below(below).map_err(replaced)?;
        if !opened.is_folder() || target == "/" {
            return Err(denied());
        }
        let mount = Mount { source, target: target.to_owned(), read_only: false };
        Ok(ActionFolder { mount, opened })
    }

    /// The allowed folder around a path, and the path in it.
    fn around<'a>(&self, path: &'a Path) -> Option<(&AllowedFolder, &'a Path)> {
        self.0.iter().find_map(|allowed| Some((allowed, path.strip_prefix(&allowed.path).ok()?)))
    }
}

fn reason(error: &ResolveError) -> String {
    match error {
        ResolveError::Open { source, .. } => format!("{error}: {source}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_stay_what_they_were_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let (data, secret) = (root.join("data"), root.join("secret"));
        fs::create_dir_all(data.join("inner")).unwrap();
        fs::create_dir(&secret).unwrap();
        symlink("inner", data.join("link")).unwrap();
        symlink("../secret", data.join("out")).unwrap();
        let allowed = AllowedFolders::open(std::slice::from_ref(&data)).unwrap();
        let source = |path: &Path| allowed.find(path).map(|folder| folder.mount.source);
        assert_eq!(source(&data).unwrap(), data);
        // A link inside is the folder that it leads to.
        assert_eq!(source(&data.join("link")).unwrap(), data.join("inner"));
        for denied in [&secret, &data.join("out"), &data.join("none"), &root, Path::new("data")] {
            let error = source(denied).unwrap_err();
            assert!(matches!(error, ActionError::Denied(_)), "{error}");
        }
        fs::rename(&data, root.join("moved")).unwrap();
        fs::create_dir_all(data.join("inner")).unwrap();
        let text = source(&data.join("inner")).unwrap_err().to_string();
        assert!(text.contains("somebody has replaced it"), "{text}");
    }
}
