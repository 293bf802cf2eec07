use std::path::Path;

use super::*;
use crate::Additions;

fn workflow(spec: &str) -> Result<Workflow, Vec<Problem>> {
    given(spec, &Additions::default())
}

fn given(spec: &str, additions: &Additions) -> Result<Workflow, Vec<Problem>> {
    let text = format!(
        "apiVersion: cwasi.dev/v1alpha1\nkind: Workflow\nmetadata: {{name: w}}\nspec:\n{spec}"
    );
    Workflow::parse(&text, Path::new("/w"), additions)
}

fn texts(problems: &[Problem]) -> String {
    let lines = problems.iter().map(|problem| format!("{}: {}", problem.location, problem.text));
    lines.collect::<Vec<_>>().join("\n")
}

const TWO: &str = r#"
  services:
    cache:
      image: redis:7
      port: 6379
      args: [redis-server, --save, ""]
      health: {command: [redis-cli, ping], timeout: 5s}
    user-db:
      image: postgres:16
      port: 5432
      env: {POSTGRES_PASSWORD: secret}
      user: "999:998"
      health: {http: /healthz}
      storage: {path: /data, size: 2Gi, class: fast}
  functions:
    shop: {image: "i:1", uses: [cache, user-db], network: "db.example:1", env: {CACHE_SERVICE_HOST: own}}
    other: {image: "i:1"}
"#;

#[test]
fn a_service_is_read_with_all_its_fields() {
    let workflow = workflow(TWO).unwrap();
    let [cache, db] = workflow.services.as_slice() else { panic!("{:?}", workflow.services) };
    assert_eq!((cache.image.as_str(), cache.port, &cache.command), ("redis:7", 6379, &vec![]));
    assert_eq!(cache.args, ["redis-server", "--save", ""]);
    let command = ["redis-cli", "ping"].map(str::to_owned).to_vec();
    let health = Health { check: HealthCheck::Command(command), timeout: Duration::from_secs(5) };
    assert_eq!((&cache.health, &cache.storage, cache.user), (&health, &None, None));
    assert_eq!(db.user, Some(User { uid: 999, gid: 998 }));
    assert_eq!(db.health.check, HealthCheck::Http("/healthz".to_owned()));
    let storage = Storage { path: "/data".into(), size: 2 << 30, class: Some("fast".into()) };
    assert_eq!(db.storage, Some(storage));
    assert_eq!(workflow.functions[0].uses, ["cache", "user-db"]);
    assert_eq!(workflow.users_of("cache").count(), 1);
}

#[test]
fn users_get_the_addresses_and_their_own_variables_win() {
    let mut workflow = workflow(TWO).unwrap();
    workflow.connect(|service| Address { host: format!("w-{}", service.name), port: service.port });
    let [shop, other] = workflow.functions.as_slice() else { panic!("{:?}", workflow.functions) };
    let env: Vec<_> = shop.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let expected = [
        "CACHE_SERVICE_HOST=own",
        "CACHE_SERVICE_PORT=6379",
        "USER_DB_SERVICE_HOST=w-user-db",
        "USER_DB_SERVICE_PORT=5432",
    ];
    assert_eq!(env, expected);
    let network = "db.example:1,w-cache:6379,w-user-db:5432";
    assert_eq!(shop.annotations["cwasi.network"], network);
    assert!(other.env.is_empty() && !other.annotations.contains_key("cwasi.network"));
    // Once more changes nothing.
    let before = workflow.clone();
    workflow.connect(|service| Address { host: format!("w-{}", service.name), port: service.port });
    assert_eq!(workflow, before);
}

