//! The host functions with Rust's types: for guests whose bytes the engine has copied already. Runs in a worker.
//!
//! The functions that read linear memory check their arguments and then do the same.

use cwasi_abi::{Errno, LOG_MESSAGE_MAX, PAYLOAD_MAX, TARGET_MAX};

use crate::calls::InFlight;
use crate::dispatch_wait::WaitSet;
use crate::text::lossy_text;
use crate::{Host, Level, Response, StartedCall, boxed};
use cwasi_modes::causes::{Invalid, InvalidName, TooLarge, Unavailable};
use cwasi_modes::{CallError, CallResult, OutgoingPayload, Payload};
use cwasi_sys::clock::Deadline;
use cwasi_wire::envelope::Join;

impl Host {
    /// Calls `target` and waits for its end.
    ///
    /// # Errors
    /// The call's.
    pub fn call(&mut self, target: &str, payload: OutgoingPayload<'_>) -> CallResult {
        check_target(target)?;
        self.check_call(payload.len())?;
        self.call_checked(target, payload)
    }

    /// Starts a call; [`Self::wait_for`] takes its handle.
    ///
    /// # Errors
    /// The call was not started: [`Errno::NotAvailable`] outside an invocation, [`Errno::TooManyHandles`]. Every other
    /// error is the call's end.
    pub fn start_call(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        join: Option<Join>,
    ) -> Result<u32, Errno> {
        self.check_start()?;
        let checked = check_target(target).map_err(CallError::from);
        let call = match checked.and_then(|()| self.check_call(payload.len())) {
            Ok(()) => self.start_checked(target, payload, join)?,
            Err(error) => InFlight::Ended(Err(error)),
        };
        Ok(self.calls.insert(call))
    }

    /// Checks that a call can be started now.
    ///
    /// # Errors
    /// As [`Self::start_call`].
    pub fn check_start(&self) -> Result<(), Errno> {
        if !self.running {
            return Err(Errno::NotAvailable);
        }
        if self.calls.is_full() {
            return Err(Errno::TooManyHandles);
        }
        Ok(())
    }

    /// Keeps the end of a call for [`Self::wait_for`], which takes its handle. [`Self::check_start`] has allowed it.
    pub fn keep_ended(&mut self, ended: CallResult) -> u32 {
        self.calls.insert(InFlight::Ended(ended.map(boxed)))
    }

    /// Index of the embedded module that serves a call of `target`; `None` if another mode does ([`Self::call`]). The
    /// context is then that of the callee `name` gives, and [`Self::end_embedded`] follows unless the guest traps.
    ///
    /// # Errors
    /// The call may not be made.
    pub fn begin_embedded<'a>(
        &mut self,
        target: &str,
        length: u64,
        name: impl FnOnce(usize) -> &'a str,
    ) -> Result<Option<usize>, CallError> {
        check_target(target)?;
        self.check_call(length)?;
        let callee = self.dispatch.embedded(target, length, self.context.deadline)?;
        if let Some(callee) = callee {
            self.enter_embedded(name(callee));
        }
        Ok(callee)
    }

    /// Ends the call of [`Self::begin_embedded`].
    ///
    /// # Errors
    /// The call's, or that the response is above the limit.
    pub fn end_embedded(&mut self, ended: CallResult) -> CallResult {
        self.leave_embedded();
        let length = ended.as_ref().ok().map(Payload::len);
        let within_limits = self.dispatch.embedded_ended(length);
        ended.and_then(|response| within_limits.map(|()| response))
    }

    /// Waits until one of the calls `handles` has ended, at most until `until`. Returns its index and end, and frees
    /// its handle.
    ///
    /// # Errors
    /// No handle changes: [`Errno::Timeout`], [`Errno::InvalidArgument`] without a handle, [`Errno::BadHandle`].
    pub fn wait_for(
        &mut self,
        handles: &[u32],
        until: Option<Deadline>,
    ) -> Result<(usize, CallResult), Errno> {
        if handles.is_empty() {
            return Err(Errno::InvalidArgument);
        }
        let wanted = WaitSet::of(self, handles.iter().copied())?;
        let (index, ended) = wanted.first_ended(self, until).ok_or(Errno::Timeout)?;
        Ok((index, ended.and_then(|response| received(&*response))))
    }

    /// Drops a call, which may still run.
    ///
    /// # Errors
    /// [`Errno::BadHandle`].
    pub fn forget(&mut self, handle: u32) -> Result<(), Errno> {
        match self.calls.remove(handle).ok_or(Errno::BadHandle)? {
            InFlight::Pending(ticket) => self.dispatch.forget(ticket),
            InFlight::Ended(_) => {}
        }
        Ok(())
    }

    /// Stores a message for `target`.
    ///
    /// # Errors
    /// The message is not stored, or it is unknown whether it is.
    pub fn emit(&mut self, target: &str, payload: &[u8]) -> Result<(), CallError> {
        check_target(target)?;
        self.check_call(payload.len() as u64)?;
        self.emit_checked(target, payload)
    }

    /// Logs a message, cut at [`LOG_MESSAGE_MAX`].
    pub fn log(&mut self, level: Level, message: &str) {
        let text = lossy_text(message.as_bytes(), LOG_MESSAGE_MAX);
        self.log.log(level, &self.context, &text);
    }

    /// Checks that a call with a payload of `length` bytes can be made.
    pub(crate) fn check_call(&self, length: u64) -> Result<(), CallError> {
        if length > PAYLOAD_MAX {
            return Err(TooLarge::Possible { what: "payload", length }.into());
        }
        if !self.running {
            return Err(Unavailable::NoInvocation.into());
        }
        Ok(())
    }

    pub(crate) fn call_checked(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
    ) -> CallResult {
        self.called = true;
        let response = self.dispatch.call(target, payload, self.context.deadline)?;
        let length = response.len();
        if length > PAYLOAD_MAX {
            return Err(TooLarge::Possible { what: "response", length }.into());
        }
        Ok(response)
    }

    pub(crate) fn start_checked(
        &mut self,
        target: &str,
        payload: OutgoingPayload<'_>,
        join: Option<Join>,
    ) -> Result<InFlight, Errno> {
        self.called = true;
        let started = self.dispatch.start(target, payload, join, self.context.deadline);
        Ok(match started.map_err(|_too_many| Errno::TooManyHandles)? {
            StartedCall::Pending(ticket) => InFlight::Pending(ticket),
            StartedCall::Ended(ended) => InFlight::Ended(ended.map(boxed)),
        })
    }

    pub(crate) fn emit_checked(&mut self, target: &str, payload: &[u8]) -> Result<(), CallError> {
        self.called = true;
        self.dispatch.emit(target, payload, self.context.deadline)
    }
}

