//! What a scene's shims have counted of the calls between two functions.

use std::path::{Path, PathBuf};

use crate::scene::{Scene, wait_for};

/// A row of `edges.json`.
#[derive(Clone, Debug)]
pub struct Edge {
    pub mode: String,
    /// Why this mode.
    pub reason: String,
    pub calls: u64,
}

impl Edge {
    /// The calls from `caller` to `callee`, once they are recorded.
    ///
    /// # Panics
    /// When they are not.
    #[must_use]
    pub fn of(scene: &Scene, caller: &str, callee: &str) -> Self {
        let state = scene.node.state();
        wait_for(&format!("the edge {caller} → {callee}"), || {
            files(&state).find_map(|path| Self::in_file(&path, caller, callee))
        })
    }

    fn in_file(path: &Path, caller: &str, callee: &str) -> Option<Self> {
        let text = std::fs::read_to_string(path).ok()?;
        let rows: serde_json::Value = serde_json::from_str(&text).ok()?;
        let mut rows = rows.as_array()?.iter();
        let row = rows.find(|row| row["caller"] == caller && row["callee"] == callee)?;
        let text = |key: &str| row[key].as_str().map(str::to_owned);
        Some(Self { mode: text("mode")?, reason: text("reason")?, calls: row["calls"].as_u64()? })
    }
}

/// Of groups that live and of those that ended.
fn files(state: &Path) -> impl Iterator<Item = PathBuf> {
    let folder = |name: &str| std::fs::read_dir(state.join(name)).into_iter().flatten().flatten();
    let living = folder("g").map(|group| group.path().join("edges.json"));
    living.chain(folder("edges").map(|file| file.path()))
}