#[test]
fn faults_of_services_name_the_place_and_the_remedy() {
    let problems = workflow(
        r#"
  services:
    Cache: {image: "i:1", port: 1}
    shop: {image: "i:1", port: 0}
    db:
      imag: x
      port: 5432
      args: redis-server --save
      user: redis
      health: {command: [], http: healthz, timeout: 2h}
      storage: {path: data, size: much}
    queue: {image: "i:1", port: 1, health: {command: []}}
    web: {image: "i:1", port: 1, health: {http: healthz, timeout: soon}}
  functions:
    shop: {image: "i:1", uses: [dbs, other, db, db]}
    other: {image: "i:1", uses: db}
    lib: {image: "i:1", role: library, uses: [db]}
"#,
    )
    .unwrap_err();
    let text = texts(&problems);
    for part in [
        "7:5: spec.services.Cache: `Cache` is not the name of a service: use lower-case letters",
        "8:5: spec.services.shop: a function has this name: rename one of them",
        "8:32: spec.services.shop.port: 0 is not a whole number from 1 to 65535",
        "10:7: spec.services.db has the unknown field `imag`; did you mean `image`?",
        "spec.services.db has no `image`",
        "spec.services.db.args must be a list such as",
        "spec.services.db.user: `redis` is not `UID` or `UID:GID`, such as \"999:999\"",
        "spec.services.db.health has both `command` and `http`: keep one",
        "spec.services.db.health.timeout: 2h is longer than 1h",
        "spec.services.db.storage.path: data must be an absolute path",
        "spec.services.db.storage.size: much is not a size",
        "spec.services.queue.health.command names no program",
        "spec.services.web.health.http: `healthz` is not a path such as /healthz",
        "spec.services.web.health.timeout: soon is not a duration",
        "spec.functions.shop.uses: spec.services has no `dbs`; did you mean `db`?",
        "spec.functions.shop.uses: `other` is a function, which is called without `uses`",
        "spec.functions.shop.uses: `db` is there twice",
        "spec.functions.other.uses must be a list such as",
        "spec.functions.lib.uses means nothing: a library has no container",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[test]
fn an_address_of_the_command_line_replaces_a_service() {
    let of = |name: &str, address: &str| Additions {
        services: vec![(name.to_owned(), address.parse().unwrap())],
        ..Additions::default()
    };
    let workflow = given(TWO, &of("cache", "[::1]:7000")).unwrap();
    let cache = workflow.service("cache").unwrap();
    assert_eq!(cache.external, Some(Address { host: "::1".into(), port: 7000 }));
    assert!(!cache.is_started() && workflow.service("user-db").unwrap().is_started());
    let problems = given(TWO, &of("cach", "db:1")).unwrap_err();
    let text = "command line: --service cach: spec.services has no `cach`; did you mean `cache`?";
    assert_eq!(texts(&problems), text);
    for (text, is_right) in [
        ("db.example:5432", true),
        ("10.0.0.1:1", true),
        ("[fd00::1]:1", true),
        ("db.example", false),
        ("db.example:0", false),
        ("db.example:70000", false),
        (":80", false),
        ("fd00::1:80", false),
        ("[db]:80", false),
        ("a,b:80", false),
        ("*:80", false),
    ] {
        let parsed = text.parse::<Address>();
        assert_eq!(parsed.is_ok(), is_right, "{text}: {parsed:?}");
        if let Ok(address) = parsed {
            assert_eq!(address.to_string(), text);
        }
    }
}

#[test]
fn what_shares_no_network_is_a_problem_where_services_are_containers() {
    assert_eq!(workflow(TWO).unwrap().network_problems(), []);
    let text = r#"
  nodes: {far: {address: /far.sock}}
  services:
    a: {image: "i:1", port: 5432}
    b: {image: "i:1", port: 5432}
    c: {image: "i:1", port: 80, hostNetwork: true}
    d: {image: "i:1", port: 81}
    unused: {image: "i:1", port: 5432}
  functions:
    one: {image: "i:1", role: secondary, uses: [a, b], http: 5432, replicas: 2}
    two: {image: "i:1", uses: [c]}
    three: {image: "i:1", uses: [d], hostNetwork: true}
    four: {image: "i:1", uses: [d], node: far}
"#;
    let problems = workflow(text).unwrap().network_problems();
    let said = texts(&problems);
    for part in [
        "service b: service a has the port 5432 in the network that both share: let one of them listen on another one",
        "function one: service b has the port 5432 in the network that both share: choose another one in `http`",
        "function one: its 2 containers share a network with services, and only one of them can have the port 5432",
        "function two: service c has the node's network, and the function does not",
        "function three: it has the node's network, and service d does not",
        "service d: its users are on several nodes (the command line's, far), and it runs on one",
    ] {
        assert!(said.contains(part), "{part} is missing in:\n{said}");
    }
    assert_eq!(problems.len(), 6, "{said}");
    let external = Additions {
        services: vec![("d".to_owned(), "db.example:1".parse().unwrap())],
        ..Additions::default()
    };
    let said = texts(&given(text, &external).unwrap().network_problems());
    let part = "function four: service d is at db.example:1, and the function's container has no network but 127.0.0.1";
    assert!(said.contains(part), "{said}");
    assert!(!said.contains("function three") && !said.contains("several nodes"), "{said}");
}

#[test]
fn functions_share_a_network_with_services_that_are_started() {
    let shares = |additions: &Additions| {
        let workflow = given(TWO, additions).unwrap();
        let shares = workflow.functions.iter().map(|function| workflow.shares_network(function));
        shares.collect::<Vec<_>>()
    };
    assert_eq!(shares(&Additions::default()), [true, false]);
    let services = ["cache", "user-db"].map(|name| (name.to_owned(), "db:1".parse().unwrap()));
    let external = Additions { services: services.to_vec(), ..Additions::default() };
    assert_eq!(shares(&external), [false, false]);
}
