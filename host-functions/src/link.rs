//! Buffers between a module and its embedded module: `link_offer`, `link_read`, `link_return`, `link_result`. Runs in
//! a worker.
//!
//! Linked modules have memories of their own. The caller *offers* ranges of its memory and calls. The callee *reads*
//! them into its memory and *returns* a range of that. The caller reads the *result*. The host stores only ranges;
//! the reading side copies the bytes, once per direction.
//!
//! Nested calls have a frame each, so a library can call a library.

use std::time::{Duration, Instant};

use cwasi_abi::{Errno, LINK_ARGUMENTS_MAX};

use crate::{GuestMemory, GuestPtr};

/// Deepest nesting of linked calls. Embedding has far fewer levels and cannot recurse.
pub const LINK_DEPTH_MAX: usize = 64;

/// The linear memory of another module of the same VM.
pub trait OtherMemory: Clone + PartialEq {
    /// Copies the bytes at `ptr` to `target`, which belongs to another memory.
    ///
    /// # Errors
    /// [`Errno::BadPointer`] if a byte lies outside.
    fn copy_to(&self, ptr: GuestPtr, target: &mut [u8]) -> Result<(), Errno>;
}

#[derive(Debug)]
struct LinkedRange<M> {
    memory: M,
    ptr: GuestPtr,
    len: u32,
}

#[derive(Debug)]
struct LinkedFrame<M> {
    function: u32,
    arguments: Vec<LinkedRange<M>>,
    result: Option<LinkedRange<M>>,
    started: Instant,
}

/// The linked calls of one VM.
#[derive(Debug)]
pub struct LinkedCalls<M> {
    /// Ranges that the running module has offered to its next call.
    offered: Vec<LinkedRange<M>>,
    frames: Vec<LinkedFrame<M>>,
    /// Result of the running module's last call.
    result: Option<LinkedRange<M>>,
}

/// An ended linked call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkEnded {
    /// The function's number.
    pub function: u32,
    /// Bytes offered.
    pub request_bytes: u64,
    /// Bytes returned.
    pub response_bytes: u64,
    /// From the caller's call to its end.
    pub latency: Duration,
}

impl<M> Default for LinkedCalls<M> {
    fn default() -> Self {
        Self { offered: Vec::new(), frames: Vec::new(), result: None }
    }
}

impl<M> LinkedCalls<M> {
    /// Begins a call of `function`.
    ///
    /// # Errors
    /// [`Errno::Overloaded`] when calls are nested too deeply.
    pub fn enter(&mut self, function: u32) -> Result<(), Errno> {
        if self.frames.len() >= LINK_DEPTH_MAX {
            return Err(Errno::Overloaded);
        }
        let arguments = std::mem::take(&mut self.offered);
        self.result = None;
        self.frames.push(LinkedFrame {
            function,
            arguments,
            result: None,
            started: Instant::now(),
        });
        Ok(())
    }

    /// Ends the call that began last; `None` if there was none.
    pub fn leave(&mut self) -> Option<LinkEnded> {
        let frame = self.frames.pop()?;
        self.offered = frame.arguments;
        let request_bytes = self.offered.drain(..).map(|range| u64::from(range.len)).sum();
        self.result = frame.result;
        Some(LinkEnded {
            function: frame.function,
            request_bytes,
            response_bytes: self.result.as_ref().map_or(0, |range| u64::from(range.len)),
            latency: frame.started.elapsed(),
        })
    }

    /// Numbers of the running functions, outermost first.
    pub fn running(&self) -> impl Iterator<Item = u32> {
        self.frames.iter().map(|frame| frame.function)
    }

    /// Drops the last result, because its memory is about to change.
    pub fn forget_result(&mut self) {
        self.result = None;
    }
}

/// `link_offer(ptr, len) -> errno`: adds an argument to the next call; `own` is the caller's memory.
///
/// # Errors
/// [`Errno::BadPointer`]; [`Errno::InvalidArgument`] beyond [`LINK_ARGUMENTS_MAX`].
pub fn link_offer<M>(
    links: &mut LinkedCalls<M>,
    memory: &impl GuestMemory,
    own: M,
    ptr: GuestPtr,
    len: u32,
) -> Result<(), Errno> {
    memory.slice(ptr, len)?;
    if links.offered.len() >= LINK_ARGUMENTS_MAX {
        return Err(Errno::InvalidArgument);
    }
    links.offered.push(LinkedRange { memory: own, ptr, len });
    Ok(())
}

