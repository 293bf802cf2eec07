//! Tests of the parser of annotations, and of their table in `docs/annotations.md`.

use proptest::prelude::*;

use super::*;

fn parse(pairs: &[(&str, &str)]) -> Result<FunctionSpec, AnnotationError> {
    FunctionSpec::parse(pairs.iter().copied())
}

fn problems(pairs: &[(&str, &str)]) -> Vec<String> {
    parse(pairs).unwrap_err().problems
}

#[test]
fn the_documents_table_has_every_key() {
    let page = include_str!("../../../docs/annotations.md");
    for key in KEYS {
        assert!(page.contains(&format!("| `{key}` |")), "docs/annotations.md lacks {key}");
        let problem = parse(&[(key, "")]).map_or_else(|error| error.to_string(), |_| String::new());
        assert!(!problem.contains("is not known"), "FunctionSpec::apply lacks {key}");
    }
}

#[test]
fn defaults_hold() {
    let spec = parse(&[("other.key", "x")]).unwrap();
    assert_eq!(spec, FunctionSpec::default());
}

#[test]
fn a_full_secondary_is_read() {
    let spec = parse(&[
        ("cwasi.secondary.function", "true"),
        ("cwasi.function", "process-frames"),
        ("cwasi.workflow", "vehicle-paths"),
        ("cwasi.trust", "city"),
        ("cwasi.embed", "fn_utils"),
        ("cwasi.allow", "extract-frames, edge/*"),
        ("cwasi.concurrency", "4"),
        ("cwasi.queue", "0"),
        ("cwasi.timeout", "1500ms"),
        ("cwasi.max-payload", "64KiB"),
        ("cwasi.memory", "256Mi"),
        ("cwasi.max-requests", "1"),
        ("cwasi.idle", "5m"),
        ("cwasi.mode", "local"),
        ("cwasi.isolation", "instance"),
    ])
    .unwrap();
    assert_eq!(spec.role, Role::Secondary);
    assert_eq!(spec.allow, ["extract-frames", "edge/*"]);
    assert_eq!(spec.isolation, Isolation::Instance);
    assert_eq!((spec.trust.as_str(), spec.embed.len()), ("city", 1));
    assert_eq!((spec.concurrency, spec.queue, spec.max_requests), (Some(4), 0, 1));
    assert_eq!(spec.mode, ModeHint::Local);
    assert_eq!((spec.max_payload, spec.memory), (65_536, Some(256 << 20)));
    assert_eq!(spec.timeout, Some(Duration::from_millis(1500)));
}

#[test]
fn all_problems_come_together_and_name_the_nearest_key() {
    let found = problems(&[
        ("cwasi.rol", "secondary"),
        ("cwasi.concurrency", "0"),
        ("cwasi.timeout", "soon"),
        ("cwasi.max-payload", "2GiB"),
        ("cwasi.function", "-x"),
        ("cwasi.embed", "fn_utils=a@b"),
        ("cwasi.mode", "inside"),
    ]);
    let text = found.join("\n");
    for part in [
        "cwasi.rol is not known; did you mean cwasi.role?",
        "cwasi.concurrency=0",
        "cwasi.timeout=soon",
        "cwasi.max-payload=2GiB",
        "cwasi.function=-x",
        "cwasi.embed=fn_utils=a@b has the entry",
        "cwasi.mode=inside must be auto, embedded",
    ] {
        assert!(text.contains(part), "{part} missing in:\n{text}");
    }
}

