//! Publishes task events to containerd. Runs in the shim daemon.
//!
//! Invariants: events keep their order, and publishing never blocks a task. containerd relies on the order Create,
//! Start, Exit, Delete. `containerd_shim`'s publisher puts a failed event behind later ones and blocks when its queue
//! is full. Here one task sends one event after the other, and repeats it while containerd restarts.

use std::time::{Duration, SystemTime};

use containerd_shim::event::Event;
use containerd_shim::protos::protobuf::MessageDyn;
use containerd_shim::protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim::protos::shim::event::Envelope;
use containerd_shim::protos::shim::events::ForwardRequest;
use containerd_shim::protos::shim_async::{Client, EventsClient};
use containerd_shim::protos::ttrpc::context;
use containerd_shim::util::convert_to_any;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Most waiting events; beyond it the newest are dropped and logged.
const QUEUE_MAX: usize = 4096;
/// Longest time for one attempt.
const ATTEMPT_MAX: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(200);
/// Age at which an unsent event is dropped.
const LIFETIME: Duration = Duration::from_secs(60);

enum Item {
    Event(Box<Envelope>, Instant),
    Flush(oneshot::Sender<()>),
}

/// Sends events; clones share the queue.
#[derive(Clone)]
pub struct Publisher {
    namespace: String,
    queue: mpsc::Sender<Item>,
}

impl Publisher {
    /// A publisher to containerd's events address.
    #[must_use]
    pub fn start(address: &str, namespace: &str) -> Self {
        let (queue, items) = mpsc::channel(QUEUE_MAX);
        let address =
            if address.contains("://") { address.to_owned() } else { format!("unix://{address}") };
        tokio::spawn(send_all(address, items));
        Self { namespace: namespace.to_owned(), queue }
    }

    /// A publisher without a reader: events are dropped.
    #[must_use]
    pub fn without_reader(namespace: &str) -> Self {
        let (queue, mut items) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(async move {
            while let Some(item) = items.recv().await {
                if let Item::Flush(done) = item {
                    // A flush that was given up waits no more.
                    let _given_up = done.send(());
                }
            }
        });
        Self { namespace: namespace.to_owned(), queue }
    }

    pub fn publish<E: Event + MessageDyn>(&self, event: E) {
        let topic = event.topic();
        let any = match convert_to_any(Box::new(event)) {
            Ok(any) => any,
            Err(error) => {
                tracing::error!(topic, %error, "event cannot be encoded");
                return;
            }
        };
        let mut envelope = Envelope::new();
        envelope.set_timestamp(timestamp(SystemTime::now()));
        envelope.set_namespace(self.namespace.clone());
        envelope.set_topic(topic.clone());
        envelope.set_event(any);
        if self.queue.try_send(Item::Event(Box::new(envelope), Instant::now())).is_err() {
            tracing::error!(topic, "event dropped: {QUEUE_MAX} events wait for containerd");
        }
    }

    /// Waits until all queued events are sent or dropped, at most `limit`.
    pub async fn flush(&self, limit: Duration) {
        let (done, waiting) = oneshot::channel();
        if self.queue.send(Item::Flush(done)).await.is_ok()
            && tokio::time::timeout(limit, waiting).await.is_err()
        {
            tracing::warn!("events were still waiting for containerd at the end");
        }
    }
}

/// A timestamp in protobuf's form.
#[must_use]
pub fn timestamp(at: SystemTime) -> Timestamp {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut stamp = Timestamp::new();
    stamp.seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    stamp.nanos = i32::try_from(since.subsec_nanos()).unwrap_or(0);
    stamp
}

async fn send_all(address: String, mut items: mpsc::Receiver<Item>) {
    let mut client = None;
    while let Some(item) = items.recv().await {
        match item {
            Item::Flush(done) => drop(done.send(())),
            Item::Event(envelope, since) => {
                let topic = envelope.topic.clone();
                if !send_one(&address, &mut client, &envelope, since).await {
                    tracing::error!(topic, "event given up: containerd does not take it");
                }
            }
        }
    }
}

/// Sends one event, with retries while containerd is away; false if it was dropped.
async fn send_one(
    address: &str,
    client: &mut Option<EventsClient>,
    envelope: &Envelope,
    since: Instant,
) -> bool {
    let mut request = ForwardRequest::new();
    request.set_envelope(envelope.clone());
    loop {
        let connected = match client.take() {
            Some(connected) => Ok(connected),
            None => Client::connect(address).await.map(EventsClient::new),
        };
        match connected {
            Ok(connected) => {
                let limit = context::with_duration(ATTEMPT_MAX);
                match connected.forward(limit, &request).await {
                    Ok(_) => {
                        *client = Some(connected);
                        return true;
                    }
                    Err(error) => tracing::debug!(%error, "event not taken, trying again"),
                }
            }
            Err(error) => tracing::debug!(%error, "containerd's events address does not answer"),
        }
        if since.elapsed() > LIFETIME {
            return false;
        }
        tokio::time::sleep(PAUSE).await;
    }
}
