//! Our sides in each engine: what the report calls them, and their functions.

use anyhow::Result;
use cwasi_bench::fixture::{Driver, Fixture};

use crate::run::Run;

/// Our sides in one engine.
pub struct Sides {
    /// Value of `cwasi.engine`.
    engine: &'static str,
    pub embedded: &'static str,
    pub embedded_in_turn: &'static str,
    pub local: &'static str,
    pub local_in_turn: &'static str,
    pub local_together: &'static str,
    /// In the order of [`super::nodes::LINKS`].
    pub networked: [&'static str; 2],
    pub networked_together: [&'static str; 2],
}

/// The default's sides bear no name of an engine.
const ALL: [Sides; 2] = [
    Sides {
        engine: "wasmtime",
        embedded: super::EMBEDDED,
        embedded_in_turn: "CWASI embedded, in turn",
        local: super::LOCAL,
        local_in_turn: "CWASI local, in turn",
        local_together: "CWASI local, at a time",
        networked: ["CWASI networked (Redis)", "CWASI networked (TLS)"],
        networked_together: [
            "CWASI networked (Redis), at a time",
            "CWASI networked (TLS), at a time",
        ],
    },
    Sides {
        engine: "wasmedge",
        embedded: "CWASI embedded in WasmEdge",
        embedded_in_turn: "CWASI embedded in WasmEdge, in turn",
        local: "CWASI local in WasmEdge",
        local_in_turn: "CWASI local in WasmEdge, in turn",
        local_together: "CWASI local in WasmEdge, at a time",
        networked: ["CWASI networked (Redis) in WasmEdge", "CWASI networked (TLS) in WasmEdge"],
        networked_together: [
            "CWASI networked (Redis) in WasmEdge, at a time",
            "CWASI networked (TLS) in WasmEdge, at a time",
        ],
    },
];

/// Those of the engines that are built.
pub fn built(run: &Run) -> Vec<&'static Sides> {
    let engines = run.engines();
    ALL.iter().filter(|sides| engines.contains(&sides.engine)).collect()
}

impl Sides {
    /// Name of a function that each engine has.
    pub fn function(&self, name: &str) -> String {
        format!("{name}-{}", self.engine)
    }

    /// Starts such a function as a callee; its name.
    pub fn callee(
        &self,
        fixture: &Fixture<'_>,
        (name, guest): (&str, &str),
        annotations: &[(&str, &str)],
    ) -> String {
        let name = self.function(name);
        fixture.callee((&name, guest), &self.and_engine(annotations));
        name
    }

    /// Starts a driver.
    ///
    /// # Errors
    /// When it does not start.
    pub fn driver(&self, fixture: &Fixture<'_>, annotations: &[(&str, &str)]) -> Result<Driver> {
        fixture.driver(&self.and_engine(annotations))
    }

    fn and_engine<'a>(&self, annotations: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        [annotations, &[("cwasi.engine", self.engine)]].concat()
    }
}
