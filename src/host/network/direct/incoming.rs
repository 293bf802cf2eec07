//! Calls of other hosts over direct connections. Runs in the shim daemon.
//!
//! A connection carries one call at a time. The call is decided ([`Decisions`](cwasi_direct::decisions::Decisions))
//! when its whole request is here. Its end says that it was accepted; for a call that takes longer, a message does.

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_rustls::server::TlsStream;

use super::super::Network;
use super::super::deliver::{admit, request_of, wait_of};
use super::super::instance::Connection;
use super::super::outgoing::CallResponse;
use super::trust::PeerNode;
use super::{Direct, lock};
use cwasi_coordinator::registry::Record;
use cwasi_direct::connection::{
    ConnectionError, Kind, read_message, read_payload, write_message, write_payload,
};
use cwasi_direct::decisions::Decision;
use cwasi_direct::peers::{USED_FOR, set_up};
use cwasi_direct::port::SharedPort;
use cwasi_direct::tls::Proven;
use cwasi_direct::unproven::{Place, Unproven};
use cwasi_modes::causes::Unreached;
use cwasi_modes::{CallError, Overload, Payload};
use cwasi_wire::envelope::CallStatus;
use cwasi_wire::network::{self, Answer, AnswerKind, Call, Caller, TryId, encode, parse};

/// Most handshakes at a time ([`Unproven`]); a connection without a place waits, and so do those behind it.
const HANDSHAKES_MAX: usize = 256;
/// Time that a handshake has before it makes room for another one.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(500);
/// How long a connection may be without a call; callers close theirs earlier.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// After this, a call that runs is said to be accepted. Most have ended by then.
const ACCEPT_AFTER: Duration = Duration::from_millis(200);
/// Longest time in which a caller takes a message.
const WRITE_MAX: Duration = Duration::from_secs(5);
/// Longest time for which the rest of a refused request is read, so that its caller reads the refusal.
const REFUSED_MAX: Duration = Duration::from_secs(1);

impl Network {
    /// Serves connections until this daemon ends.
    pub(super) async fn take_connections(self, mut port: SharedPort) {
        let Some(direct) = &self.inner.direct else { return };
        let handshakes = Unproven::new(HANDSHAKES_MAX, HANDSHAKE_GRACE);
        let mut closing = direct.closing.subscribe();
        loop {
            let next = async {
                let stream = port.next().await?;
                let from = stream.peer_addr().map_or(Ipv4Addr::UNSPECIFIED.into(), |it| it.ip());
                Some((stream, handshakes.place(from).await))
            };
            let (stream, place) = tokio::select! {
                next = next => match next {
                    Some(next) => next,
                    None => break,
                },
                () = ended(&mut closing) => break,
            };
            let network = self.clone();
            tokio::spawn(async move {
                if let Err(error) = network.serve_connection(stream, place).await {
                    tracing::debug!(%error, "a direct connection has ended");
                }
            });
        }
        port.end().await;
        direct.has_port.store(false, Relaxed);
    }

    async fn serve_connection(
        self,
        stream: TcpStream,
        handshake: Place,
    ) -> Result<(), ConnectionError> {
        let Some(direct) = &self.inner.direct else { return Ok(()) };
        set_up(&stream)?;
        let (mut stream, proven) = tokio::select! {
            accepted = direct.settings.tls.accept(stream) => accepted?,
            () = handshake.lost() => return Err(ConnectionError::Stalled),
        };
        let known = direct.node_of(&self.inner.link, &proven).await;
        let admitted = known.and_then(|node| Ok((node, direct.taken.take(&proven)?)));
        let (node, _place) = match admitted {
            Ok(admitted) => admitted,
            Err(reason) => {
                direct.note_refusal(&reason);
                return write_message(&mut stream, Kind::Refusal, reason.as_bytes()).await;
            }
        };
        write_message(&mut stream, Kind::Ready, &[]).await?;
        handshake.proven();
        let (last, kept, since) = (None, None, Instant::now());
        let mut incoming =
            Incoming { network: &self, direct, stream, proven, since, node, last, kept };
        let ended = incoming.serve().await;
        incoming.settle(false);
        ended
    }
}

/// One connection of another shim.
struct Incoming<'a> {
    network: &'a Network,
    direct: &'a Direct,
    stream: TlsStream<TcpStream>,
    /// The other shim's node, and what that has proved.
    node: PeerNode,
    proven: Proven,
    since: Instant,
    /// The last call, whose answer its caller may not have.
    last: Option<TryId>,
    /// The connection of the last call to its instance: the next one often has the same caller and instance.
    kept: Option<(String, Caller, Connection)>,
}

