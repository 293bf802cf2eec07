//! One try of a call over a direct connection. Runs in the shim daemon.
//!
//! What its end means is [`Exchange`]'s business; this file feeds it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_rustls::client::TlsStream;

use super::super::bridge::BridgeCaller;
use super::super::outgoing::{CallResponse, OutgoingCall};
use super::super::tries::{Retry, TryOutcome, call_message, ended};
use super::super::{Inner, Network};
use super::{Direct, room};
use cwasi_direct::connection::{
    ConnectionError, Kind, read_message, read_payload, write_message, write_payload,
};
use cwasi_direct::decisions::Decision;
use cwasi_direct::exchange::{End, Event, Exchange, Next};
use cwasi_direct::peers::{Lease, Pair, PeerError};
use cwasi_modes::causes::{Break, TooLarge, Unreached};
use cwasi_modes::{CallError, Payload};
use cwasi_sys::random::bytes16;
use cwasi_wire::network::{self, Answer, AnswerKind, Link, Location, TryId, decode, encode};

/// Longest wait for the callee's shim to say anything about a call that is sent. It says long before that a call runs
/// ([`super::incoming`]), and TCP notices a host that is gone: this is for a shim that hangs. A large payload may lie
/// in the sockets for longer.
const ACCEPT_MAX: Duration = Duration::from_secs(5);
/// Bytes of it that are read in a second, at least.
const PAYLOAD_RATE: u64 = 16 << 20;
/// Longest wait for what it says about a call that is given up.
const ASK_MAX: Duration = Duration::from_secs(3);

/// How a try went.
pub(in super::super) enum DirectEnd {
    Tried(TryOutcome),
    /// There is no connection, or its shim takes no calls: this one was not run.
    NoConnection(PeerError),
}

/// What came back on the connection.
enum Received {
    Refused(Answer),
    /// The callee's shim takes no more calls on this connection, nor has it taken this one; why.
    NoMore(String),
    Ended(Answer, Result<Payload, CallError>),
}

/// What has happened on the connection, whichever half noticed it.
#[derive(Debug, Default)]
struct Progress {
    complete: AtomicBool,
    accepted: AtomicBool,
    /// Packets do not arrive.
    timed_out: AtomicBool,
}

struct DirectTry<'a> {
    inner: &'a Inner,
    direct: &'a Direct,
    link: &'a Link,
    location: &'a Location,
    caller: &'a BridgeCaller,
    call: &'a OutgoingCall,
    id: TryId,
    progress: Progress,
}

impl Network {
    /// Tries one instance over a direct connection.
    pub(in super::super) async fn try_direct(
        &self,
        (direct, link): (&Direct, &Link),
        caller: &BridgeCaller,
        call: &OutgoingCall,
        location: &Location,
    ) -> DirectEnd {
        let waits = direct.settings.always;
        let pair = Pair { caller: caller.instance.clone(), callee: location.instance.clone() };
        let lease = match direct.peers.take_for(pair, link, call.deadline, waits).await {
            Ok(lease) => lease,
            Err(error) => return DirectEnd::NoConnection(error),
        };
        let (inner, id, progress) = (&*self.inner, TryId(bytes16()), Progress::default());
        let attempt = DirectTry { inner, direct, link, location, caller, call, id, progress };
        attempt.run(lease).await
    }
}