#[test]
fn a_fan_in_has_parts_a_time_and_a_policy() {
    let fan_in = |pairs: &[(&str, &str)]| {
        let pairs: Vec<_> = [("cwasi.role", "secondary")].iter().chain(pairs).copied().collect();
        parse(&pairs).map(|spec| spec.fan_in)
    };
    let expected = |parts, timeout_ms, partial| Ok(Some(FanIn { parts, timeout_ms, partial }));
    assert_eq!(fan_in(&[]), Ok(None));
    assert_eq!(fan_in(&[(FAN_IN, "caller")]), expected(0, 30_000, Partial::Fail));
    let all = [(FAN_IN, "1024"), (FAN_IN_TIMEOUT, "2s"), (FAN_IN_PARTIAL, "deliver")];
    assert_eq!(fan_in(&all), expected(1024, 2000, Partial::Deliver));
    for parts in ["1", "0", "1025", "many", ""] {
        let error = fan_in(&[(FAN_IN, parts)]).unwrap_err().to_string();
        assert!(error.contains("from 2 to 1024, nor `caller`"), "{error}");
    }
    let problems = fan_in(&[(FAN_IN_TIMEOUT, "1s"), (FAN_IN_PARTIAL, "some")]).unwrap_err();
    assert_eq!(problems.problems.len(), 3, "{problems}");
    assert!(problems.to_string().contains("cwasi.fan-in.timeout needs cwasi.fan-in"));
    assert_eq!(parse(&[(FAN_IN, "2")]).unwrap_err().problems.len(), 1, "a primary is not called");
}

#[test]
fn destinations_are_read_or_all_refused_ones_named() {
    let spec = parse(&[("cwasi.network", "db:5432, 10.0.0.0/8, !10.0.0.1:80")]).unwrap();
    let shown: Vec<_> = spec.network.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["db:5432", "10.0.0.0/8:*", "!10.0.0.1/32:80"]);
    for (value, part) in [
        ("", "without empty entries"),
        ("db", "entry `db`, which has no port"),
        ("10.1.0.0/8", "the network is 10.0.0.0/8"),
        ("!db:80", "only addresses and networks"),
        ("db:1,".repeat(65).trim_end_matches(','), "more than 64"),
    ] {
        let found = problems(&[("cwasi.network", value)]).join("");
        assert!(found.contains(part), "{part} missing in: {found}");
    }
}

#[test]
fn the_prototypes_abi_is_asked_for_by_its_year() {
    assert!(parse(&[("cwasi.compat", "2023")]).unwrap().is_prototype);
    assert!(!parse(&[]).unwrap().is_prototype);
    assert!(problems(&[("cwasi.compat", "2024")])[0].contains("must be 2023"));
}

#[test]
fn roles_do_not_contradict() {
    assert_eq!(problems(&[("cwasi.concurrency", "2")]).len(), 1);
    for isolation in ["instance", "snapshot"] {
        let problems = problems(&[("cwasi.isolation", isolation)]);
        assert!(matches!(&problems[..], [one] if one.to_string().contains(isolation)));
    }
    assert_eq!(
        problems(&[("cwasi.role", "primary"), ("cwasi.secondary.function", "true")]).len(),
        1
    );
    assert_eq!(
        problems(&[("cwasi.role", "secondary"), ("cwasi.secondary.function", "false")]).len(),
        1
    );
}

#[test]
fn an_engine_is_named_or_the_nodes() {
    assert_eq!(parse(&[]).unwrap().engine, None);
    for engine in Engine::ALL {
        assert_eq!(parse(&[("cwasi.engine", engine.name())]).unwrap().engine, Some(engine));
    }
    let found = problems(&[("cwasi.engine", "wasmer")]);
    assert_eq!(found, ["cwasi.engine=wasmer must be wasmtime or wasmedge"]);
}

#[test]
fn odd_keys_and_tiny_memory_are_refused() {
    for (key, value, part) in [
        ("Cwasi.role", "secondary", "did you mean cwasi.role?"),
        ("CWASI.TIMEOUT", "1s", "CWASI.TIMEOUT is not known"),
        ("cwasi.memory", "1", "at least one page of WebAssembly, 65536 bytes"),
    ] {
        let found = problems(&[(key, value)]);
        assert!(matches!(&found[..], [one] if one.to_string().contains(part)), "{found:?}");
    }
    assert!(parse(&[("cwasi.memory", "64KiB"), ("cwasi-role", "x"), ("cwasi", "x")]).is_ok());
}

