//! A side that speaks OpenWhisk's protocol, and its actions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use cwasi_bench::fixture::WORKFLOW;
use cwasi_testbed::scene::Scene;
use serde_json::Value;

use super::code::Bodies;
use super::executor::Executor;
use super::messages;
use crate::sides::door::{Door, Function};
use crate::sides::load::{Target, answer, millis};

/// Longest wait until a container's server accepts connections.
const LISTENS_MAX: Duration = Duration::from_secs(60);
/// Between two attempts to reach it.
const POLL: Duration = Duration::from_micros(200);

/// A side.
pub struct Platform {
    pub name: String,
    pub kind: Kind,
    bodies: Bodies,
}

/// How a side has its actions.
pub enum Kind {
    /// All in one process, by ids. An action of ours has workers as its activations need them.
    Executor(Executor),
    /// Each in a container of its own.
    Container(Function),
}

impl Platform {
    #[must_use]
    pub fn new(name: &str, kind: Kind, bodies: Bodies) -> Self {
        Self { name: name.to_owned(), kind, bodies }
    }

    /// The same with a shim daemon that all containers share; `None` unless they are ours.
    #[must_use]
    pub fn of_one_workflow(&self) -> Option<Self> {
        let Kind::Container(function) = &self.kind else { return None };
        function.annotations.as_ref()?;
        let function = function.clone().with("cwasi.workflow", WORKFLOW);
        let name = format!("{}, one workflow", self.name);
        Some(Self { name, kind: Kind::Container(function), bodies: self.bodies.clone() })
    }

    /// What an action needs before its code: a container, or nothing.
    ///
    /// # Errors
    /// When it does not start.
    pub fn create<'a>(
        &'a self,
        scene: &'a Scene,
        id: &str,
        name: &'static str,
    ) -> Result<Action<'a>> {
        let body = self.bodies.get(name).context("a side has the code of its actions")?;
        let (address, path, door) = match &self.kind {
            Kind::Executor(executor) => (executor.address, format!("/{id}"), None),
            Kind::Container(function) => {
                let door = function.start(scene, id)?;
                (door.address, String::new(), Some(door))
            }
        };
        Ok(Action { name, address, path, body: body.clone(), door })
    }

    /// An action that has its code.
    ///
    /// # Errors
    /// As [`Self::create`], and when its code is refused.
    pub fn start<'a>(
        &'a self,
        scene: &'a Scene,
        id: &str,
        name: &'static str,
    ) -> Result<Action<'a>> {
        let action = self.create(scene, id, name)?;
        action.init()?;
        Ok(action)
    }
}

/// An action until it is dropped.
pub struct Action<'a> {
    name: &'static str,
    address: SocketAddr,
    /// Of its id, where one address has many actions.
    path: String,
    body: Arc<str>,
    /// Its container.
    door: Option<Door<'a>>,
}

impl Action<'_> {
    /// The same action with other code.
    #[must_use]
    pub fn with_code(mut self, code: &[u8]) -> Self {
        self.body = messages::init(self.name, code);
        self
    }

    /// Delivers its code, as soon as its server listens: milliseconds of the request alone.
    ///
    /// # Errors
    /// When nobody listens, or the code is refused.
    pub fn init(&self) -> Result<f64> {
        let target = Target::whisk(self.address, format!("{}/init", self.path), self.body.clone());
        let began = Instant::now();
        loop {
            let asked = Instant::now();
            match target.send() {
                Ok(mut stream) => {
                    answer(&mut stream).with_context(|| format!("/init of {}", self.name))?;
                    return Ok(millis(asked));
                }
                Err(error) if began.elapsed() > LISTENS_MAX => {
                    bail!("the server of {} does not listen: {error:#}", self.name)
                }
                Err(_nobody) => std::thread::sleep(POLL),
            }
        }
    }

    /// A request to run it.
    #[must_use]
    pub fn activation(&self, parameters: &Value) -> Target {
        let body = messages::activation(self.name, parameters);
        Target::whisk(self.address, format!("{}/run", self.path), body)
    }
}

impl Drop for Action<'_> {
    fn drop(&mut self) {
        if self.door.is_none() {
            // WOW's executor reads the id in the body.
            let id = self.path.trim_start_matches('/').into();
            let destroy = Target::whisk(self.address, format!("{}/destroy", self.path), id);
            // An action whose `/init` has failed is none.
            let _gone = destroy.ask();
        }
    }
}
