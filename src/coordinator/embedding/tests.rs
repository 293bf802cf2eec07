//! Discovery over a store of three sorts of images: libraries, a reactor, and an untrusted one.

use super::super::images::ImageModule;
use super::*;

/// Images by name; the module's text.
struct Store(Vec<(&'static str, &'static str)>);

impl ImageStore for Store {
    async fn wasm_layer(&self, _: &str) -> Result<Option<ImageModule>, String> {
        Ok(None)
    }

    async fn images(&self) -> Result<Vec<Image>, String> {
        let image =
            |(name, _): &(&str, &str)| Image { name: (*name).into(), digest: "sha256:aa".into() };
        Ok(self.0.iter().map(image).collect())
    }

    async fn deployments(&self) -> Result<Vec<Deployment>, String> {
        let deployment = |container: &str, workflow: &str| Deployment {
            container: container.into(),
            image: "reg/called".into(),
            path: "/called.wasm".into(),
            pod_namespace: String::new(),
            function: "called".into(),
            workflow: workflow.into(),
            trust: String::new(),
            engine: None,
        };
        Ok(vec![deployment("own", "w"), deployment("theirs", "x")])
    }

    async fn module(&self, image: &Image, _: Option<&str>) -> Result<Vec<u8>, String> {
        let found = self.0.iter().find(|(name, _)| *name == image.name);
        let (_, text) = found.ok_or("no such image")?;
        wat::parse_str(text).map_err(|error| error.to_string())
    }
}

const REACTOR: &str = r#"(module (memory (export "memory") 1)
    (func (export "cwasi_alloc") (param i32 i32) (result i32) (i32.const 8))
    (func (export "cwasi_handle") (param i32 i32 i32) (result i32) (i32.const 0)))"#;

