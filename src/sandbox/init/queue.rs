//! The queue of sandbox init: requests that wait for a worker, in order of arrival, until their deadline or until their
//! callers are gone. Bounded in number, in bytes of init's memory, and in init's descriptors. Pure.

use std::collections::VecDeque;

use crate::modes::local::ConnectionId;
use crate::sandbox::work::Work;
use crate::sys::clock::Deadline;

use super::load::Load;

/// Most bytes of payloads that wait; less in a container with a small memory limit.
const BYTES_MAX: u64 = 64 << 20;

/// A request that can wait in the queue.
pub trait QueueItem {
    /// Names a connection that it came over.
    type Connection;

    /// It waits no longer.
    fn deadline(&self) -> Deadline;

    /// Notes that a connection has ended; true when no caller waits for the item any more.
    fn lose(&mut self, connection: &Self::Connection) -> bool;

    /// The resources of init that it holds while it waits.
    fn load(&self) -> Load;
}

/// The limits of a queue of `requests` in a container with this memory limit, whose init may hold as many descriptors
/// for them.
pub fn limits(requests: usize, memory_max: Option<u64>, descriptors: usize) -> Load {
    let bytes = memory_max.map_or(BYTES_MAX, |max| BYTES_MAX.min(max / 8));
    Load { requests, bytes, descriptors }
}

/// Why an item does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// The maximum number of items wait.
    Items,
    /// The waiting items would hold too many bytes or descriptors.
    Usage,
}

/// A bounded queue of `T`.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: VecDeque<T>,
    bounds: Load,
    load: Load,
    /// Items that wait for workers which need not run another request first: as many more fit.
    extra: usize,
}