/// `link_read(index, ptr, capacity, len_out) -> errno`: copies an argument of the running call to `ptr`.
///
/// # Errors
/// [`Errno::BadPointer`]; [`Errno::NotAvailable`] outside a linked call; [`Errno::InvalidArgument`] when
/// there is no such argument; [`Errno::BufferTooSmall`] with the needed length written.
pub fn link_read<M: OtherMemory>(
    links: &LinkedCalls<M>,
    memory: &mut impl GuestMemory,
    own: &M,
    index: u32,
    target: (GuestPtr, u32),
    len_out: GuestPtr,
) -> Result<(), Errno> {
    let frame = links.frames.last().ok_or(Errno::NotAvailable)?;
    let index = usize::try_from(index).map_err(|_| Errno::InvalidArgument)?;
    let argument = frame.arguments.get(index).ok_or(Errno::InvalidArgument)?;
    copy(argument, memory, own, target, len_out)
}

/// `link_return(ptr, len) -> errno`: sets the running call's result; the bytes stay there until the next call into
/// this module.
///
/// # Errors
/// [`Errno::BadPointer`]; [`Errno::NotAvailable`] outside a linked call.
pub fn link_return<M>(
    links: &mut LinkedCalls<M>,
    memory: &impl GuestMemory,
    own: M,
    ptr: GuestPtr,
    len: u32,
) -> Result<(), Errno> {
    memory.slice(ptr, len)?;
    let frame = links.frames.last_mut().ok_or(Errno::NotAvailable)?;
    frame.result = Some(LinkedRange { memory: own, ptr, len });
    Ok(())
}

/// `link_result(ptr, capacity, len_out) -> errno`: copies the last call's result to `ptr`.
///
/// # Errors
/// [`Errno::BadPointer`]; [`Errno::NotAvailable`] when it returned nothing; [`Errno::BufferTooSmall`] with
/// the needed length written.
pub fn link_result<M: OtherMemory>(
    links: &LinkedCalls<M>,
    memory: &mut impl GuestMemory,
    own: &M,
    target: (GuestPtr, u32),
    len_out: GuestPtr,
) -> Result<(), Errno> {
    let result = links.result.as_ref().ok_or(Errno::NotAvailable)?;
    copy(result, memory, own, target, len_out)
}

