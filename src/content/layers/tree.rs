//! The files of an image while its layers are applied, without their contents. Runs in the shim daemon.
//!
//! The rules are those of the OCI image specification (layer.md), as containerd applies them with overlayfs: a whiteout
//! hides what lower layers have and nothing of its own layer, a file replaces a folder and a folder a file, folders
//! merge. A parent that is a symbolic link of a lower layer becomes a folder; one of the same layer is followed.
//!
//! Invariant: names, nodes and steps are bounded, and nothing recurses, because archives are untrusted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// Most names of one image, and most files.
pub(super) const NAMES_MAX: usize = 1 << 20;
/// Most names that are visited for one image.
const STEPS_MAX: u32 = 1 << 24;
/// Most symbolic links on one way, as in the kernel.
const LINKS_MAX: usize = 40;
/// Deepest folder that is searched: the kernel's longest path has no more.
const DEPTH_MAX: usize = 2048;
/// Prefix of a name that hides a file of lower layers.
const WHITEOUT: &[u8] = b".wh.";
/// Prefix of names of aufs, which are no files.
const AUFS: &[u8] = b".wh..wh.";
/// Name that hides all of a folder's files of lower layers.
const OPAQUE: &[u8] = b".wh..wh..opq";
const ROOT: NodeId = 0;

type NodeId = u32;

/// A layer that cannot be applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum TreeError {
    /// More than a bound.
    #[error("it has more than {NAMES_MAX} files")]
    Names,
    /// Links or whiteouts that take too long.
    #[error("its links and whiteouts take more than {STEPS_MAX} steps")]
    Steps,
    /// Symbolic links in a circle.
    #[error("{path} leads through more than {LINKS_MAX} symbolic links", path = path.display())]
    Links { path: PathBuf },
    /// A file where a folder has to be.
    #[error("{path} is below a file", path = path.display())]
    NotAFolder { path: PathBuf },
    #[error("{path} is a hard link to {target}, which is no file", path = path.display(), target = target.display())]
    HardLink { path: PathBuf, target: PathBuf },
    #[error("{path} is no whiteout of a file", path = path.display())]
    Whiteout { path: PathBuf },
}

/// Where a file's contents are: its layer, from 0 for the lowest, and the number of its entry in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId {
    pub(super) layer: u32,
    pub(super) entry: u32,
}

/// What a layer adds under a path.
#[derive(Debug)]
pub(super) enum Added {
    Folder,
    File(FileId),
    SymbolicLink(PathBuf),
    HardLink(PathBuf),
    /// A device, a pipe, a sparse file.
    Other,
}

#[derive(Debug)]
enum Node {
    Folder,
    File(FileId),
    Link(Box<Path>),
    Other,
}

/// A name in a folder.
#[derive(Clone, Copy, Debug)]
struct Name {
    node: NodeId,
    /// The last layer that has the name, or one below it.
    layer: u32,
}

/// The files of the layers so far.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// By folder and name. Names of removed folders stay: no path leads to them.
    names: BTreeMap<(NodeId, Box<OsStr>), Name>,
    layer: u32,
    steps: u32,
}