#[test]
fn a_suffix_wins_for_its_container() {
    let pod = [
        ("cwasi.role", "primary"),
        ("cwasi.role.b", "secondary"),
        ("cwasi.concurrency.b", "3"),
        (CRI_CONTAINER_NAME, "b"),
        (CRI_SANDBOX_NAMESPACE, "tenant"),
    ];
    let spec = parse(&pod).unwrap();
    assert_eq!((spec.role, spec.concurrency), (Role::Secondary, Some(3)));
    assert_eq!(spec.pod_namespace, "tenant");
    let other = [pod[0], pod[1], pod[2], (CRI_CONTAINER_NAME, "a")];
    assert_eq!(parse(&other).unwrap().role, Role::Primary);
    assert!(parse(&[("cwasi.nonsense", "1"), (CRI_CONTAINER_TYPE, "sandbox")]).is_ok());
    assert_eq!(problems(&[("cwasi.role.b", "secondary")]).len(), 1);
}

/// One key is the beginning of another.
#[test]
fn a_suffix_is_the_containers_name_and_no_part_of_a_key() {
    let pod = [
        ("cwasi.role.b", "secondary"),
        ("cwasi.fan-in.b", "3"),
        ("cwasi.fan-in.timeout.b", "5s"),
        ("cwasi.fan-in.partial.b", "deliver"),
        (CRI_CONTAINER_NAME, "b"),
    ];
    let fan_in = parse(&pod).unwrap().fan_in.unwrap();
    assert_eq!((fan_in.timeout_ms, fan_in.partial), (5000, Partial::Deliver));
}

#[test]
fn a_nearly_named_container_is_suggested() {
    let pod = |container: &'static str| {
        let misspelt = [("cwasi.role.gretter", "secondary"), (CRI_CONTAINER_NAME, container)];
        parse(&misspelt).unwrap().doubts
    };
    let [doubt] = &pod("greeter")[..] else { panic!("one doubt") };
    assert!(doubt.contains("cwasi.role.gretter") && doubt.contains("greeter"), "{doubt}");
    assert!(pod("sidecar").is_empty() && pod("gretter").is_empty());
    let both = [
        ("cwasi.role.w-1", "secondary"),
        ("cwasi.queue.w-2", "3"),
        ("cwasi.role.w-2", "secondary"),
    ];
    let named = [both[0], both[1], both[2], (CRI_CONTAINER_NAME, "w-2")];
    assert!(parse(&named).unwrap().doubts.is_empty(), "it has its own");
}

#[test]
fn a_role_for_all_containers_of_a_pod_is_told_apart() {
    let shared = |annotations: &[(&str, &str)]| {
        let named = [annotations, &[(CRI_CONTAINER_NAME, "b")]].concat();
        parse(&named).unwrap().shares_role
    };
    assert_eq!(shared(&[("cwasi.role", "secondary")]), Some("b".to_owned()));
    assert_eq!(shared(&[("cwasi.secondary.function", "true")]), Some("b".to_owned()));
    assert_eq!(shared(&[("cwasi.role", "primary"), ("cwasi.role.b", "secondary")]), None);
    assert_eq!(shared(&[("cwasi.role.a", "secondary")]), None);
    assert_eq!(parse(&[("cwasi.role", "secondary")]).unwrap().shares_role, None, "no pod");
}

proptest! {
    #[test]
    fn every_unknown_key_is_refused(tail in "[a-z]{1,12}") {
        let key = format!("cwasi.{tail}");
        prop_assume!(!KEYS.contains(&key.as_str()));
        let error = parse(&[(&key, "1")]).unwrap_err();
        prop_assert!(error.to_string().contains("did you mean"));
    }
}

#[test]
fn http_is_the_gateway_a_port_or_both() {
    let http = |value| parse(&[("cwasi.role", "secondary"), ("cwasi.http", value)]);
    for (value, gateway, port) in
        [("gateway", true, None), ("8080", false, Some(8080)), ("80, gateway", true, Some(80))]
    {
        assert_eq!(
            http(value).unwrap().http,
            HttpExposure { gateway, port, ..HttpExposure::default() },
            "{value}"
        );
    }
    for wrong in ["", "0", "65536", "true", "80,81", "gateway,gateway"] {
        assert!(http(wrong).is_err(), "{wrong}");
    }
    assert!(parse(&[("cwasi.http", "gateway")]).is_err(), "a primary is not called");
}

