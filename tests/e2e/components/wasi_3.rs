//! Components of WASI 0.3: a command and an HTTP handler, as primary and secondary, beside others.

use cwasi_testbed::scene::Scene;
use hyper::Method;

use super::http::{BODY, ask};
use super::{SHIM, SIZES, call, comes_back, component, secondary};

#[test]
fn a_command_is_a_primary_and_a_secondary_and_calls() {
    let scene = Scene::new(SHIM, "wasi3-command");
    scene.secondary("core", "server");
    scene.start(secondary(&scene, "svc", "async_command"));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "text").unwrap();
    let run = |id: &str, order: &str| {
        let run = component(&scene, id, "async_command").args(["two"]).env("A", "b=c");
        let run = run.mount(folder.path(), "/data", "ro");
        scene.run(run.stdin(order.as_bytes().to_vec()))
    };
    for (id, order, says) in [
        ("echo", "hello", "hello"),
        ("args", "!args", "/m.wasm two"),
        ("env", "!env A", "b=c"),
        ("read", "!read /data/file", "text"),
        ("later", "!later", "now and later"),
        ("core-call", "!call core hello", "hello"),
        ("deep", "!call svc !call core deep", "deep"),
    ] {
        assert_eq!(run(id, order).success().text(), says, "{order}");
    }
    let read_only = run("write", "!write /data/new").success().text();
    assert!(read_only.starts_with("error: "), "{read_only}");
    let exited = run("exit", "!exit");
    assert_eq!((exited.code, &*exited.guest_stderr()), (1, "leaving\n"));
    let trapped = run("panic", "!panic");
    assert_eq!(trapped.code, 134, "{}", trapped.stderr);
    assert_eq!(call(&scene, "p", "svc", "!call core hello"), "hello");
    for size in SIZES {
        comes_back(&scene, &format!("size-{size}"), "svc", size);
    }
}

#[test]
fn a_handler_answers_http_on_its_port_and_calls_by_name() {
    let scene = Scene::new(SHIM, "wasi3-http");
    for (id, isolation) in [("fresh", "request"), ("kept", "instance")] {
        let run = secondary(&scene, id, "async_http").annotation("cwasi.http", "8080");
        scene.start(run.annotation("cwasi.isolation", isolation));
    }
    let large = vec![b'x'; BODY];
    let requests = [
        (Method::GET, "/served", Vec::new()),
        (Method::GET, "/served", Vec::new()),
        (Method::POST, "/large?a=b", large.clone()),
        (Method::GET, "/error", Vec::new()),
        (Method::GET, "/trap", Vec::new()),
        (Method::DELETE, "/after", Vec::new()),
    ];
    for (id, served) in [("fresh", ["1", "1"]), ("kept", ["1", "2"])] {
        let responses = ask(scene.pid(id), &requests);
        let statuses: Vec<u16> = responses.iter().map(|one| one.status().as_u16()).collect();
        assert_eq!(statuses, [201, 201, 201, 500, 500, 201], "{id}");
        assert_eq!([responses[0].body(), responses[1].body()], served, "{id}");
        assert_eq!(responses[0].headers()["x-by"], "wasi 0.3");
        assert_eq!(responses[2].body().len(), "POST /large?a=b ".len() + BODY);
        assert!(responses[2].body().ends_with(&large));
        assert_eq!(responses[5].body(), "another /after ");
        assert_eq!(call(&scene, &format!("{id}-p"), id, "payload"), "POST / payload");
    }
    scene.start(secondary(&scene, "server", "server"));
    assert_eq!(call(&scene, "q", "server", "!call fresh payload"), "POST / payload");
}
