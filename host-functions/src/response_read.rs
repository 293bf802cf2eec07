//! `response_read(handle, ptr, len) -> errno`. Runs in a worker.

use cwasi_abi::Errno;

use crate::{GuestPtr, Host, MapTarget, PagedMemory, Regions};

/// Puts a response at `ptr` and frees its handle; `len` is the room there. With `len` 0 the response is dropped
/// unread. What came as shared memory and fits whole pages is mapped there, anything else copied.
///
/// # Errors
/// [`Errno::BadHandle`]; [`Errno::BadPointer`] and [`Errno::BufferTooSmall`] keep the handle;
/// [`Errno::Internal`] when the bytes cannot be read any more.
pub fn response_read<M: PagedMemory>(
    host: &mut Host,
    memory: &mut M,
    regions: Option<&mut Regions<M>>,
    handle: u32,
    (ptr, len): (GuestPtr, u32),
) -> Result<(), Errno> {
    let response = host.responses.get(handle).ok_or(Errno::BadHandle)?;
    memory.slice(ptr, len)?;
    let mapped = match (regions, response.segment()) {
        (Some(regions), Some(segment)) => regions.map(memory, (ptr, len), segment, MapTarget::Own),
        _ => false,
    };
    if len == 0 || mapped {
        host.responses.remove(handle);
        return Ok(());
    }
    let target = memory.slice_mut(ptr, len)?;
    let wanted = usize::try_from(response.len()).map_err(|_| Errno::BufferTooSmall)?;
    let target = target.get_mut(..wanted).ok_or(Errno::BufferTooSmall)?;
    let copied = response.copy_to(target);
    host.responses.remove(handle);
    copied.map_err(|lost| {
        host.log.log(crate::Level::Error, &host.context, &lost.to_string());
        Errno::Internal
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fake::{FakeMemory, host};
    use crate::{GuestMemory, Response, ResponseLost};
    use cwasi_modes::Payload;

    #[test]
    fn a_response_is_read_once() {
        let mut host = host();
        let mut memory = FakeMemory::of(64);
        let handle = host.responses.insert(Box::new(Payload::Inline(b"answer".to_vec()))).unwrap();
        let mut read =
            |ptr, len| response_read(&mut host, &mut memory, None, handle, (GuestPtr(ptr), len));
        assert_eq!(read(60, 6), Err(Errno::BadPointer));
        assert_eq!(read(u32::MAX, u32::MAX), Err(Errno::BadPointer));
        assert_eq!(read(0, 5), Err(Errno::BufferTooSmall));
        assert_eq!(read(8, 56), Ok(()));
        assert_eq!(read(8, 6), Err(Errno::BadHandle));
        assert_eq!(&memory.bytes()[7..15], b"\0answer\0");
    }

    #[test]
    fn zero_room_drops_the_response() {
        let mut host = host();
        let mut memory = FakeMemory::of(64);
        for body in [&b"answer"[..], b""] {
            let handle = host.responses.insert(Box::new(Payload::Inline(body.to_vec()))).unwrap();
            assert_eq!(
                response_read(&mut host, &mut memory, None, handle, (GuestPtr(64), 0)),
                Ok(())
            );
            assert!(host.responses.get(handle).is_none());
        }
        assert_eq!(
            response_read(&mut host, &mut memory, None, 0, (GuestPtr(0), 0)),
            Err(Errno::BadHandle)
        );
    }

    struct Lost;

    impl Response for Lost {
        fn len(&self) -> u64 {
            4
        }

        fn copy_to(&self, _target: &mut [u8]) -> Result<(), ResponseLost> {
            Err(ResponseLost { reason: "gone".into() })
        }
    }

    #[test]
    fn a_lost_response_is_an_internal_error() {
        let mut host = host();
        let handle = host.responses.insert(Box::new(Lost)).unwrap();
        let mut memory = FakeMemory::of(64);
        let outcome = response_read(&mut host, &mut memory, None, handle, (GuestPtr(0), 4));
        assert_eq!(outcome, Err(Errno::Internal));
        assert!(host.responses.get(handle).is_none());
    }

    proptest! {
        #[test]
        fn nothing_outside_the_response_is_written(ptr: u32, len: u32, small: bool) {
            let (ptr, len) = if small { (ptr % 80, len % 80) } else { (ptr, len) };
            let mut host = host();
            let mut memory = FakeMemory::of(64);
            let handle = host.responses.insert(Box::new(Payload::Inline(vec![7; 5]))).unwrap();
            let outcome = response_read(&mut host, &mut memory, None, handle, (GuestPtr(ptr), len));
            let written = memory.bytes().iter().filter(|byte| **byte == 7).count();
            prop_assert_eq!(written, if outcome.is_ok() && len > 0 { 5 } else { 0 });
        }
    }
}