/// Regular files that were searched for.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: BTreeSet<FileId>,
    /// Names of the first ones.
    pub(super) names: Vec<PathBuf>,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::Folder], names: BTreeMap::new(), layer: 0, steps: 0 }
    }

    /// The layer that is being applied.
    pub(super) const fn layer(&self) -> u32 {
        self.layer
    }

    /// Ends this layer. The next entries are of the one above.
    pub(super) const fn end_layer(&mut self) {
        self.layer += 1;
    }

    /// Applies an entry of the layer.
    pub(super) fn add(&mut self, path: &Path, added: Added) -> Result<(), TreeError> {
        let mut parents = lexical(path);
        let Some(name) = parents.pop() else { return Ok(()) };
        let folder = self.make_parents(path, parents)?;
        let bytes = name.as_bytes();
        if bytes == OPAQUE {
            return self.hide_below(folder);
        }
        if bytes.starts_with(AUFS) {
            return Ok(());
        }
        if let Some(hidden) = bytes.strip_prefix(WHITEOUT) {
            if matches!(hidden, b"" | b"." | b"..") {
                return Err(TreeError::Whiteout { path: path.to_owned() });
            }
            return self.hide(folder, OsStr::from_bytes(hidden));
        }
        let node = match added {
            Added::Folder => match self.get(folder, &name) {
                Some(Name { node, .. }) if self.is_folder(node) => node,
                _ => self.node(Node::Folder)?,
            },
            Added::File(id) => self.node(Node::File(id))?,
            Added::SymbolicLink(target) => self.node(Node::Link(target.into()))?,
            Added::Other => self.node(Node::Other)?,
            Added::HardLink(target) => self.linked(path, &target)?,
        };
        self.set(folder, &name, node)
    }

    /// The regular file that `path` leads to, as a process in the container opens it.
    pub(super) fn file(&mut self, path: &Path) -> Result<Option<FileId>, TreeError> {
        let found = self.find(path, components(path), true)?;
        Ok(found.and_then(|node| match self.nodes[node as usize] {
            Node::File(id) => Some(id),
            _ => None,
        }))
    }

    /// All regular files whose names end with `suffix`, and at most `shown` of these names.
    pub(super) fn files(&mut self, suffix: &str, shown: usize) -> Found {
        let mut found = Found::default();
        // Folders from the root on, each with the name that was visited last.
        let mut way: Vec<(NodeId, Box<OsStr>)> = vec![(ROOT, Box::default())];
        while let Some(last) = way.last_mut() {
            let from = Bound::Excluded(&*last);
            let next = self.names.range((from, Bound::Unbounded)).next();
            let Some(((_, name), &Name { node, .. })) = next.filter(|((id, _), _)| *id == last.0)
            else {
                way.pop();
                continue;
            };
            last.1 = name.clone();
            match self.nodes[node as usize] {
                Node::Folder if way.len() < DEPTH_MAX => way.push((node, Box::default())),
                Node::File(id) if name.as_bytes().ends_with(suffix.as_bytes()) => {
                    if found.files.insert(id) && found.names.len() < shown {
                        let path = way.iter().map(|(_, name)| &**name);
                        found.names.push(Path::new("/").join(path.collect::<PathBuf>()));
                    }
                }
                Node::Folder | Node::File(_) | Node::Link(_) | Node::Other => {}
            }
        }
        found
    }

    /// The folder of an entry. Makes folders that are missing, and those in the place of lower layers' files and links.
    fn make_parents(&mut self, path: &Path, names: Vec<OsString>) -> Result<NodeId, TreeError> {
        let (mut way, mut left, mut links) = (vec![ROOT], reversed(names), 0);
        while let Some(name) = left.pop() {
            let folder = self.step(&mut way, &name)?;
            let Some(folder) = folder else { continue };
            let known = self.get(folder, &name);
            let own = known.filter(|known| known.layer == self.layer);
            match (known, own.map(|own| &self.nodes[own.node as usize])) {
                (_, Some(Node::Link(target))) => {
                    follow(path, target, &mut way, &mut left, &mut links)?;
                }
                (_, Some(Node::File(_) | Node::Other)) => {
                    return Err(TreeError::NotAFolder { path: path.to_owned() });
                }
                (known, _) => {
                    let known = known.map(|known| known.node).filter(|node| self.is_folder(*node));
                    let node = match known {
                        Some(node) => node,
                        None => self.node(Node::Folder)?,
                    };
                    self.set(folder, &name, node)?;
                    way.push(node);
                }
            }
        }
        Ok(way.last().copied().unwrap_or(ROOT))
    }

    /// What `names` lead to, through all symbolic links, the last name's too if `follows_last`.
    fn find(
        &mut self,
        path: &Path,
        names: Vec<OsString>,
        follows_last: bool,
    ) -> Result<Option<NodeId>, TreeError> {
        let (mut way, mut left, mut links) = (vec![ROOT], reversed(names), 0);
        while let Some(name) = left.pop() {
            let Some(folder) = self.step(&mut way, &name)? else { continue };
            let Some(Name { node, .. }) = self.get(folder, &name) else { return Ok(None) };
            match &self.nodes[node as usize] {
                Node::Link(target) if follows_last || !left.is_empty() => {
                    follow(path, target, &mut way, &mut left, &mut links)?;
                }
                Node::Folder => way.push(node),
                _ => return Ok(left.is_empty().then_some(node)),
            }
        }
        Ok(way.last().copied())
    }

    /// The node of a hard link's target: its last name is not followed, as by `link(2)`.
    fn linked(&mut self, path: &Path, target: &Path) -> Result<NodeId, TreeError> {
        let found = self.find(path, lexical(target), false)?;
        found
            .filter(|node| !self.is_folder(*node))
            .ok_or_else(|| TreeError::HardLink { path: path.to_owned(), target: target.to_owned() })
    }

    /// Counts a step. Returns the folder to look `name` up in; none if `name` leads to the folder above.
    fn step(&mut self, way: &mut Vec<NodeId>, name: &OsStr) -> Result<Option<NodeId>, TreeError> {
        self.steps += 1;
        if self.steps > STEPS_MAX {
            return Err(TreeError::Steps);
        }
        if name != ".." {
            return Ok(Some(way.last().copied().unwrap_or(ROOT)));
        }
        if way.len() > 1 {
            way.pop();
        }
        Ok(None)
    }

    /// Hides a name of lower layers; of a folder that this layer has too, what lower layers have below it.
    fn hide(&mut self, folder: NodeId, name: &OsStr) -> Result<(), TreeError> {
        match self.get(folder, name) {
            Some(Name { layer, .. }) if layer < self.layer => {
                self.names.remove(&(folder, name.into()));
                Ok(())
            }
            Some(Name { node, .. }) if self.is_folder(node) => self.hide_below(node),
            _ => Ok(()),
        }
    }

    /// Hides all that lower layers have below `folder`.
    fn hide_below(&mut self, folder: NodeId) -> Result<(), TreeError> {
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            let mut hidden = Vec::new();
            let below = (folder, Box::<OsStr>::default())..(folder + 1, Box::default());
            for (key, name) in self.names.range(below) {
                self.steps += 1;
                if self.steps > STEPS_MAX {
                    return Err(TreeError::Steps);
                }
                if name.layer < self.layer {
                    hidden.push(key.clone());
                } else if self.is_folder(name.node) {
                    folders.push(name.node);
                }
            }
            for key in hidden {
                self.names.remove(&key);
            }
        }
        Ok(())
    }

    fn get(&self, folder: NodeId, name: &OsStr) -> Option<Name> {
        self.names.get(&(folder, name.into())).copied()
    }

    fn set(&mut self, folder: NodeId, name: &OsStr, node: NodeId) -> Result<(), TreeError> {
        if self.names.len() >= NAMES_MAX {
            return Err(TreeError::Names);
        }
        self.names.insert((folder, name.into()), Name { node, layer: self.layer });
        Ok(())
    }

    fn node(&mut self, node: Node) -> Result<NodeId, TreeError> {
        let id = NodeId::try_from(self.nodes.len()).map_err(|_| TreeError::Names)?;
        if self.nodes.len() > NAMES_MAX {
            return Err(TreeError::Names);
        }
        self.nodes.push(node);
        Ok(id)
    }

    fn is_folder(&self, node: NodeId) -> bool {
        matches!(self.nodes[node as usize], Node::Folder)
    }
}

/// Goes on with a symbolic link's target.
fn follow(
    path: &Path,
    target: &Path,
    way: &mut Vec<NodeId>,
    left: &mut Vec<OsString>,
    links: &mut usize,
) -> Result<(), TreeError> {
    *links += 1;
    if *links > LINKS_MAX {
        return Err(TreeError::Links { path: path.to_owned() });
    }
    if target.has_root() {
        way.truncate(1);
    }
    left.extend(reversed(components(target)));
    Ok(())
}

fn reversed(mut names: Vec<OsString>) -> Vec<OsString> {
    names.reverse();
    names
}

/// The names of a path, `..` among them.
fn components(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

/// The names of an archive's path. `..` removes the name before it, and leads nowhere from the root.
fn lexical(path: &Path) -> Vec<OsString> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_owned()),
            Component::ParentDir => drop(names.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    names
}
