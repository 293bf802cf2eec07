//! Components behind the gateway.

use cwasi_testbed::paths::component_guest;
use cwasi_testbed::scene::Scene;

use crate::client::ask;
use crate::{Gateway, scene};

/// Starts a component as a secondary that the gateway may call.
pub fn start(scene: &Scene, name: &str) {
    let bytes = std::fs::read(component_guest(name)).unwrap();
    let image = scene.import_module(&format!("component-{name}"), &bytes);
    let run = scene.image(&image, name).args(["/m.wasm"]).annotation("cwasi.role", "secondary");
    scene.start(run.annotation("cwasi.function", name).annotation("cwasi.http", "gateway"));
}

#[test]
fn components_are_served_like_core_modules() {
    let scene = scene("gw-components");
    for name in ["http", "server", "relay", "command"] {
        start(&scene, name);
    }
    scene.secondary("sink", "server");
    let gateway = Gateway::start(&scene, &[]);
    let ask = |method: &str, path: &str, body: &[u8]| ask(gateway.address, method, path, body);
    let answer = ask("GET", "/function/http/a/b?c=d", b"");
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (201, "GET /a/b?c=d "));
    assert_eq!(answer.header("x-length"), "13");
    for length in [0, 5, 65_537, 3 << 20] {
        let body = vec![b'x'; length];
        let answer = ask("POST", "/function/http", &body);
        assert_eq!(answer.body.len(), "POST / ".len() + length);
        assert!(answer.body.ends_with(&body), "{length}");
        for name in ["server", "relay", "command"] {
            let answer = ask("POST", &format!("/function/{name}"), &body);
            assert!(answer.status.is_success() && answer.body == body, "{name} {length}");
        }
    }
    for (path, body, status, errno) in [
        ("/function/http/none", "", 500, "failed"),
        ("/function/http/trap", "", 502, "trapped"),
        ("/function/server", "!fail no wheels", 500, "failed"),
        ("/function/server", "!trap", 502, "trapped"),
    ] {
        let answer = ask("POST", path, body.as_bytes());
        assert_eq!(answer.status.as_u16(), status, "{path} {body}: {}", answer.text());
        assert_eq!(answer.header("cwasi-errno"), errno, "{path} {body}");
    }
    assert_eq!(ask("POST", "/function/server", b"!context http.method").text(), "POST");
    gateway.stop();
}