impl Incoming<'_> {
    async fn serve(&mut self) -> Result<(), ConnectionError> {
        let mut closing = self.direct.closing.subscribe();
        loop {
            let message = tokio::select! {
                message = timeout(IDLE_MAX, read_message(&mut self.stream)) => message,
                () = ended(&mut closing) => return self.close("this shim has ended").await,
            };
            let Ok(message) = message else { return Ok(()) };
            let Some((kind, message)) = message? else { return Ok(()) };
            // The caller sends the next message when it has the last answer.
            self.settle(true);
            if let Err(reason) = self.is_known().await {
                self.direct.note_refusal(&reason);
                return self.close(&reason).await;
            }
            match kind {
                Kind::Call => self.take(&message).await?,
                Kind::GiveUp => self.give_up(&message).await?,
                Kind::Question => {
                    let found = self.network.inner.answer_question(&message).await?;
                    self.write(Kind::Locations, &found).await?;
                }
                kind @ (Kind::Answer | Kind::Ready | Kind::Refusal | Kind::Locations) => {
                    return Err(ConnectionError::Unexpected { what: format!("{kind:?}") });
                }
            }
        }
    }

    /// Checks that the other side may still call.
    async fn is_known(&self) -> Result<(), String> {
        // Its certificate may have ended. Callers of ours make a new connection long before.
        if matches!(self.proven, Proven::Certificate(_)) && self.since.elapsed() > 2 * USED_FOR {
            return Err("the connection is too old".to_owned());
        }
        // A node may have lost its key.
        self.direct.node_of(&self.network.inner.link, &self.proven).await.map(drop)
    }

    /// Ends the connection, and tells the caller that a call that it may just have sent is not taken.
    async fn close(&mut self, reason: &str) -> Result<(), ConnectionError> {
        write_message(&mut self.stream, Kind::Refusal, reason.as_bytes()).await?;
        self.stream.shutdown().await?;
        self.drain().await;
        Ok(())
    }

    /// Reads for a moment, until the caller ends the connection. Unread bytes would make the system drop what was sent
    /// last.
    async fn drain(&mut self) {
        let mut rest = vec![0; 64 << 10];
        let reading = async { while matches!(self.stream.read(&mut rest).await, Ok(1..)) {} };
        let _late = timeout(REFUSED_MAX, reading).await;
    }

    fn settle(&mut self, has_answer: bool) {
        let Some(id) = self.last.take() else { return };
        let mut decisions = lock(&self.direct.decisions);
        if has_answer {
            decisions.answered(id);
        } else {
            decisions.unanswered(id, Instant::now().into_std());
        }
    }

    async fn give_up(&mut self, message: &[u8]) -> Result<(), ConnectionError> {
        let unreadable = |error: cwasi_wire::network::NetworkCodecError| {
            ConnectionError::Unexpected { what: error.to_string() }
        };
        let id = TryId::from_field(message).map_err(unreadable)?;
        let decision = lock(&self.direct.decisions).give_up(id, Instant::now().into_std());
        let kind = match decision {
            Decision::Accepted => AnswerKind::ANSWER_ACCEPTED,
            Decision::GivenUp => AnswerKind::ANSWER_REFUSED,
        };
        self.answer(id, kind, CallStatus::ANSWERED, network::Payload::default()).await
    }

    /// Takes one call to its end.
    async fn take(&mut self, message: &[u8]) -> Result<(), ConnectionError> {
        let arrived = Instant::now();
        let call: Call = parse(message)
            .map_err(|error| ConnectionError::Unexpected { what: error.to_string() })?;
        let id = TryId::from_field(&call.try_id)
            .map_err(|error| ConnectionError::Unexpected { what: error.to_string() })?;
        let follows = call.payload.get_or_default().follows;
        let deliveries = self.network.inner.deliveries.clone();
        let admitted = match deliveries.try_acquire() {
            Ok(permit) => self.admit(&call).map(|admitted| (permit, admitted)),
            Err(_full) => Err(Overload::Node { node: self.network.inner.node.clone() }.into()),
        };
        let (_permit, (record, connection)) = match admitted {
            Ok(admitted) => admitted,
            Err(error) => return self.refuse(id, follows, &error).await,
        };
        let deadline = arrived + wait_of(&call);
        let direct = self.direct;
        let Some(room) = direct.requests.take(follows).await else {
            let error = Overload::Node { node: self.network.inner.node.clone() }.into();
            return self.refuse(id, follows, &error).await;
        };
        let reading = timeout_at(deadline, self.payload(&call, &record.instance));
        let payload = reading.await.map_err(|_elapsed| ConnectionError::Stalled)??;
        drop(room);
        if !lock(&self.direct.decisions).accept(id) {
            let cause = Unreached::NotInTime { instance: record.instance.clone() };
            let error = CallError::Unreachable { target: call.target.clone(), cause };
            return self.refuse(id, 0, &error).await;
        }
        self.last = Some(id);
        tracing::debug!(%call, "call accepted");
        let ended = self.run(&call, id, (&record, &connection), payload, deadline).await?;
        // Otherwise an answer may still come on it.
        if ended.is_ok() {
            let caller = call.caller.into_option().unwrap_or_default();
            self.kept = Some((record.instance.clone(), caller, connection));
        }
        timeout_at(deadline + WRITE_MAX, self.end(id, ended)).await.map_err(|_elapsed| {
            ConnectionError::Unexpected { what: "the caller takes no answer".to_owned() }
        })?
    }

    /// The instance, and a connection to it in the caller's name.
    fn admit(&mut self, call: &Call) -> Result<(Record, Connection), CallError> {
        let node = &self.network.inner.node;
        let unreachable = |error: String| CallError::Unreachable {
            target: call.target.clone(),
            cause: Unreached::Node { node: node.clone(), error },
        };
        let caller = call.caller.get_or_default();
        self.node.is(&caller.node).map_err(unreachable)?;
        let Some(record) = self.direct.record(&call.instance) else {
            let instance = format!("instance {} on node {node}", call.instance);
            let cause = Unreached::NoListener { instance };
            return Err(CallError::Unreachable { target: call.target.clone(), cause });
        };
        admit(call, &record, node)?;
        let kept = self.kept.take().filter(|(instance, of, connection)| {
            *instance == record.instance && of == caller && connection.is_idle()
        });
        let connection = match kept {
            Some((_, _, connection)) => connection,
            None => Connection::open(&record, caller, &call.target)?,
        };
        Ok((record, connection))
    }

    async fn payload(&mut self, call: &Call, instance: &str) -> Result<Payload, ConnectionError> {
        let payload = call.payload.get_or_default();
        if payload.claim.is_some() {
            let what = "a payload that lies in Redis".to_owned();
            return Err(ConnectionError::Unexpected { what });
        }
        if payload.follows == 0 {
            return Ok(Payload::Inline(payload.inline.clone()));
        }
        let take = |length| self.direct.segment_for(instance, length);
        Ok(Payload::Segment(read_payload(&mut self.stream, payload.follows, take).await?))
    }

    /// Runs the call in its instance. Fails when its caller has gone: the instance then forgets the request if no worker
    /// has it yet.
    async fn run(
        &mut self,
        call: &Call,
        id: TryId,
        (record, connection): (&Record, &Connection),
        payload: Payload,
        deadline: Instant,
    ) -> Result<Result<CallResponse, CallError>, ConnectionError> {
        let request = request_of(call, deadline);
        let running = timeout_at(deadline, connection.run(record, &request, payload));
        tokio::pin!(running);
        let accept_at = Instant::now() + ACCEPT_AFTER;
        let mut is_said = false;
        loop {
            let mut byte = [0];
            tokio::select! {
                biased;
                ended = &mut running => {
                    let timed_out = |_| Err(CallError::Timeout { target: call.target.clone() });
                    return Ok(ended.unwrap_or_else(timed_out));
                }
                // Nothing is to come.
                read = self.stream.read(&mut byte) => return Err(match read {
                    Ok(0) => std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into(),
                    Ok(_) => ConnectionError::Unexpected { what: "a message".to_owned() },
                    Err(error) => error.into(),
                }),
                () = sleep_until(accept_at), if !is_said => {
                    is_said = true;
                    let (kind, none) = (AnswerKind::ANSWER_ACCEPTED, network::Payload::default());
                    self.answer(id, kind, CallStatus::ANSWERED, none).await?;
                }
            }
        }
    }

    async fn end(
        &mut self,
        id: TryId,
        ended: Result<CallResponse, CallError>,
    ) -> Result<(), ConnectionError> {
        let kind = AnswerKind::ANSWER_ENDED;
        match ended {
            Err(error) => {
                let message = network::Payload::of_bytes(error.wire_message().into_bytes());
                self.answer(id, kind, error.outcome(), message).await
            }
            Ok(CallResponse { payload: Payload::Inline(bytes), metadata }) => {
                let status = CallStatus::answered_with(metadata);
                self.answer(id, kind, status, network::Payload::of_bytes(bytes)).await
            }
            Ok(CallResponse { payload, metadata }) => {
                let status = CallStatus::answered_with(metadata);
                let announced = network::Payload::following(payload.len());
                self.answer(id, kind, status, announced).await?;
                write_payload(&mut self.stream, &payload, || ()).await
            }
        }
    }

    async fn refuse(
        &mut self,
        id: TryId,
        follows: u64,
        error: &CallError,
    ) -> Result<(), ConnectionError> {
        let message = network::Payload::of_bytes(error.wire_message().into_bytes());
        self.answer(id, AnswerKind::ANSWER_REFUSED, error.outcome(), message).await?;
        if follows == 0 {
            return Ok(());
        }
        self.drain().await;
        Err(ConnectionError::Unexpected { what: "a request that is refused".to_owned() })
    }

    async fn answer(
        &mut self,
        id: TryId,
        kind: AnswerKind,
        status: CallStatus,
        payload: network::Payload,
    ) -> Result<(), ConnectionError> {
        self.write(Kind::Answer, &encode(&Answer::of("", id, kind, status, payload))).await
    }

    async fn write(&mut self, kind: Kind, message: &[u8]) -> Result<(), ConnectionError> {
        let writing = write_message(&mut self.stream, kind, message);
        timeout(WRITE_MAX, writing).await.map_err(|_elapsed| ConnectionError::Stalled)?
    }
}

/// Returns when this daemon takes no more calls.
async fn ended(closing: &mut watch::Receiver<bool>) {
    // What it lends is not kept.
    let _closing = closing.wait_for(|closing| *closing).await.is_ok();
}