fn copy<M: OtherMemory>(
    range: &LinkedRange<M>,
    memory: &mut impl GuestMemory,
    own: &M,
    (ptr, capacity): (GuestPtr, u32),
    len_out: GuestPtr,
) -> Result<(), Errno> {
    // Refused, because the two ranges could overlap.
    if range.memory == *own {
        return Err(Errno::InvalidArgument);
    }
    memory.slice(ptr, capacity)?;
    memory.write(len_out, &range.len.to_le_bytes())?;
    if capacity < range.len {
        return Err(Errno::BufferTooSmall);
    }
    range.memory.copy_to(range.ptr, memory.slice_mut(ptr, range.len)?)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    #[derive(Clone)]
    struct Shared(Rc<RefCell<Vec<u8>>>);

    impl PartialEq for Shared {
        fn eq(&self, other: &Self) -> bool {
            Rc::ptr_eq(&self.0, &other.0)
        }
    }

    impl OtherMemory for Shared {
        fn copy_to(&self, ptr: GuestPtr, target: &mut [u8]) -> Result<(), Errno> {
            let bytes = self.0.borrow();
            let at = ptr.0 as usize;
            target.copy_from_slice(bytes.get(at..at + target.len()).ok_or(Errno::BadPointer)?);
            Ok(())
        }
    }

    /// A guest's memory while it calls the host.
    struct Own(Vec<u8>);

    impl GuestMemory for Own {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    struct Guest {
        shared: Shared,
    }

    impl Guest {
        fn new(fill: u8) -> Self {
            Self { shared: Shared(Rc::new(RefCell::new(vec![fill; 64]))) }
        }

        fn with<T>(&self, run: impl FnOnce(&mut Own, Shared) -> T) -> T {
            let mut own = Own(self.shared.0.borrow().clone());
            let result = run(&mut own, self.shared.clone());
            *self.shared.0.borrow_mut() = own.0;
            result
        }

        fn offer(&self, links: &mut LinkedCalls<Shared>, ptr: u32, len: u32) -> Result<(), Errno> {
            self.with(|memory, own| link_offer(links, memory, own, GuestPtr(ptr), len))
        }

        fn read(
            &self,
            links: &LinkedCalls<Shared>,
            index: u32,
            capacity: u32,
        ) -> Result<(), Errno> {
            self.with(|memory, own| {
                let target = (GuestPtr(8), capacity);
                link_read(links, memory, &own, index, target, GuestPtr(0))
            })
        }

        fn result(&self, links: &LinkedCalls<Shared>, capacity: u32) -> Result<(), Errno> {
            self.with(|memory, own| {
                link_result(links, memory, &own, (GuestPtr(8), capacity), GuestPtr(0))
            })
        }

        fn give(&self, links: &mut LinkedCalls<Shared>, ptr: u32, len: u32) -> Result<(), Errno> {
            self.with(|memory, own| link_return(links, memory, own, GuestPtr(ptr), len))
        }

        fn bytes(&self) -> Vec<u8> {
            self.shared.0.borrow().clone()
        }
    }

    #[test]
    fn a_nested_call_has_arguments_and_result_of_its_own() {
        let (caller, library, inner) = (Guest::new(1), Guest::new(2), Guest::new(3));
        let mut links = LinkedCalls::default();
        caller.offer(&mut links, 40, 3).unwrap();
        caller.offer(&mut links, 0, 0).unwrap();
        links.enter(5).unwrap();
        assert_eq!(library.read(&links, 0, 2), Err(Errno::BufferTooSmall));
        assert_eq!(library.bytes()[..9], [3, 0, 0, 0, 2, 2, 2, 2, 2], "the length, and no byte");
        library.offer(&mut links, 40, 4).unwrap();
        links.enter(6).unwrap();
        assert_eq!(links.running().collect::<Vec<_>>(), [5, 6]);
        assert_eq!(inner.read(&links, 0, 10), Ok(()));
        assert_eq!(inner.bytes()[8..13], [2, 2, 2, 2, 3]);
        inner.give(&mut links, 40, 5).unwrap();
        let ended = links.leave().unwrap();
        assert_eq!((ended.function, ended.request_bytes, ended.response_bytes), (6, 4, 5));
        assert_eq!(library.result(&links, 5), Ok(()));
        assert_eq!(library.bytes()[8..14], [3, 3, 3, 3, 3, 2]);
        assert_eq!(library.read(&links, 0, 3), Ok(()), "its own arguments are still there");
        assert_eq!(library.bytes()[8..11], [1, 1, 1]);
        let ended = links.leave().unwrap();
        assert_eq!((ended.function, ended.request_bytes, ended.response_bytes), (5, 3, 0));
        assert_eq!(caller.result(&links, 5), Err(Errno::NotAvailable), "it returned nothing");
        assert_eq!(links.leave(), None);
    }

    #[test]
    fn misuse_is_an_errno() {
        let (caller, library) = (Guest::new(1), Guest::new(2));
        let mut links = LinkedCalls::default();
        assert_eq!(library.read(&links, 0, 1), Err(Errno::NotAvailable));
        assert_eq!(library.give(&mut links, 0, 1), Err(Errno::NotAvailable));
        assert_eq!(caller.offer(&mut links, 60, 5), Err(Errno::BadPointer));
        for _ in 0..LINK_ARGUMENTS_MAX {
            caller.offer(&mut links, 0, 64).unwrap();
        }
        assert_eq!(caller.offer(&mut links, 0, 1), Err(Errno::InvalidArgument));
        links.enter(0).unwrap();
        assert_eq!(library.read(&links, 16, 1), Err(Errno::InvalidArgument));
        assert_eq!(library.read(&links, 0, 57), Err(Errno::BadPointer), "there is no room for 57");
        assert_eq!(caller.read(&links, 0, 1), Err(Errno::InvalidArgument), "its own memory");
        assert_eq!(library.give(&mut links, 64, 1), Err(Errno::BadPointer));
        while links.enter(0).is_ok() {}
        assert_eq!(links.running().count(), LINK_DEPTH_MAX);
    }
}
