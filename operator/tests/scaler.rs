//! The scaler as KEDA uses it: gRPC on a socket, with calls that come through a real Redis.

#![expect(clippy::unwrap_used, reason = "a test fails where it stands")]

use std::collections::HashMap;
use std::time::Duration;

use cwasi_networked::{RedisLink, RedisTarget, demand, stream_key};
use cwasi_operator::scaler::Scaler;
use cwasi_operator::scaler::generated::external_scaler_client::ExternalScalerClient;
use cwasi_operator::scaler::messages::{GetMetricsRequest, ScaledObjectRef};
use cwasi_testbed::redis::{Redis, RedisVersion};
use cwasi_wire::ids::Identity;
use cwasi_wire::network::Demand;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic::transport::{Channel, Server};

const PATIENCE: Duration = Duration::from_secs(30);

/// A scaler, a shim's link to the same Redis, and KEDA's client.
struct Fixture {
    client: ExternalScalerClient<Channel>,
    shim: RedisLink,
    /// `None` once it is stopped.
    redis: Option<Redis>,
}

impl Fixture {
    async fn start() -> Self {
        let redis = Redis::start(RedisVersion::Redis7);
        let target = RedisTarget { url: redis.url(), ca: None };
        let scaler = Scaler::start(&target).unwrap();
        scaler.link().session(tokio::time::Instant::now() + PATIENCE).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let service = scaler.service();
        tokio::spawn(
            Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        let client = ExternalScalerClient::connect(url).await.unwrap();
        let (shim, _) = RedisLink::start(&target, "cwasi:re:test").unwrap();
        Self { client, shim, redis: Some(redis) }
    }

    /// As a shim does.
    async fn publish(&self, source: &str, waiting: u64, running: u64) {
        let session = self.shim.session(tokio::time::Instant::now() + PATIENCE).await.unwrap();
        let identity = function();
        let demand = Demand { identity, source: source.into(), waiting, running, began: false };
        demand::publish(&session, &demand).await.unwrap();
    }

    fn cli(&self, args: &[&str]) -> String {
        self.redis.as_ref().unwrap().cli(args)
    }

    async fn calls(&mut self) -> i64 {
        self.calls_of(object("f")).await
    }

    async fn calls_of(&mut self, object: ScaledObjectRef) -> i64 {
        let request =
            GetMetricsRequest { scaled_object_ref: Some(object), metric_name: "calls".into() };
        let values = self.client.get_metrics(request).await.unwrap().into_inner().metric_values;
        values[0].metric_value
    }
}

fn function() -> Identity {
    Identity { namespace: "k8s.io".into(), pod_namespace: "n".into(), function: "f".into() }
}

/// Asks until the answer is this one.
async fn wait_for(fixture: &mut Fixture, expected: Result<bool, Code>) {
    wait_for_of(fixture, object("f"), expected).await;
}

async fn wait_for_of(fixture: &mut Fixture, object: ScaledObjectRef, expected: Result<bool, Code>) {
    let asking = async {
        loop {
            let answer = fixture.client.is_active(object.clone()).await;
            let answer = answer.map(|it| it.into_inner().result).map_err(|status| status.code());
            if answer == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap();
}

fn object(function: &str) -> ScaledObjectRef {
    let metadata = [("function", function), ("calls", "7"), ("scalerAddress", "x")];
    ScaledObjectRef {
        name: "shop-f".into(),
        namespace: "n".into(),
        scaler_metadata: metadata
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into_iter()
            .collect::<HashMap<_, _>>(),
    }
}

#[tokio::test]
async fn calls_are_pushed_and_counted() {
    let mut fixture = Fixture::start().await;
    let mut stream = fixture.client.stream_is_active(object("f")).await.unwrap().into_inner();
    let mut next = async || {
        let message = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap();
        message.unwrap().unwrap().result
    };
    assert!(!next().await);
    fixture.publish("shim", 3, 0).await;
    assert!(next().await);
    assert_eq!(fixture.calls().await, 3);
    assert!(fixture.client.is_active(object("f")).await.unwrap().into_inner().result);
    assert!(!fixture.client.is_active(object("g")).await.unwrap().into_inner().result);
    fixture.publish("shim", 0, 0).await;
    assert!(!next().await);
    // What is not repeated ends, too.
    fixture.publish("instance", 0, 2).await;
    assert!(next().await);
    assert!(!next().await);
    assert_eq!(fixture.calls().await, 0);
}

#[tokio::test]
async fn a_trigger_says_which_function_and_how_many_calls() {
    let mut fixture = Fixture::start().await;
    let spec = fixture.client.get_metric_spec(object("f")).await.unwrap().into_inner();
    let spec = &spec.metric_specs[0];
    assert_eq!((spec.metric_name.as_str(), spec.target_size), ("calls", 7));
    let nameless = ScaledObjectRef { scaler_metadata: HashMap::new(), ..object("f") };
    let refused = fixture.client.is_active(nameless.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("n/shop-f has no `function`"), "{}", refused.message());
    let refused = fixture.client.get_metric_spec(nameless).await.unwrap_err();
    assert!(refused.message().contains("no number as `calls`"), "{}", refused.message());
}

/// KEDA would end pods whose local calls go on.
#[tokio::test]
async fn a_scaler_without_redis_calls_no_function_inactive() {
    let mut fixture = Fixture::start().await;
    // It has just connected: shims have not repeated yet what runs.
    wait_for(&mut fixture, Err(Code::Unavailable)).await;
    wait_for(&mut fixture, Ok(false)).await;
    fixture.publish("instance", 0, 1).await;
    wait_for(&mut fixture, Ok(true)).await;
    let mut stream = fixture.client.stream_is_active(object("f")).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().unwrap().result);
    drop(fixture.redis.take());
    // Until the count is too old.
    wait_for(&mut fixture, Err(Code::Unavailable)).await;
    let request =
        GetMetricsRequest { scaled_object_ref: Some(object("f")), metric_name: "calls".into() };
    let refused = fixture.client.get_metrics(request).await.unwrap_err();
    assert!(refused.message().starts_with("calls are not known: "), "{}", refused.message());
    let told = tokio::time::timeout(Duration::from_secs(2), stream.message()).await;
    assert!(told.is_err(), "{told:?}");
}

/// Takes one entry and returns its id, as an instance of `f` does.
fn take(fixture: &Fixture, stream: &str, group: &str) -> String {
    fixture.cli(&["XREADGROUP", "GROUP", group, "node", "COUNT", "1", "STREAMS", stream, ">"]);
    let pending = fixture.cli(&["XPENDING", stream, group, "-", "+", "1"]);
    pending.lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn one_way_messages_start_a_pod_and_keep_it() {
    let mut fixture = Fixture::start().await;
    wait_for(&mut fixture, Ok(false)).await;
    let mut stream = fixture.client.stream_is_active(object("f")).await.unwrap().into_inner();
    let mut next = async || {
        let message = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap();
        message.unwrap().unwrap().result
    };
    assert!(!next().await);
    let key = stream_key(&function());
    fixture.cli(&["XGROUP", "CREATE", &key, "cwasi", "0", "MKSTREAM"]);
    let payloads = ["a", "b", "c"];
    payloads.iter().for_each(|it| drop(fixture.cli(&["XADD", &key, "*", "e", "", "p", it])));
    assert!(next().await);
    assert_eq!(fixture.calls().await, 3);
    let id = take(&fixture, &key, "cwasi");
    // Its pod runs it: it is a running call, too.
    fixture.publish("instance", 0, 1).await;
    wait_for(&mut fixture, Ok(true)).await;
    assert_eq!(fixture.calls().await, 3);
    fixture.cli(&["XDEL", &key, &id]);
    fixture.cli(&["XACK", &key, "cwasi", &id]);
    for left in ["b", "c"] {
        let id = take(&fixture, &key, "cwasi");
        assert!(fixture.client.is_active(object("f")).await.unwrap().into_inner().result, "{left}");
        fixture.cli(&["XDEL", &key, &id]);
        fixture.cli(&["XACK", &key, "cwasi", &id]);
    }
    assert!(!next().await);
    assert_eq!(fixture.calls().await, 0);
}

#[tokio::test]
async fn entries_of_triggers_start_a_pod_and_keep_it() {
    let mut fixture = Fixture::start().await;
    let mut asked = object("f");
    asked.scaler_metadata.insert("streams".into(), "n:orders,n:none".into());
    let group = "cwasi:k8s.io/n/f";
    fixture.cli(&["XADD", "n:orders", "1-0", "a", "1"]);
    // No instance has made its group: what is there is not the function's.
    wait_for_of(&mut fixture, asked.clone(), Ok(false)).await;
    fixture.cli(&["XGROUP", "CREATE", "n:orders", group, "$"]);
    fixture.cli(&["XGROUP", "CREATE", "n:orders", "others", "0"]);
    wait_for_of(&mut fixture, asked.clone(), Ok(false)).await;
    ["2-0", "3-0", "4-0", "5-0"]
        .iter()
        .for_each(|id| drop(fixture.cli(&["XADD", "n:orders", id, "a", "1"])));
    wait_for_of(&mut fixture, asked.clone(), Ok(true)).await;
    assert_eq!(fixture.calls_of(asked.clone()).await, 4);
    let first = take(&fixture, "n:orders", group);
    assert_eq!(fixture.calls_of(asked.clone()).await, 4, "one runs");
    // Redis does not know the number of entries any more.
    fixture.cli(&["XDEL", "n:orders", "4-0"]);
    assert_eq!(fixture.calls_of(asked.clone()).await, 3);
    fixture.cli(&["XACK", "n:orders", group, &first]);
    assert_eq!(fixture.calls_of(asked.clone()).await, 2);
    for _ in 0..2 {
        let id = take(&fixture, "n:orders", group);
        wait_for_of(&mut fixture, asked.clone(), Ok(true)).await;
        fixture.cli(&["XACK", "n:orders", group, &id]);
    }
    wait_for_of(&mut fixture, asked.clone(), Ok(false)).await;
    // What may not be read may have entries.
    fixture.cli(&["ACL", "SETUSER", "default", "resetkeys", "~cwasi:*"]);
    wait_for_of(&mut fixture, asked.clone(), Err(Code::Unavailable)).await;
    fixture.cli(&["ACL", "SETUSER", "default", "allkeys"]);
    wait_for_of(&mut fixture, asked.clone(), Ok(false)).await;
    // Another namespace's function of the same name has a group of its own.
    fixture.cli(&["XADD", "n:orders", "6-0", "a", "1"]);
    let foreign = ScaledObjectRef { namespace: "m".into(), ..asked.clone() };
    assert_eq!(fixture.calls_of(foreign).await, 0);
    asked.scaler_metadata.insert("streams".into(), "cwasi:ev:0123456789abcdef".into());
    let refused = fixture.client.is_active(asked).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("the runtime's own"), "{}", refused.message());
}