fn store() -> Store {
    Store(vec![
        (
            "reg/top",
            r#"(module (import "mid" "f" (func)) (import "low" "g" (func)) (func (export "t")))"#,
        ),
        ("reg/mid", r#"(module (import "low" "g" (func)) (func (export "f")))"#),
        ("reg/low", r#"(module (func (export "g")))"#),
        ("reg/ring", r#"(module (import "back" "r" (func)) (func (export "r")))"#),
        ("reg/back", r#"(module (import "ring" "r" (func)) (func (export "r")))"#),
        ("reg/deep", r#"(module (import "stranger" "s" (func (param i32))) (func (export "d")))"#),
        ("reg/stranger", r#"(module (func (export "s") (param i32)))"#),
        ("reg/called", REACTOR),
        (
            "reg/component",
            r#"(component (instance $i) (export "cwasi:function/handler@0.1.0" (instance $i)))"#,
        ),
        (
            "reg/server",
            r#"(component (instance $i) (export "wasi:http/incoming-handler@0.2.0" (instance $i)))"#,
        ),
        ("reg/broken", "(module (func (export \"cwasi.home\")))"),
    ])
}

async fn found(root: &str, embed: &[&str]) -> Result<Embedding, EmbeddingError> {
    found_on(Engine::Wasmtime, root, embed).await
}

/// On a node with this engine.
async fn found_on(engine: Engine, root: &str, embed: &[&str]) -> Result<Embedding, EmbeddingError> {
    let root = module::check(&wat::parse_str(root).unwrap(), "root").unwrap();
    let wish = |text: &&str| match text.split_once('=') {
        Some((module, image)) => {
            Embed { module: module.into(), image: Some(image.into()), digest: None }
        }
        None => Embed { module: (*text).into(), image: None, digest: None },
    };
    let annotations = FunctionSpec {
        workflow: "w".into(),
        embed: embed.iter().map(wish).collect(),
        ..FunctionSpec::default()
    };
    let identity =
        Identity { namespace: "n".into(), pod_namespace: String::new(), function: "f".into() };
    let node = NodeSettings { spanning: &[], engine };
    discover(&store(), &root, &annotations, &identity, "own", node).await
}

fn names(embedding: &Embedding) -> Vec<&str> {
    embedding.modules.iter().map(|found| found.name.as_str()).collect()
}

#[tokio::test]
async fn a_library_comes_after_what_it_imports_and_once() {
    let root = r#"(module (import "top" "t" (func)) (import "mid" "f" (func)))"#;
    let all = found(root, &["top=reg/top", "mid=reg/mid", "low=reg/low"]).await.unwrap();
    assert_eq!(names(&all), ["low", "mid", "top"]);
    assert!(all.refused.is_empty());
    assert!(found("(module)", &[]).await.unwrap().modules.is_empty());
}

#[tokio::test]
async fn a_ring_is_reported_with_its_members() {
    let root = r#"(module (import "ring" "r" (func)))"#;
    let error = found(root, &["ring=reg/ring", "back=reg/back"]).await.unwrap_err().to_string();
    assert!(error.contains("ring → back → ring"), "{error}");
}

#[tokio::test]
async fn every_unresolved_import_is_told_with_its_candidate() {
    let root = r#"(module (import "deep" "d" (func)) (import "nobody" "n" (func (result f32)))
        (import "broken" "b" (func)))"#;
    let error = found(root, &["deep=reg/deep", "broken=reg/broken"]).await.unwrap_err();
    assert_eq!(error.problems.len(), 3, "{error}");
    let text = error.to_string();
    for part in [
        r#"`(import "deep" "d" (func))`: imported through deep: `(import "stranger" "s" (func (param i32)))`: "#,
        "the image reg/stranger has that name",
        r#"`(import "nobody" "n" (func (result f32)))`: no function or image of that name"#,
        "reserved for the runtime",
    ] {
        assert!(text.contains(part), "{part} missing in {text}");
    }
}

#[tokio::test]
async fn imports_of_a_toolchain_get_their_own_advice() {
    let root = r#"(module (import "env" "abort" (func (param i32 i32 i32 i32)))
        (import "env" "sqlite3_open" (func)) (import "env" "sqlite3_close" (func))
        (import "wasi_unstable" "fd_write" (func)))"#;
    let error = found(root, &[]).await.unwrap_err();
    assert_eq!(error.problems.len(), 3, "{error}");
    let text = error.to_string();
    for part in [
        r#"`(import "env" "abort" (func (param i32 i32 i32 i32)))`: AssemblyScript"#,
        r#"`(import "env" "sqlite3_close" (func))`, `(import "env" "sqlite3_open" (func))`: the linker"#,
        r#"`(import "wasi_unstable" "fd_write" (func))`: it is WASI's preview 0"#,
    ] {
        assert!(text.contains(part), "{part} missing in {text}");
    }
    assert!(!text.contains("pull its image"), "{text}");
    // Named by the deployment, `env` is a module like any other.
    let error = found(root, &["env=reg/env"]).await.unwrap_err().to_string();
    assert!(error.contains("cwasi.embed names the image reg/env"), "{error}");
    assert!(!error.contains("AssemblyScript"), "{error}");
}

#[tokio::test]
async fn of_many_missing_imports_some_are_shown() {
    let imports: String = (10..30).map(|n| format!(r#"(import "env" "f{n}" (func))"#)).collect();
    let error = found(&format!("(module {imports})"), &[]).await.unwrap_err().to_string();
    assert!(error.contains(r#"`(import "env" "f17" (func))` and 12 more: the linker"#), "{error}");
}

#[tokio::test]
async fn what_is_only_called_is_embedded_or_called_elsewhere() {
    let all = found("(module)", &["called=reg/called", "low=reg/low"]).await.unwrap();
    assert_eq!(names(&all), ["called"]);
    assert!(all.modules[0].is_reactor());
    assert!(all.refused["low"].contains("exports no `cwasi_alloc`"), "{:?}", all.refused);
    let all = found("(module)", &["called", "top=reg/top"]).await.unwrap();
    assert!(names(&all).is_empty());
    let why = &all.refused["called"];
    assert!(why.contains("container theirs (image reg/called) is of workflow `x`"), "{why}");
    assert!(!why.contains("container own"), "a function does not vouch for itself: {why}");
    assert!(all.refused["top"].contains("low"), "{:?}", all.refused);
}

#[tokio::test]
async fn a_component_is_called_and_not_linked() {
    let embed = ["x=reg/component", "y=reg/server"];
    let all = found("(module)", &embed).await.unwrap();
    assert_eq!(names(&all), ["x"]);
    assert!(all.modules[0].is_reactor());
    let why = &all.refused["y"];
    assert!(why.contains("no `cwasi:function/handler`; what serves HTTP"), "{why}");
    let imports = r#"(module (import "x" "f" (func)))"#;
    let error = found(imports, &embed[..1]).await.unwrap_err().to_string();
    assert!(error.contains("is a component, whose functions no module can import"), "{error}");
}

#[tokio::test]
async fn a_component_embeds_what_it_calls() {
    let root = r#"(component (instance $i) (export "wasi:cli/run@0.2.6" (instance $i)))"#;
    let embed = ["called=reg/called", "x=reg/component", "y=reg/server", "low=reg/low"];
    // It runs in wasmtime on every node, and so does what it embeds.
    for engine in Engine::ALL {
        let all = found_on(engine, root, &embed).await.unwrap();
        assert_eq!(names(&all), ["called", "x"]);
        assert!(all.refused["y"].contains("what serves HTTP"), "{:?}", all.refused);
        assert!(all.refused["low"].contains("exports no `cwasi_alloc`"), "{:?}", all.refused);
    }
    let all = found_on(Engine::Wasmedge, "(module)", &embed[1..2]).await.unwrap();
    assert!(all.refused["x"].contains("is a component, for wasmtime"), "{:?}", all.refused);
}
