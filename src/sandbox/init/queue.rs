//! The queue of sandbox init: requests that wait for a worker, in order of arrival, until their deadline or until their
//! callers are gone. Bounded in number, in bytes of init's memory, and in init's descriptors. Pure.

use std::collections::VecDeque;

use crate::sys::clock::Deadline;

/// Most bytes of payloads that wait; less in a container with a small memory limit.
const BYTES_MAX: u64 = 64 << 20;

/// A request that can wait in the queue.
pub trait QueueItem {
    /// Names a connection that it came over.
    type Connection;

    /// Notes that a connection has ended; true when no caller waits for the item any more.
    fn lose(&mut self, connection: &Self::Connection) -> bool;

    /// The resources of init that it holds while it waits.
    fn load(&self) -> QueueUsage;
}

/// Resources of init that waiting items hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueUsage {
    /// Memory for payloads that came in frames.
    pub bytes: u64,
    /// Descriptors of payloads that came as segments.
    pub descriptors: usize,
}

/// The limits of a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// Items.
    pub items: usize,
    /// The resources that they hold.
    pub load: QueueUsage,
}

impl QueueLimits {
    /// For `items` requests in a container with this memory limit, whose init may hold as many descriptors for them.
    pub fn within(items: usize, memory_max: Option<u64>, descriptors: usize) -> Self {
        let bytes = memory_max.map_or(BYTES_MAX, |max| BYTES_MAX.min(max / 8));
        Self { items, load: QueueUsage { bytes, descriptors } }
    }
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
    waiting: VecDeque<QueueEntry<T>>,
    bounds: QueueLimits,
    load: QueueUsage,
    /// Items that wait for workers which do not run yet: as many more fit.
    extra: usize,
}

/// An item and how long it may wait.
#[derive(Debug)]
pub struct QueueEntry<T> {
    /// It waits no longer.
    pub deadline: Deadline,
    /// The request.
    pub item: T,
}

impl<T: QueueItem> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new(bounds: QueueLimits) -> Self {
        let load = QueueUsage { bytes: 0, descriptors: 0 };
        Self { waiting: VecDeque::new(), bounds, load, extra: 0 }
    }

    /// Lets this many items more wait, for workers that are forked when requests wait for them.
    pub const fn set_extra(&mut self, items: usize) {
        self.extra = items;
    }

    /// The limits.
    #[must_use]
    pub const fn bounds(&self) -> QueueLimits {
        self.bounds
    }

    /// Puts an item at the end.
    ///
    /// # Errors
    /// Gives it back when it does not fit. One that is alone fits whatever it takes.
    pub fn push(&mut self, waiting: QueueEntry<T>) -> Result<(), (QueueEntry<T>, QueueFull)> {
        if self.free_slots() == 0 {
            return Err((waiting, QueueFull::Items));
        }
        let load = self.load.and(waiting.item.load());
        let QueueUsage { bytes, descriptors } = self.bounds.load;
        let exceeds = load.bytes > bytes || load.descriptors > descriptors;
        if exceeds && !self.waiting.is_empty() {
            return Err((waiting, QueueFull::Usage));
        }
        self.load = load;
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Puts an item that [`Self::pop`] returned back to the front, whatever the limits.
    pub fn put_back(&mut self, waiting: QueueEntry<T>) {
        self.load = self.load.and(waiting.item.load());
        self.waiting.push_front(waiting);
    }

    /// How many items still fit.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        self.bounds.items.saturating_add(self.extra).saturating_sub(self.waiting.len())
    }

    /// How many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The item that waits longest.
    pub fn pop(&mut self) -> Option<QueueEntry<T>> {
        self.take_out(0)
    }

    /// Takes out an item whose deadline is not after `now`.
    pub fn pop_expired(&mut self, now: u64) -> Option<QueueEntry<T>> {
        self.take_out(self.waiting.iter().position(|waiting| waiting.deadline.has_passed(now))?)
    }

    fn take_out(&mut self, index: usize) -> Option<QueueEntry<T>> {
        let waiting = self.waiting.remove(index)?;
        self.load = self.load.without(waiting.item.load());
        Some(waiting)
    }

    /// Drops the items whose last caller was on `connection`, which has ended.
    pub fn forget(&mut self, connection: &T::Connection) {
        self.waiting.retain_mut(|waiting| !waiting.item.lose(connection));
        let loads = self.waiting.iter().map(|waiting| waiting.item.load());
        self.load = loads.fold(QueueUsage::default(), QueueUsage::and);
    }

    /// The next deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    /// True when nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl QueueUsage {
    /// Of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            descriptors: self.descriptors.saturating_add(other.descriptors),
        }
    }

    const fn without(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            descriptors: self.descriptors.saturating_sub(other.descriptors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter and who waits for it.
    #[derive(Debug)]
    struct Letter(char, u8);

    impl QueueItem for Letter {
        type Connection = u8;

        fn lose(&mut self, connection: &u8) -> bool {
            self.1 == *connection
        }

        /// As many bytes as its place in the alphabet, and a descriptor when it is a capital.
        fn load(&self) -> QueueUsage {
            let bytes = u64::from(self.0.to_ascii_lowercase() as u8 - b'a' + 1);
            QueueUsage { bytes, descriptors: usize::from(self.0.is_ascii_uppercase()) }
        }
    }

    fn queue(items: usize) -> Queue<Letter> {
        Queue::new(QueueLimits { items, load: QueueUsage { bytes: 30, descriptors: 2 } })
    }

    fn waiting(connection: u8, deadline: u64, item: char) -> QueueEntry<Letter> {
        let deadline = Deadline::at_ns(deadline);
        QueueEntry { deadline, item: Letter(item, connection) }
    }

    #[test]
    fn order_and_bound_hold() {
        let mut queue = queue(2);
        queue.push(waiting(1, 10, 'a')).unwrap();
        queue.push(waiting(1, 10, 'b')).unwrap();
        let (refused, why) = queue.push(waiting(1, 10, 'c')).unwrap_err();
        assert_eq!((refused.item.0, why), ('c', QueueFull::Items));
        let first = queue.pop().unwrap();
        assert_eq!(first.item.0, 'a');
        queue.push(waiting(2, 10, 'd')).unwrap();
        queue.put_back(first);
        assert_eq!(queue.pop().unwrap().item.0, 'a');
        assert_eq!(queue.pop().unwrap().item.0, 'b');
        assert_eq!(queue.pop().unwrap().item.0, 'd');
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
        assert_eq!(queue.pop_expired(10).unwrap().item.0, 'b');
        queue.forget(&1);
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_descriptors_too() {
        let mut queue = queue(100);
        let why = |refused: Result<(), (QueueEntry<Letter>, QueueFull)>| refused.unwrap_err().1;
        queue.push(waiting(1, 10, 'z')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 10, 'e'))), QueueFull::Usage, "31 bytes");
        queue.push(waiting(2, 10, 'd')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 10, 'a'))), QueueFull::Usage, "31 bytes");
        assert_eq!(queue.pop().unwrap().item.0, 'z');
        queue.push(waiting(2, 20, 'B')).unwrap();
        queue.push(waiting(1, 20, 'A')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 20, 'C'))), QueueFull::Usage, "three descriptors");
        queue.forget(&2);
        queue.push(waiting(1, 20, 'C')).unwrap();
        assert_eq!(queue.pop_expired(20).unwrap().item.0, 'A');
        assert_eq!(queue.pop_expired(20).unwrap().item.0, 'C');
        assert_eq!((queue.load, queue.is_empty()), (QueueUsage::default(), true));
    }
}
