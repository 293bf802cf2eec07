//! What containerd publishes in a scene's namespace, as `ctr events` prints it.

use std::fs::{File, read_to_string};
use std::path::PathBuf;
use std::process::Child;

use crate::scene::{Scene, unique, wait_for};

/// `ctr events`, ended with its test.
#[derive(Debug)]
pub struct Events {
    listener: Child,
    file: PathBuf,
}

impl Scene {
    /// Listens to this scene's events from now on. Labels `image`, which has to be there, until the listener receives.
    ///
    /// # Panics
    /// When `ctr` cannot be started.
    #[must_use]
    pub fn events(&self, image: &str) -> Events {
        let file = self.node.path().join(unique("events"));
        let mut command = self.ctr_command();
        // Without those of other scenes.
        command.args(["events", &format!("namespace=={:?}", self.namespace)]);
        command.stdout(File::create(&file).expect("the scene's folder is writable"));
        let events = Events { listener: command.spawn().expect("ctr starts"), file };
        // What happens before it listens is not published again.
        wait_for("a listener that receives", || {
            let _event = self.ctr(["images", "label", image, "heard=yes"]).success();
            events.text().contains("/images/update").then_some(())
        });
        events
    }
}

impl Events {
    /// All until now, a line each.
    ///
    /// # Panics
    /// When the scene's folder is gone.
    #[must_use]
    pub fn text(&self) -> String {
        read_to_string(&self.file).expect("the file of the events")
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.listener.kill();
        let _reaped = self.listener.wait();
    }
}