#[test]
fn heads_and_idle_connections_have_bounds() {
    let with = |pairs: &[(&'static str, &'static str)]| {
        let secondary = [("cwasi.role", "secondary"), ("cwasi.http", "gateway,8080")];
        secondary.iter().chain(pairs).copied().collect::<Vec<_>>()
    };
    assert_eq!(parse(&with(&[])).unwrap().http.max_head, None);
    let spec = parse(&with(&[(MAX_HEAD, "64KiB"), (IDLE_TIMEOUT, "2m")])).unwrap();
    let idle = Some(Duration::from_secs(120));
    assert_eq!((spec.http.max_head, spec.http.idle_timeout), (Some(65_536), idle));
    for (key, value, says) in [
        (MAX_HEAD, "65KiB", "is larger than the maximum of 65536 bytes"),
        (MAX_HEAD, "1000", "is smaller than the minimum of 1024 bytes"),
        (IDLE_TIMEOUT, "500ms", "must be from 1 to 3600 seconds"),
        (IDLE_TIMEOUT, "2h", "must be from 1 to 3600 seconds"),
    ] {
        assert_eq!(problems(&with(&[(key, value)])), [format!("{key}={value} {says}")]);
    }
    let secondary = ("cwasi.role", "secondary");
    for (pairs, says) in [
        (&[secondary, (MAX_HEAD, "2KiB")][..], "needs cwasi.http: only HTTP has heads"),
        (&[secondary, ("cwasi.http", "gateway"), (IDLE_TIMEOUT, "5s")], "needs a port"),
    ] {
        let found = problems(pairs);
        assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
    }
}

#[test]
fn openwhisk_needs_a_port_of_a_secondary() {
    let whisk = ("cwasi.protocol", "openwhisk");
    let secondary = ("cwasi.role", "secondary");
    let spec = parse(&[secondary, ("cwasi.http", "8080"), whisk]).unwrap();
    assert_eq!(spec.protocol, Protocol::Openwhisk);
    assert_eq!(parse(&[secondary, ("cwasi.protocol", "http")]).unwrap().protocol, Protocol::Http);
    for (pairs, says) in [
        (&[secondary, whisk][..], "needs a port, such as cwasi.http=8080"),
        (&[secondary, ("cwasi.http", "gateway"), whisk], "needs a port, such as cwasi.http=8080"),
        (&[secondary, ("cwasi.http", "80"), (FAN_IN, "2"), whisk], "contradicts cwasi.fan-in"),
        (&[secondary, ("cwasi.protocol", "grpc")], "must be http or openwhisk"),
    ] {
        let found = problems(pairs);
        assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
    }
    assert!(
        problems(&[whisk]).iter().any(|problem| problem.contains("needs cwasi.role=secondary"))
    );
}

#[test]
fn triggers_are_a_secondarys_and_no_fan_ins() {
    let value = "redis-stream:n:orders, redis-channel:n:alarms";
    let spec = parse(&[("cwasi.role", "secondary"), (TRIGGERS, value)]).unwrap();
    let names: Vec<_> = spec.triggers.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["redis-stream:n:orders", "redis-channel:n:alarms"]);
    let found = problems(&[(TRIGGERS, value)]);
    assert_eq!(found, ["cwasi.triggers needs cwasi.role=secondary: a primary is not called"]);
    let found = problems(&[("cwasi.role", "secondary"), (TRIGGERS, value), (FAN_IN, "2")]);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("contradicts cwasi.fan-in"), "{found:?}");
    let found = problems(&[("cwasi.role", "secondary"), (TRIGGERS, "redis-stream:cwasi:ev:1")]);
    assert!(found[0].starts_with("cwasi.triggers=redis-stream:cwasi:ev:1 has the entry"));
}