impl DirectTry<'_> {
    async fn run(&self, lease: Lease) -> DirectEnd {
        let Lease { stream, place, made, pair } = lease;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let (end, received) = self.exchange(&mut reader, &mut writer).await;
        let is_clean = match &received {
            // The callee's shim ends a connection on which the rest of a refused request may follow.
            Some(Received::Refused(_)) => matches!(self.call.payload, Payload::Inline(_)),
            Some(Received::Ended(_, Ok(_))) => self.progress.complete.load(Relaxed),
            _ => false,
        };
        if is_clean {
            let stream = reader.unsplit(writer);
            self.direct.peers.put_back(self.link, Lease { stream, place, made, pair });
        }
        match (end, received) {
            ((End::Refused, _), Some(Received::NoMore(reason))) => {
                let address = self.link.address.clone();
                DirectEnd::NoConnection(PeerError::Shim { address, reason })
            }
            // Where large packets are lost, a new connection comes up, and breaks again.
            ((End::NotAccepted, why), _) if self.progress.timed_out.load(Relaxed) => {
                DirectEnd::NoConnection(self.direct.peers.loses(self.link, &why))
            }
            ((end, why), received) => DirectEnd::Tried(self.outcome(end, &why, received)),
        }
    }

    /// Sends the request and takes the answer, to the call's end.
    async fn exchange(
        &self,
        reader: &mut ReadHalf<TlsStream<TcpStream>>,
        writer: &mut WriteHalf<TlsStream<TcpStream>>,
    ) -> ((End, String), Option<Received>) {
        let mut exchange = Exchange::default();
        let (sending, receiving) = (self.send(writer), self.receive(reader));
        let asking = self.ask();
        tokio::pin!(sending, receiving, asking);
        let (mut is_sent, mut is_asked) = (false, false);
        let patience = ACCEPT_MAX + Duration::from_secs(self.call.payload.len() / PAYLOAD_RATE);
        let mut late = Instant::now() + patience;
        let mut why = "its shim said nothing in time".to_owned();
        let mut received = None;
        loop {
            let event = tokio::select! {
                biased;
                came = &mut receiving, if exchange.listens() => match came {
                    Ok(answer) => {
                        let is_refusal = matches!(answer, Received::Refused(_) | Received::NoMore(_));
                        received = Some(answer);
                        if is_refusal { Event::Refused } else { Event::Answered }
                    }
                    Err(error) => {
                        self.note(&error, &mut why);
                        Event::Lost
                    }
                },
                sent = &mut sending, if !is_sent => {
                    is_sent = true;
                    late = Instant::now() + patience;
                    if let Err(error) = &sent {
                        self.note(error, &mut why);
                    }
                    match sent {
                        // A refusal may still be read from a connection that takes no more.
                        Ok(()) | Err(ConnectionError::Broken(_)) => continue,
                        Err(_) => Event::Lost,
                    }
                }
                decision = &mut asking, if is_asked => {
                    is_asked = false;
                    late = Instant::now() + patience;
                    asking.set(self.ask());
                    Event::Resolved(decision)
                }
                () = sleep_until(self.call.deadline) => Event::Deadline,
                () = sleep_until(late), if is_sent && !is_asked => {
                    late = Instant::now() + patience;
                    Event::Late
                }
            };
            for (happened, before) in [
                (&self.progress.complete, Event::Complete),
                (&self.progress.accepted, Event::Accepted),
            ] {
                if happened.load(Relaxed) {
                    exchange.on(before);
                }
            }
            match exchange.on(event) {
                Next::Wait => {}
                Next::Ask => is_asked = true,
                Next::End(end) => return ((end, why), received),
            }
        }
    }

    /// Notes why the connection has ended. The system says to one half that it timed out, and to the other one that it
    /// has ended.
    fn note(&self, error: &ConnectionError, why: &mut String) {
        let before = self.progress.timed_out.fetch_or(error.is_timeout(), Relaxed);
        if !before {
            *why = error.to_string();
        }
    }

    async fn send(&self, to: &mut WriteHalf<TlsStream<TcpStream>>) -> Result<(), ConnectionError> {
        let complete = || self.progress.complete.store(true, Relaxed);
        let payload = match &self.call.payload {
            Payload::Inline(bytes) => network::Payload::of_bytes(bytes.clone()),
            Payload::Segment(segment) => network::Payload::following(segment.len()),
        };
        let message = call_message(self.inner, self.caller, self.call, self.id, payload);
        let message =
            encode(&network::Call { instance: self.location.instance.clone(), ..message });
        if let Payload::Inline(_) = &self.call.payload {
            complete();
            return write_message(to, Kind::Call, &message).await;
        }
        write_message(to, Kind::Call, &message).await?;
        write_payload(to, &self.call.payload, complete).await
    }

    /// Reads answers until the last one.
    async fn receive(
        &self,
        from: &mut (impl AsyncRead + Unpin),
    ) -> Result<Received, ConnectionError> {
        loop {
            let answer = match next_answer(from, self.id).await? {
                Ok(answer) => answer,
                Err(reason) => return Ok(Received::NoMore(reason)),
            };
            match answer.kind.enum_value() {
                Ok(AnswerKind::ANSWER_ACCEPTED) => self.progress.accepted.store(true, Relaxed),
                Ok(AnswerKind::ANSWER_REFUSED) => return Ok(Received::Refused(answer)),
                Ok(AnswerKind::ANSWER_ENDED) => {
                    // It ran.
                    self.progress.accepted.store(true, Relaxed);
                    return self.response(from, answer).await;
                }
                kind => {
                    let what = format!("an answer of kind {kind:?}");
                    return Err(ConnectionError::Unexpected { what });
                }
            }
        }
    }

    async fn response(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        mut answer: Answer,
    ) -> Result<Received, ConnectionError> {
        let payload = answer.payload.take().unwrap_or_default();
        let (length, max) = (payload.length(), self.caller.max_payload);
        if answer.errno != 0 && payload.follows > 0 {
            let what = "an error with a payload".to_owned();
            return Err(ConnectionError::Unexpected { what });
        }
        if length > max && answer.errno == 0 {
            let what = format!("response of {}", self.call.target);
            let error = CallError::too_large(&what, length, max);
            return Ok(Received::Ended(answer, Err(error)));
        }
        let Some(_room) = self.direct.responses.take(payload.follows).await else {
            let error = TooLarge::Received { length, limit: room::BYTES_MAX };
            return Ok(Received::Ended(answer, Err(error.into())));
        };
        let payload = if payload.follows > 0 {
            let take = |length| self.direct.segment_for(&self.caller.instance, length);
            Payload::Segment(read_payload(from, payload.follows, take).await?)
        } else {
            Payload::Inline(payload.inline)
        };
        Ok(Received::Ended(answer, Ok(payload)))
    }

    /// Gives the call up on a new connection; who was first, if the callee's shim says so.
    async fn ask(&self) -> Option<Decision> {
        let until = self.call.deadline.min(Instant::now() + ASK_MAX);
        let asking = async {
            let mut lease = self.direct.peers.take_new(self.link, until).await.ok()?;
            write_message(&mut lease.stream, Kind::GiveUp, &self.id.0).await.ok()?;
            let answer = next_answer(&mut lease.stream, self.id).await.ok()?.ok()?;
            match answer.kind.enum_value() {
                Ok(AnswerKind::ANSWER_ACCEPTED) => Some(Decision::Accepted),
                Ok(AnswerKind::ANSWER_REFUSED) => Some(Decision::GivenUp),
                _ => None,
            }
        };
        timeout_at(until, asking).await.ok().flatten()
    }

    fn outcome(&self, end: End, why: &str, received: Option<Received>) -> TryOutcome {
        let instance =
            format!("instance {} on node {}", self.location.instance, self.location.node);
        match (end, received) {
            (End::Answered, Some(Received::Ended(answer, Ok(payload)))) if answer.errno == 0 => {
                let metadata = answer.outcome().metadata;
                TryOutcome::Answered(Ok(CallResponse { payload, metadata }))
            }
            (End::Answered, Some(Received::Ended(answer, Ok(payload)))) => {
                let message = payload.into_vec().unwrap_or_default();
                ended(&answer, &message, &self.call.target)
            }
            (End::Answered, Some(Received::Ended(_, Err(error)))) => {
                TryOutcome::Answered(Err(error))
            }
            (End::Refused, Some(Received::Refused(mut answer))) => {
                let message = answer.payload.take().unwrap_or_default().inline;
                ended(&answer, &message, &self.call.target)
            }
            (End::NotAccepted, _) if self.progress.complete.load(Relaxed) => {
                let cause = Unreached::NotInTime { instance };
                TryOutcome::NotAccepted(Retry::Elsewhere, self.call.unreachable(cause))
            }
            // The same instance may be reached on another connection.
            (End::NotAccepted, _) => {
                TryOutcome::NotAccepted(Retry::AfterPause, self.call.unsent(why))
            }
            (End::TimedOut, _) => TryOutcome::Answered(Err(self.call.timeout())),
            (End::Unknown | End::Answered | End::Refused, _) => {
                let cause = Break::Network { error: format!("{instance}: {why}") };
                TryOutcome::Answered(Err(self.call.unknown(cause)))
            }
        }
    }
}

/// The next answer about this try; or why the callee's shim takes no more calls.
async fn next_answer(
    from: &mut (impl AsyncRead + Unpin),
    id: TryId,
) -> Result<Result<Answer, String>, ConnectionError> {
    let unexpected = |what: String| ConnectionError::Unexpected { what };
    let Some((kind, message)) = read_message(from).await? else {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    };
    match kind {
        Kind::Answer => {}
        Kind::Refusal => return Ok(Err(String::from_utf8_lossy(&message).into_owned())),
        kind => return Err(unexpected(format!("{kind:?}"))),
    }
    let answer: Answer = decode(&message).map_err(|error| unexpected(error.to_string()))?;
    if answer.try_id != id.0 {
        return Err(unexpected("an answer to another call".to_owned()));
    }
    Ok(Ok(answer))
}
