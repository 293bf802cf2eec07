//! `wasi:http` handlers behind a port of their container, and called by name. `cargo test -p cwasi-cli --test gateway`
//! has the gateway.

use cwasi_testbed::netns::connect_to;
use cwasi_testbed::scene::Scene;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;

use super::{SHIM, call, secondary};

const PORT: u16 = 8080;
/// Above what is copied into a frame, and above what the guest writes at a time.
pub(crate) const BODY: usize = 2 << 20;

/// The responses to these requests, one after the other on one connection of hyper's client.
pub(crate) fn ask(pid: i32, requests: &[(Method, &str, Vec<u8>)]) -> Vec<Response<Bytes>> {
    let stream = connect_to(pid, PORT);
    stream.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(connection);
        let mut responses = Vec::new();
        for (method, path, body) in requests {
            let request = Request::builder().method(method).uri(*path).header("host", "pod");
            let request = request.body(Full::<Bytes>::from(body.clone())).unwrap();
            let (head, body) = sender.send_request(request).await.unwrap().into_parts();
            responses.push(Response::from_parts(head, body.collect().await.unwrap().to_bytes()));
        }
        drop(sender);
        connection.await.unwrap().unwrap();
        responses
    })
}

#[test]
fn a_component_answers_http_on_its_port_and_calls_by_name() {
    let scene = Scene::new(SHIM, "comp-http");
    let web = secondary(&scene, "web", "http").annotation("cwasi.http", "8080");
    scene.start(web.annotation("cwasi.http.idle-timeout", "20s"));
    let large = vec![b'x'; BODY];
    let requests = [
        (Method::GET, "/a/b?c=d", Vec::new()),
        (Method::POST, "/post", b"body".to_vec()),
        (Method::POST, "/large", large.clone()),
        (Method::GET, "/none", Vec::new()),
        (Method::GET, "/trap", Vec::new()),
        (Method::DELETE, "/after", Vec::new()),
        (Method::GET, "/head/several", Vec::new()),
        (Method::GET, "/head/longer", Vec::new()),
    ];
    let responses = ask(scene.pid("web"), &requests);
    let text = |index: usize| String::from_utf8_lossy(responses[index].body()).into_owned();
    assert_eq!(text(0), "GET /a/b?c=d ");
    assert_eq!(responses[0].headers()["x-length"], "13");
    assert_eq!(text(1), "POST /post body");
    assert_eq!(responses[2].body().len(), "POST /large ".len() + BODY);
    assert!(responses[2].body().ends_with(&large));
    assert_eq!(text(5), "another /after ");
    let statuses: Vec<u16> = responses.iter().map(|one| one.status().as_u16()).collect();
    let expected = [201, 201, 201, 500, 500, 201, 201, 502];
    assert_eq!(statuses, expected, "{} {} {}", text(3), text(4), text(7));
    let cookies = responses[6].headers().get_all("set-cookie").iter();
    assert!(cookies.eq(["a=1", "b=2"]), "{:?}", responses[6].headers());
    assert_eq!(responses[6].headers()["x-empty"], "");
    assert_eq!(responses[6].headers()["keep-alive"], "timeout=20");
    // By name, beside HTTP.
    assert_eq!(call(&scene, "p", "web", "payload"), "POST / payload");
    scene.start(secondary(&scene, "server", "server"));
    assert_eq!(call(&scene, "q", "server", "!call web payload"), "POST / payload");
}

#[test]
fn every_kind_of_component_is_behind_a_port() {
    let scene = Scene::new(SHIM, "comp-http-kinds");
    for name in ["server", "relay", "command"] {
        scene.start(secondary(&scene, name, name).annotation("cwasi.http", "8080"));
    }
    scene.secondary("sink", "server");
    for name in ["server", "relay", "command"] {
        for body in [b"hello".to_vec(), vec![b'x'; BODY]] {
            let response = &ask(scene.pid(name), &[(Method::POST, "/", body.clone())])[0];
            assert_eq!(response.status(), 200, "{name}");
            assert!(response.body() == &body, "{name}");
        }
    }
    let failed = &ask(scene.pid("server"), &[(Method::POST, "/", b"!fail no wheels".to_vec())])[0];
    assert_eq!(failed.status(), 500);
    let path = &ask(scene.pid("server"), &[(Method::GET, "/a", b"!context http.path".to_vec())])[0];
    assert_eq!(path.body(), "/a");
}