impl<T: QueueItem> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new(bounds: Load) -> Self {
        Self { waiting: VecDeque::new(), bounds, load: Load::default(), extra: 0 }
    }

    /// Lets this many items more wait, for workers that are forked when requests wait for them, or that are free soon.
    pub const fn set_extra(&mut self, items: usize) {
        self.extra = items;
    }

    /// The limits.
    #[must_use]
    pub const fn bounds(&self) -> Load {
        self.bounds
    }

    /// Puts an item at the end.
    ///
    /// # Errors
    /// Gives it back when it does not fit. One that is alone fits whatever it takes.
    pub fn push(&mut self, item: T) -> Result<(), (T, QueueFull)> {
        if self.free_slots() == 0 {
            return Err((item, QueueFull::Items));
        }
        let load = self.load.and(item.load());
        let Load { bytes, descriptors, .. } = self.bounds;
        let exceeds = load.bytes > bytes || load.descriptors > descriptors;
        if exceeds && !self.waiting.is_empty() {
            return Err((item, QueueFull::Usage));
        }
        self.load = load;
        self.waiting.push_back(item);
        Ok(())
    }

    /// Puts an item that [`Self::pop`] returned back to the front, whatever the limits.
    pub fn put_back(&mut self, item: T) {
        self.load = self.load.and(item.load());
        self.waiting.push_front(item);
    }

    /// How many items still fit.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.bounds.requests.saturating_add(self.extra).saturating_sub(self.waiting.len())
    }

    /// How many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The item that waits longest.
    pub fn pop(&mut self) -> Option<T> {
        self.take_out(0)
    }

    /// Takes out an item whose deadline is not after `now`.
    pub fn pop_expired(&mut self, now: u64) -> Option<T> {
        self.take_out(self.waiting.iter().position(|item| item.deadline().has_passed(now))?)
    }

    fn take_out(&mut self, index: usize) -> Option<T> {
        let item = self.waiting.remove(index)?;
        self.load = self.load.without(item.load());
        Some(item)
    }

    /// Drops the items whose last caller was on `connection`, which has ended.
    pub fn forget(&mut self, connection: &T::Connection) {
        self.waiting.retain_mut(|item| !item.lose(connection));
        self.load = self.waiting.iter().map(T::load).fold(Load::default(), Load::and);
    }

    /// The next deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.waiting.iter().map(T::deadline).min()
    }

    /// True when nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl QueueItem for Work {
    type Connection = ConnectionId;

    fn deadline(&self) -> Deadline {
        self.deadline
    }

    fn lose(&mut self, connection: &ConnectionId) -> bool {
        // A complete group stays complete: its handler runs as long as one caller waits for it.
        self.calls().all(|call| call.connection.id == *connection)
    }

    fn load(&self) -> Load {
        self.calls().map(Load::of).fold(Load::default(), Load::and)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter, who waits for it, and until when.
    #[derive(Debug)]
    struct Letter(char, u8, Deadline);

    impl QueueItem for Letter {
        type Connection = u8;

        fn deadline(&self) -> Deadline {
            self.2
        }

        fn lose(&mut self, connection: &u8) -> bool {
            self.1 == *connection
        }

        /// As many bytes as its place in the alphabet, and a descriptor when it is a capital.
        fn load(&self) -> Load {
            let bytes = u64::from(self.0.to_ascii_lowercase() as u8 - b'a' + 1);
            Load { requests: 1, bytes, descriptors: usize::from(self.0.is_ascii_uppercase()) }
        }
    }

    fn queue(items: usize) -> Queue<Letter> {
        Queue::new(Load { requests: items, bytes: 30, descriptors: 2 })
    }

    fn waiting(connection: u8, deadline: u64, letter: char) -> Letter {
        Letter(letter, connection, Deadline::at_ns(deadline))
    }

    #[test]
    fn order_and_bound_hold() {
        let mut queue = queue(2);
        queue.push(waiting(1, 10, 'a')).unwrap();
        queue.push(waiting(1, 10, 'b')).unwrap();
        let (refused, why) = queue.push(waiting(1, 10, 'c')).unwrap_err();
        assert_eq!((refused.0, why), ('c', QueueFull::Items));
        let first = queue.pop().unwrap();
        assert_eq!(first.0, 'a');
        queue.push(waiting(2, 10, 'd')).unwrap();
        queue.put_back(first);
        assert_eq!(queue.pop().unwrap().0, 'a');
        assert_eq!(queue.pop().unwrap().0, 'b');
        assert_eq!(queue.pop().unwrap().0, 'd');
        assert!(queue.is_empty());
    }

    #[test]
    fn nothing_fits_without_slots() {
        assert!(queue(0).push(waiting(1, 1, 'a')).is_err());
    }

    #[test]
    fn deadlines_and_gone_callers_leave_from_anywhere() {
        let mut queue = queue(4);
        for (connection, deadline, item) in [(1, 30, 'a'), (2, 10, 'b'), (1, 20, 'c')] {
            queue.push(waiting(connection, deadline, item)).unwrap();
        }
        assert_eq!(queue.next_deadline(), Some(Deadline::at_ns(10)));
        assert!(queue.pop_expired(9).is_none());
        assert_eq!(queue.pop_expired(10).unwrap().0, 'b');
        queue.forget(&1);
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_descriptors_too() {
        let mut queue = queue(100);
        let why = |refused: Result<(), (Letter, QueueFull)>| refused.unwrap_err().1;
        queue.push(waiting(1, 10, 'z')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 10, 'e'))), QueueFull::Usage, "31 bytes");
        queue.push(waiting(2, 10, 'd')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 10, 'a'))), QueueFull::Usage, "31 bytes");
        assert_eq!(queue.pop().unwrap().0, 'z');
        queue.push(waiting(2, 20, 'B')).unwrap();
        queue.push(waiting(1, 20, 'A')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 20, 'C'))), QueueFull::Usage, "three descriptors");
        queue.forget(&2);
        queue.push(waiting(1, 20, 'C')).unwrap();
        assert_eq!(queue.pop_expired(20).unwrap().0, 'A');
        assert_eq!(queue.pop_expired(20).unwrap().0, 'C');
        assert_eq!((queue.load, queue.is_empty()), (Load::default(), true));
    }
}
