//! The answer of an invocation: sent to its caller, or to the callers of all parts of a group. Runs in workers.
//!
//! A worker never waits for a caller to read. It hands answers for which a connection has no room to init, which keeps
//! them in its bounded [send queue](cwasi_modes::local::send_queue).

use std::cell::{Cell, RefCell};
use std::os::fd::AsFd;
use std::time::Duration;

use cwasi_abi::Errno;

use crate::stderr;
use crate::work::Work;
use cwasi_modes::CallResult;
use cwasi_modes::local::send_queue::ROOM_MAX;
use cwasi_modes::local::{
    CallerConnection, IncomingRequest, LocalError, copy_for_peer, error_answer, found_no_room,
    send_answer, send_as_is,
};
use cwasi_modes::pool::SegmentPool;
use cwasi_modes::{CallError, OutgoingPayload, Overload};
use cwasi_sys::clock::Deadline;
use cwasi_wire::envelope::{CallStatus, Metadata, Request, Response, Undelivered};
use cwasi_wire::ids::CallId;
use cwasi_wire::metadata;

use super::InitSocket;

/// How long a worker tries to hand a segment to init while too many descriptors are on their way.
const HAND_OVER_MAX: Duration = Duration::from_millis(100);

/// The work of one invocation, and its answer.
#[derive(Debug)]
pub struct Replies {
    /// The calls, whose callers all get the answer.
    pub work: Work,
    /// Whether the answer may be a segment that is lent to every caller.
    pub lends: bool,
    /// What the callee set beside its response.
    metadata: RefCell<Vec<Metadata>>,
    /// The next answer is worth polling for ([`cwasi_modes::shared_processor`]).
    pub poll_next: bool,
    /// Errno and length in bytes of what was sent.
    pub ended: Cell<(i32, u64)>,
    /// The pool from which it is lent.
    pool: Option<SegmentPool>,
    /// Takes the answers for which callers have no room.
    init: InitSocket,
    /// Most bytes of large answers that one caller may leave in its connection.
    unread_max: u64,
}

impl Replies {
    /// No answer yet.
    pub fn new(work: Work, pool: Option<&SegmentPool>, init: InitSocket, unread_max: u64) -> Self {
        let lends = work.calls().all(|call| call.connection.lends);
        let pool = pool.filter(|_| lends).cloned();
        let ended = Cell::new((Errno::Broken.code(), 0));
        Self {
            work,
            lends,
            metadata: RefCell::default(),
            poll_next: false,
            ended,
            pool,
            init,
            unread_max,
        }
    }

    /// Sets what travels beside the response.
    pub fn set_metadata(&self, metadata: Vec<Metadata>) {
        self.metadata.replace(metadata);
    }

    /// Sends the answer to all callers.
    pub fn send(&self, answer: &CallResult) {
        match answer {
            Ok(payload) => self.send_response(payload.outgoing()),
            Err(error) => {
                let (status, text) = error_answer(error);
                self.send_to_all(&status, &[], text.outgoing());
            }
        }
    }

    /// Sends a response, if need be as one copy for all callers. They get an error when it cannot be made.
    pub fn send_response(&self, content: OutgoingPayload<'_>) {
        match copy_for_peer(content, self.lends, self.pool.as_ref()) {
            Ok(copy) => {
                let content = copy.as_ref().map_or(content, OutgoingPayload::from);
                let answered = CallStatus::ANSWERED;
                self.send_to_all(&answered, &self.metadata.borrow(), content);
            }
            Err(error) => {
                let message = format!("the response cannot be sent: {error}");
                self.send(&Err(CallError::Internal { message }));
            }
        }
    }

    fn send_to_all(
        &self,
        outcome: &CallStatus,
        metadata: &[Metadata],
        content: OutgoingPayload<'_>,
    ) {
        self.ended.set((outcome.errno, content.len()));
        for IncomingRequest { connection, id, request, .. } in self.work.calls() {
            let mut response = Response::of(*id, outcome.clone());
            response.metadata = metadata_for(request, metadata);
            response.poll_next = self.poll_next;
            let (until, unread) = (self.work.deadline, self.unread_max);
            send_one(&self.init, connection, response, content, until, unread);
        }
    }
}

/// What the caller of this request reads of the metadata. A caller that came by HTTP reads all: the host functions took
/// no more than it does. Others ignore metadata.
fn metadata_for(request: &Request, metadata: &[Metadata]) -> Vec<Metadata> {
    if metadata::length(metadata) > max_head_of(request) {
        return Vec::new();
    }
    match request.max_head {
        0 => metadata::as_text(metadata),
        _ => metadata.to_vec(),
    }
}

/// Most bytes of metadata that the caller of this request reads.
pub fn max_head_of(request: &Request) -> usize {
    match request.max_head {
        0 => metadata::EARLIER_MAX,
        most => most as usize,
    }
}