/// Checks that `target` can be a function's name.
fn check_target(target: &str) -> Result<(), Invalid> {
    if target.is_empty() {
        return Err(InvalidName::Empty.into());
    }
    if target.len() > TARGET_MAX {
        let start = lossy_text(target.as_bytes(), TARGET_MAX);
        return Err(InvalidName::Long { length: target.len(), start }.into());
    }
    Ok(())
}

/// A kept response as the payload that it is, or a copy.
fn received(response: &dyn Response) -> CallResult {
    if let Some(segment) = response.segment() {
        return Ok(Payload::Segment(segment.clone()));
    }
    let internal = |message: String| CallError::Internal { message };
    let len = usize::try_from(response.len()).map_err(|error| internal(error.to_string()))?;
    let mut bytes = vec![0; len];
    response.copy_to(&mut bytes).map_err(|error| internal(error.to_string()))?;
    Ok(Payload::Inline(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;
    use crate::fake::host;

    fn running() -> Host {
        let mut host = host();
        host.begin(Context::default());
        host
    }

    #[test]
    fn calls_are_checked_and_their_ends_are_payloads() {
        let mut host = running();
        let payload = OutgoingPayload::Bytes(b"abc");
        assert_eq!(host.call("reverse", payload).unwrap().into_vec().unwrap(), b"cba");
        for name in ["", &"x".repeat(TARGET_MAX + 1)] {
            let error = host.call(name, payload).unwrap_err();
            assert_eq!(error.errno(), Errno::InvalidArgument);
        }
        let error = host.call("nobody", payload).unwrap_err();
        assert_eq!(error.errno(), Errno::NoSuchFunction);
        host.end();
        assert_eq!(host.call("reverse", payload).unwrap_err().errno(), Errno::NotAvailable);
    }

    #[test]
    fn a_started_call_is_reported_once() {
        let mut host = running();
        let reverse = host.start_call("reverse", OutgoingPayload::Bytes(b"ab"), None).unwrap();
        let nobody = host.start_call("nobody", OutgoingPayload::EMPTY, None).unwrap();
        let (index, ended) = host.wait_for(&[reverse, nobody], None).unwrap();
        assert_eq!((index, ended.unwrap().into_vec().unwrap()), (0, b"ba".to_vec()));
        let again = host.wait_for(&[reverse], None).unwrap_err();
        assert_eq!(again, Errno::BadHandle);
        let (_, ended) = host.wait_for(&[nobody], None).unwrap();
        assert_eq!(ended.unwrap_err().errno(), Errno::NoSuchFunction);
        assert_eq!(host.wait_for(&[], None).unwrap_err(), Errno::InvalidArgument);
        assert_eq!(host.forget(nobody), Err(Errno::BadHandle));
    }
}
