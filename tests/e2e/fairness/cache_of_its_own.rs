//! A cache of compiled modules for one test, with settings of its own for those who compile.

use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::path::PathBuf;

use cwasi_config::Engine;
use cwasi_testbed::scene::Scene;
use cwasi_wire::ids::short_hash;

pub struct Cache {
    folder: PathBuf,
    engine: Engine,
}

impl Cache {
    /// Groups that start from now on have this engine, this cache and these settings of `[compile]`.
    pub fn new(scene: &Scene, engine: Engine, settings: &str) -> Self {
        let folder = scene.node.path().join("fair-cache");
        let lines = format!("engine = \"{engine}\"\ncache_dir = {folder:?}\n[compile]\n{settings}");
        scene.node.write_config(&lines);
        Self { folder, engine }
    }

    /// Compiled modules, with the length of each.
    pub fn entries(&self) -> BTreeMap<PathBuf, u64> {
        let (files, extension) = (files(self.folder.join("aot")), self.engine.native_extension());
        let modules =
            files.filter(|file| file.path().extension().is_some_and(|it| it == extension));
        modules.filter_map(|file| Some((file.path(), file.metadata().ok()?.len()))).collect()
    }

    /// Number of compiled modules.
    pub fn compiled(&self) -> usize {
        self.entries().len()
    }

    /// How many wait for a compiler.
    pub fn tickets(&self) -> usize {
        self.ticket_names().count()
    }

    /// True while a module of this namespace waits for a compiler.
    pub fn waits(&self, namespace: &str) -> bool {
        let tenant = short_hash(&[namespace]);
        self.ticket_names().any(|name| name.contains(&format!("-{tenant}-")))
    }

    fn ticket_names(&self) -> impl Iterator<Item = String> {
        let names = files(self.folder.join("aot/queue"))
            .filter_map(|file| file.file_name().into_string().ok());
        names.filter(|name| name.starts_with("ticket-"))
    }
}

fn files(folder: PathBuf) -> impl Iterator<Item = DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}