/// Answers a request that is not acceptable.
pub fn refuse(init: &InitSocket, connection: &CallerConnection, id: CallId, error: &CallError) {
    let (status, text) = error_answer(error);
    let until = Deadline::after(ROOM_MAX);
    send_one(init, connection, Response::of(id, status), text.outgoing(), until, u64::MAX);
}

/// Sends an answer to its caller. If the connection has no room, hands it to init, which sends it when the caller has
/// read others, and drops it at `deadline`.
fn send_one(
    init: &InitSocket,
    connection: &CallerConnection,
    response: Response,
    content: OutgoingPayload<'_>,
    deadline: Deadline,
    unread_max: u64,
) {
    let sent = send_answer(connection.fd.as_fd(), &response, content, unread_max);
    if !found_no_room(&sent) {
        return report(sent);
    }
    let mut undelivered = Undelivered {
        response: Some(response).into(),
        connection: connection.id.0,
        deadline_mono_ns: deadline.as_ns(),
        ..Undelivered::default()
    };
    // Init always reads. Only descriptors may have to wait, because the kernel bounds them per user.
    let until =
        matches!(content, OutgoingPayload::Segment(_)).then(|| Deadline::after(HAND_OVER_MAX));
    let sent = send_as_is(init.0.as_fd(), &undelivered, content, &[], until);
    if !found_no_room(&sent) {
        return report(sent);
    }
    let message = Overload::Descriptors.to_string();
    let (status, text) = error_answer(&CallError::Internal { message });
    let response = undelivered.response.mut_or_insert_default();
    (response.errno, response.detail) = (status.errno, status.detail.into());
    response.metadata.clear();
    report(send_as_is(init.0.as_fd(), &undelivered, text.outgoing(), &[], None));
}

/// Logs an answer that was lost by a fault of ours. A caller that is gone needs no answer.
fn report(result: Result<(), LocalError>) {
    match result {
        Ok(()) | Err(LocalError::Socket(_)) => {}
        Err(error) => stderr::try_line(&format!("an answer was lost: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd as _;
    use std::rc::Rc;

    use super::*;
    use crate::work::fixture;
    use cwasi_modes::Payload;
    use cwasi_modes::local::{ConnectionId, open_frame};
    use cwasi_sys::segment::Segment;
    use cwasi_sys::seqpacket;
    use cwasi_wire::frame::FRAME_MAX;

    #[test]
    fn callers_of_the_version_before_get_what_they_read() {
        let metadata = [Metadata::of("http.header.location", b"/\xe9".to_vec())];
        let earlier = Request::default();
        let text = metadata_for(&earlier, &metadata);
        assert_eq!(text, [Metadata::of("http.header.location", "/\u{fffd}")]);
        let ours = Request { max_head: 1 << 16, ..Request::default() };
        assert_eq!(metadata_for(&ours, &metadata), metadata);
        let long = [Metadata::of("http.header.x", vec![b'x'; metadata::EARLIER_MAX])];
        assert_eq!((metadata_for(&earlier, &long).len(), metadata_for(&ours, &long).len()), (0, 1));
    }

    #[test]
    fn callers_learn_that_a_response_cannot_be_copied_for_them() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let fd = Rc::new(ours);
        let caller = CallerConnection { fd, ..fixture::connection(1) };
        assert_eq!((caller.id, caller.lends), (ConnectionId(1), false));
        let work = Work::one(
            fixture::request(caller, 7, Payload::Inline(Vec::new())),
            Deadline::after(Duration::from_secs(30)),
        );
        let init = InitSocket(Rc::new(seqpacket::pair().unwrap().0));
        let replies = Replies::new(work, None, init, u64::MAX);
        // A leased segment whose descriptor cannot be read stands for any copy that fails.
        let lent = SegmentPool::new(1 << 20).copy_of(&[1; 100_000]).unwrap();
        let path = format!("/proc/self/fd/{}", lent.as_fd().as_raw_fd());
        let unreadable = OpenOptions::new().write(true).open(path).unwrap().into();
        let token = lent.token().unwrap().try_clone().unwrap();
        let segment = Segment::accept_leased(unreadable, lent.len(), token).unwrap();
        replies.send(&Ok(Payload::Segment(segment)));
        let (mut buffer, now) = (vec![0; FRAME_MAX], Some(Deadline::PASSED));
        let message = seqpacket::receive(theirs.as_fd(), &mut buffer, now).unwrap();
        let bytes = &buffer[..message.len];
        let answer = open_frame::<Response>(bytes, message.descriptors, 0, 1 << 20).unwrap();
        let internal = Errno::Internal.code();
        assert_eq!((answer.envelope.errno, replies.ended.get().0), (internal, internal));
        let text = answer.payload.into_vec().unwrap();
        assert!(String::from_utf8(text).unwrap().contains("the response cannot be sent"));
    }
}
