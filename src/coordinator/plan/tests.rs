//! Which engine a function is planned and compiled for.

use std::fs;
use std::sync::Mutex;

use super::super::aot::CompileJob;
use super::super::fingerprint::fingerprint;
use super::super::images::ImageModule;
use super::super::trust::{Deployment, Image};
use super::*;
use cwasi_config::{CompileConfig, HttpConfig};

pub struct NoImages;

impl ImageStore for NoImages {
    async fn wasm_layer(&self, _: &str) -> Result<Option<ImageModule>, String> {
        Ok(None)
    }

    async fn images(&self) -> Result<Vec<Image>, String> {
        Ok(Vec::new())
    }

    async fn deployments(&self) -> Result<Vec<Deployment>, String> {
        Ok(Vec::new())
    }

    async fn module(&self, _: &Image, _: Option<&str>) -> Result<Vec<u8>, String> {
        Err("there is no image".to_owned())
    }
}

/// "Compiles" by copying, and has one engine alone if it says so.
#[derive(Default)]
pub struct Copy {
    compiled: Mutex<Vec<Engine>>,
    only: Option<Engine>,
}

impl Copy {
    /// The engines that it has compiled for.
    pub fn compiled(self) -> Vec<Engine> {
        self.compiled.into_inner().unwrap()
    }
}

impl CompileChild for Copy {
    async fn compile(&self, job: &CompileJob<'_>) -> Result<(), String> {
        self.compiled.lock().unwrap().push(job.engine);
        fs::copy(job.wasm, job.out).map(drop).map_err(|error| error.to_string())
    }

    fn check_engine(&self, engine: Engine) -> Result<(), String> {
        match self.only {
            Some(only) if only != engine => Err(format!("the engine {engine} is not installed")),
            _ => Ok(()),
        }
    }
}

struct Silent;

impl Progress for Silent {
    fn info(&self, _: &str) {}

    fn warn(&self, _: &str) {}
}

/// The specification of a container that runs `/m.wasm`.
pub fn spec_of(annotations: &serde_json::Map<String, serde_json::Value>) -> Spec {
    let spec = serde_json::json!({
        "ociVersion": "1.0.2",
        "root": { "path": "rootfs" },
        "process": { "cwd": "/", "args": ["/m.wasm"], "user": { "uid": 0, "gid": 0 } },
        "annotations": annotations,
    });
    serde_json::from_value(spec).unwrap()
}

/// A node's coordinator.
pub fn node(cache: AotCache, engine: Engine, compiler: Copy) -> Coordinator<NoImages, Copy> {
    Coordinator {
        cache,
        images: NoImages,
        compiler,
        engine,
        trust_groups: Vec::new(),
        workers_max: 8,
        triggers: TriggerPolicy::default(),
        http: HttpConfig::default(),
        sample: TraceStart::UNSAMPLED.sample,
    }
}

/// A container whose module does not come later.
pub fn request<'a>(spec: &'a Spec, rootfs: &'a Path) -> PlanRequest<'a> {
    PlanRequest {
        spec,
        rootfs,
        namespace: "n",
        container: "c",
        group: "g",
        instance: "i",
        socket: Path::new("/s"),
        delivery: None,
    }
}

/// Plans a function on a node of `engine`, with this annotation.
async fn planned(
    engine: Engine,
    annotated: Option<Engine>,
    compiler: Copy,
) -> (Result<Plan, PlanError>, Vec<Engine>) {
    let annotation = annotated.map(|it| ("cwasi.engine", it.name()));
    planned_module(r#"(module (func (export "_start")))"#, engine, annotation, compiler).await
}

async fn planned_module(
    module: &str,
    engine: Engine,
    annotation: Option<(&str, &str)>,
    compiler: Copy,
) -> (Result<Plan, PlanError>, Vec<Engine>) {
    let dir = tempfile::tempdir().unwrap();
    let rootfs = dir.path().join("rootfs");
    fs::create_dir(&rootfs).unwrap();
    let module = wat::parse_str(module).unwrap();
    fs::write(rootfs.join("m.wasm"), module).unwrap();
    let annotations: serde_json::Map<_, _> =
        annotation.map(|(key, value)| (key.to_owned(), value.into())).into_iter().collect();
    let spec = spec_of(&annotations);
    let cache = AotCache::new(dir.path(), fingerprint, &CompileConfig::default());
    let coordinator = node(cache, engine, compiler);
    let plan = coordinator.plan(&request(&spec, &rootfs), &Silent).await;
    (plan, coordinator.compiler.compiled())
}

#[tokio::test]
async fn an_annotation_counts_more_than_the_node() {
    for node in Engine::ALL {
        for annotated in [None, Some(Engine::Wasmtime), Some(Engine::Wasmedge)] {
            let (plan, compiled) = planned(node, annotated, Copy::default()).await;
            let (plan, expected) = (plan.unwrap(), annotated.unwrap_or(node));
            assert_eq!((plan.engine, compiled.as_slice()), (Some(expected), &[expected][..]));
            let Workload::Function(launch) = plan.workload else { panic!("no function") };
            assert_eq!(launch.artifact.extension().unwrap(), expected.native_extension());
        }
    }
}

#[tokio::test]
async fn nothing_is_compiled_for_an_engine_that_is_missing() {
    let [node, other] = Engine::ALL;
    let with = || Copy { only: Some(node), ..Copy::default() };
    assert!(planned(node, None, with()).await.0.is_ok());
    let (plan, compiled) = planned(node, Some(other), with()).await;
    assert_eq!(plan.unwrap_err().to_string(), format!("the engine {other} is not installed"));
    assert!(compiled.is_empty());
}

/// Its container is there for the image. A module without an entry is none, as any other function.
#[tokio::test]
async fn a_library_needs_no_entry() {
    let library = r#"(module (import "host" "f" (func)) (func (export "twice")))"#;
    let role = |role| Some(("cwasi.role", role));
    for engine in Engine::ALL {
        let (plan, _) = planned_module(library, engine, role("library"), Copy::default()).await;
        let Workload::Function(launch) = plan.unwrap().workload else { panic!("no function") };
        assert_eq!(launch.entry, Entry::Command { export: "_start".to_owned() });
        let (plan, _) = planned_module(library, engine, role("primary"), Copy::default()).await;
        plan.unwrap_err();
    }
}
