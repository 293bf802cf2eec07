//! Handlers of components on wasmtime, and their calls.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod embedded;
mod embedders;
mod fixture;

use cwasi_modes::Payload;
use cwasi_modes::pool::SegmentPool;
use cwasi_sys::segment::Segment;
use cwasi_vm::engine::{EngineOptions, Instance as _, InstanceSpec, Module as _};
use cwasi_vm::reactor::{self, HandlerInput, HandlerOutcome, InstanceBlocks, Preallocation};
use cwasi_wire::control::Entry;
use cwasi_wire::envelope::Metadata;

use cwasi_engine_tests::assert_no_thread_is_left;
use cwasi_host_functions::{Context, Host};
use cwasi_wasmtime::{WasmtimeInstance, WasmtimeModule};
use fixture::{Seen, begin, host, load_with};

fn load(name: &str) -> WasmtimeModule {
    load_with(name, EngineOptions::default())
}

fn instance(module: &WasmtimeModule, host: &mut Host) -> WasmtimeInstance {
    module.instantiate(&InstanceSpec::default(), host).unwrap()
}

/// One request in an instance of its own: the response or the error's text.
fn request(module: &WasmtimeModule, host: &mut Host, payload: &str) -> Result<String, String> {
    let mut instance = instance(module, host);
    begin(host);
    let payload = Payload::Inline(payload.as_bytes().to_vec());
    match reactor::handle(&mut instance, &payload, host) {
        HandlerOutcome::Returned(payload) => {
            Ok(String::from_utf8(payload.into_vec().unwrap()).unwrap())
        }
        HandlerOutcome::Failed(text) => Err(text),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn a_handler_answers_fails_and_sees_no_earlier_request() {
    let (seen, module) = (Seen::default(), load("server"));
    module.check(&Entry::Reactor).unwrap();
    let mut host = host(&seen);
    assert_eq!(request(&module, &mut host, "hello"), Ok("hello".into()));
    assert_eq!(request(&module, &mut host, ""), Ok(String::new()));
    assert_eq!(request(&module, &mut host, "!fail so"), Err("so".into()));
    for _ in 0..3 {
        assert_eq!(request(&module, &mut host, "!served"), Ok("1".into()));
    }
    let missing = module.check(&Entry::Command { export: "_start".into() });
    let text = missing.unwrap_err().to_string();
    assert!(text.contains("`wasi:cli/run`") && text.contains("cwasi:function/handler"), "{text}");
}

#[test]
fn a_kept_instance_keeps_its_state() {
    let (seen, module) = (Seen::default(), load("server"));
    let mut host = host(&seen);
    let mut instance = instance(&module, &mut host);
    let mut kept = InstanceBlocks::default();
    for number in 1..4 {
        reactor::prepare(&mut instance, &mut kept, Preallocation::default(), &mut host).unwrap();
        begin(&mut host);
        let payload = Payload::Inline(b"!served".to_vec());
        let handled = reactor::handle_again(&mut instance, &mut kept, &payload, &mut host);
        let HandlerOutcome::Returned(response) = handled else { panic!("{handled:?}") };
        assert_eq!(response.into_vec().unwrap(), number.to_string().into_bytes());
        assert!(kept.is_used());
        reactor::give_back(&mut instance, &mut kept, &mut host).unwrap();
    }
    assert!(!instance.renew());
}

#[test]
fn calls_by_name_and_their_errors() {
    let (seen, module) = (Seen::default(), load("server"));
    let mut host = host(&seen);
    assert_eq!(request(&module, &mut host, "!call reverse abc"), Ok("cba".into()));
    assert_eq!(seen.0.take(), ["call reverse bytes 3"]);
    let error = request(&module, &mut host, "!call nobody abc").unwrap_err();
    assert!(error.ends_with("NoSuchFunction: who?"), "{error}");
    let error = request(&module, &mut host, "!call panic x").unwrap_err();
    assert!(error.contains("Internal"), "{error}");
    assert_eq!(request(&module, &mut host, "!emit later abcd"), Ok("emitted".into()));
    assert_eq!(request(&module, &mut host, "!fan reverse ab cd ef"), Ok("ba dc fe".into()));
    assert_eq!(request(&module, &mut host, "!context function"), Ok("tested".into()));
    assert_eq!(request(&module, &mut host, "!context nothing"), Err("no such key".into()));
    seen.0.take();
    assert_eq!(request(&module, &mut host, "!log so it is"), Ok("logged".into()));
    assert_eq!(seen.0.take(), ["WARN so it is"]);
    assert_eq!(request(&module, &mut host, "!set http.status 404"), Ok("set".into()));
    assert_eq!(host.take_metadata(), [Metadata::of("http.status", "404")]);
    let error = request(&module, &mut host, "!set function x").unwrap_err();
    assert!(error.contains("InvalidArgument"), "{error}");
}

#[test]
fn a_trap_and_an_exit_end_the_request_only() {
    let (seen, module) = (Seen::default(), load("server"));
    let mut host = host(&seen);
    let trapped = request(&module, &mut host, "!trap").unwrap_err();
    assert!(trapped.contains("Trapped") && trapped.contains("unreachable"), "{trapped}");
    let exited = request(&module, &mut host, "!exit").unwrap_err();
    assert!(exited.contains("Exited(1)"), "{exited}");
    assert_eq!(request(&module, &mut host, "on"), Ok("on".into()));
}

#[test]
fn a_payload_that_is_passed_on_stays_the_segment_that_it_is() {
    let (seen, module) = (Seen::default(), load("relay"));
    module.check(&Entry::Reactor).unwrap();
    let mut host = host(&seen);
    let segment = Segment::copy_of(&vec![7; 100 << 20]).unwrap();
    let payload = Payload::Segment(segment);
    let mut instance = instance(&module, &mut host);
    begin(&mut host);
    let handled = reactor::handle(&mut instance, &payload, &mut host);
    let HandlerOutcome::Returned(Payload::Segment(response)) = handled else {
        panic!("{handled:?}")
    };
    assert_eq!(response.len(), 100 << 20);
    assert_eq!(seen.0.take(), ["call sink segment 104857600"]);
}

/// What a component of `reader` answers, and how the answer travels.
fn read(payload: &Payload) -> Payload {
    let (seen, module) = (Seen::default(), load("reader"));
    let mut host = host(&seen);
    let mut instance = instance(&module, &mut host);
    begin(&mut host);
    match reactor::handle(&mut instance, payload, &mut host) {
        HandlerOutcome::Returned(response) => response,
        other => panic!("{other:?}"),
    }
}

/// Bytes that begin with `first`, and their sum.
fn bytes_after(first: &[u8], length: usize) -> (Vec<u8>, u64) {
    let rest = (0..=255).cycle().take(length - first.len());
    let bytes: Vec<u8> = first.iter().copied().chain(rest).collect();
    let sum = bytes.iter().map(|byte| u64::from(*byte)).sum();
    (bytes, sum)
}

#[test]
fn a_payload_is_read_whole_and_as_a_stream_wherever_it_lies() {
    let read = |payload| String::from_utf8(read(&payload).into_vec().unwrap()).unwrap();
    for (length, pieces) in [(100, 1), ((3 << 20) + 1, 13)] {
        let (whole, sum) = bytes_after(b"", length);
        assert_eq!(read(Payload::Inline(whole.clone())), format!("{length} {sum}"));
        let segment = Segment::copy_of(&whole).unwrap();
        assert_eq!(read(Payload::Segment(segment)), format!("{length} {sum}"));
        let (streamed, sum) = bytes_after(b"!stream", length);
        let said = format!("{length} {sum} in {pieces}");
        assert_eq!(read(Payload::Inline(streamed.clone())), said);
        let segment = Segment::copy_of(&streamed).unwrap();
        assert_eq!(read(Payload::Segment(segment)), said);
    }
    assert_eq!(read(Payload::Inline(Vec::new())), "0 0");
}

#[test]
fn many_bytes_of_a_component_are_a_segment_at_once() {
    let (bytes, _sum) = bytes_after(b"!copy", 2 << 20);
    let made = read(&Payload::Segment(Segment::copy_of(&bytes).unwrap()));
    assert!(matches!(made, Payload::Segment(_)) && made.into_vec().unwrap() == bytes);
    let (seen, module) = (Seen::default(), load("server"));
    let mut host = host(&seen);
    let pool = SegmentPool::new(64 << 20);
    for lends in [true, false] {
        pool.set_lending(lends);
        let spec = InstanceSpec { pool: Some(pool.clone()), ..InstanceSpec::default() };
        let mut instance = module.instantiate(&spec, &mut host).unwrap();
        begin(&mut host);
        let payload = Payload::Segment(Segment::copy_of(&bytes[5..]).unwrap());
        let HandlerOutcome::Returned(Payload::Segment(list)) =
            reactor::handle(&mut instance, &payload, &mut host)
        else {
            panic!("the list is no segment")
        };
        assert_eq!(list.token().is_some(), lends, "it comes from the pool if that may lend");
        assert!(list.to_vec().unwrap() == bytes[5..]);
    }
}

#[test]
fn a_group_needs_its_own_handler() {
    let (seen, module) = (Seen::default(), load("server"));
    let mut host = host(&seen);
    let mut instance = instance(&module, &mut host);
    let part = Payload::Inline(b"a".to_vec());
    let parts = [(0, &part)];
    let input = HandlerInput::Parts { expected: 1, parts: &parts };
    let mut kept = InstanceBlocks::default();
    let handled = reactor::handle_again(&mut instance, &mut kept, input, &mut host);
    assert!(matches!(handled, HandlerOutcome::Failed(text) if text.contains("group-handler")));
}

#[test]
fn a_group_handler_gets_numbered_parts() {
    let (seen, module) = (Seen::default(), load("group"));
    let mut host = host(&seen);
    let mut instance = instance(&module, &mut host);
    let (small, large) = (Payload::Inline(b"a".to_vec()), Segment::copy_of(b"large").unwrap());
    let large = Payload::Segment(large);
    let parts = [(0, &small), (2, &large)];
    let input = HandlerInput::Parts { expected: 3, parts: &parts };
    let mut kept = InstanceBlocks::default();
    let handled = reactor::handle_again(&mut instance, &mut kept, input, &mut host);
    let HandlerOutcome::Returned(response) = handled else { panic!("{handled:?}") };
    assert_eq!(response.into_vec().unwrap(), b"2 of 3: 0=a 2=large");
    assert!(request(&module, &mut host, "alone").unwrap_err().contains("groups only"));
}

#[test]
fn memory_is_limited() {
    let seen = Seen::default();
    let options = EngineOptions { memory_max: Some(4 << 20), ..EngineOptions::default() };
    let module = load_with("server", options);
    let mut host = host(&seen);
    assert_eq!(request(&module, &mut host, "!size 1000").unwrap().len(), 1000);
    assert!(request(&module, &mut host, "!size 8000000").unwrap_err().contains("Trapped"));
    let small = EngineOptions { memory_max: Some(64 << 10), ..EngineOptions::default() };
    let error = load_with("server", small).instantiate(&InstanceSpec::default(), &mut host);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("memory"), "{text}");
}

#[test]
fn no_thread_is_started() {
    let (seen, module) = (Seen::default(), load("server"));
    let mut host = host(&seen);
    assert_no_thread_is_left(|| {
        for payload in ["x", "!call reverse abc", "!trap"] {
            let _ended = request(&module, &mut host, payload);
        }
    });
}

/// What a component answers to a request of an HTTP client, in an instance of its own, and the head that it sets.
fn ask(
    module: &WasmtimeModule,
    host: &mut Host,
    method: &str,
    path: &str,
) -> (Result<Vec<u8>, String>, Vec<Metadata>) {
    let mut instance = instance(module, host);
    let metadata = vec![
        Metadata::of("http.method", method),
        Metadata::of("http.path", path),
        Metadata::of("http.header.host", "example.org"),
        Metadata::of("http.header.x-a", "1"),
        Metadata::of("http.header.x-a", b"\xe9"),
        Metadata::of("http.header.x-b", "y".repeat(30_000)),
    ];
    host.begin(Context { metadata, ..Context::default() });
    let body = Payload::Inline(Vec::new());
    let ended = match reactor::handle(&mut instance, &body, host) {
        HandlerOutcome::Returned(body) => Ok(body.into_vec().unwrap()),
        other => Err(format!("{other:?}")),
    };
    (ended, host.take_metadata())
}

#[test]
fn an_http_handler_sees_every_value_of_a_header_with_its_bytes() {
    let (seen, module) = (Seen::default(), load("http"));
    let mut host = host(&seen);
    let body = ask(&module, &mut host, "GET", "/head/seen").0.unwrap();
    let expected = [b"GET /head/seen x-a=1\nx-a=\xe9\nx-b=", &[b'y'; 30_000][..], b"\n"].concat();
    assert!(body == expected, "{:.99}", String::from_utf8_lossy(&body));
}

#[test]
fn the_response_to_head_keeps_the_length_that_the_handler_set() {
    let (seen, module) = (Seen::default(), load("http"));
    let mut host = host(&seen);
    let (body, head) = ask(&module, &mut host, "HEAD", "/head/length");
    let length = Metadata::of("http.header.content-length", "12345");
    assert_eq!((body, head.contains(&length)), (Ok(Vec::new()), true), "{head:?}");
    // For any other method it is the length of the body, which is not there.
    let (body, head) = ask(&module, &mut host, "GET", "/head/length");
    assert!(body.unwrap_err().contains("broken") && head.is_empty(), "{head:?}");
}

#[test]
fn an_http_handler_gets_requests_and_calls_by_name() {
    let (seen, module) = (Seen::default(), load("http"));
    module.check(&Entry::Reactor).unwrap();
    let mut host = host(&seen);
    assert_eq!(request(&module, &mut host, "payload"), Ok("POST / payload".into()));
    let large = "x".repeat(2 << 20);
    assert_eq!(request(&module, &mut host, &large).unwrap().len(), large.len() + 7);
    let mut get = |path: &str| {
        let (ended, head) = ask(&module, &mut host, "GET", path);
        (ended.map(|body| String::from_utf8(body).unwrap()), head)
    };
    let (body, head) = get("/a");
    assert_eq!(body, Ok("GET /a ".into()));
    let pair = |key: &str, value: &str| Metadata::of(key, value);
    assert_eq!(head, [pair("http.status", "201"), pair("http.header.x-length", "7")]);
    let (body, head) = get("/head/several");
    assert_eq!(body, Ok("GET /head/several ".into()));
    let expected = [
        pair("http.status", "201"),
        pair("http.header.x-length", "18"),
        pair("http.header.set-cookie", "a=1"),
        pair("http.header.set-cookie", "b=2"),
        pair("http.header.x-empty", ""),
        pair("http.header.location", "/é"),
    ];
    assert_eq!(head, expected);
    for (case, named) in
        [("longer", "`content-security-policy`"), ("many", "`x-25"), ("early", "status 103")]
    {
        let ended = get(&format!("/head/{case}")).0.unwrap_err();
        assert!(ended.contains("Undeliverable") && ended.contains(named), "{case}: {ended}");
    }
    let long = get("/head/long").1;
    assert_eq!(long[2], pair("http.header.content-security-policy", &"x".repeat(60_000)));
    assert_eq!(get("/head/bytes").1[2], Metadata::of("http.header.x-bytes", b"\xff"));
    assert!(get("/none").0.unwrap_err().contains("returned without a response"));
    assert!(get("/trap").0.unwrap_err().contains("unreachable"));
}
