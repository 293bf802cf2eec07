//! Requests that wait for a worker, in order, each until its deadline or its callers' end. Bounded in number, in bytes
//! of init's memory, and in init's descriptors.

use std::collections::VecDeque;

/// Most bytes of payloads that wait; less in a container with a small memory limit.
const BYTES_MAX: u64 = 64 << 20;

/// What waits.
pub trait Item {
    /// Names a connection that it came over.
    type Connection;

    /// Notes that a connection has ended; true when nobody waits for the item any more.
    fn lose(&mut self, connection: &Self::Connection) -> bool;

    /// What it takes of init while it waits.
    fn load(&self) -> Load;
}

/// What items take of init.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Memory for payloads that came in frames.
    pub bytes: u64,
    /// Descriptors of payloads that came as segments.
    pub descriptors: usize,
}

/// What a queue holds at most.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Items.
    pub items: usize,
    /// What they take.
    pub load: Load,
}

impl Bounds {
    /// For `items` requests in a container with this memory limit, whose init may hold as many descriptors for them.
    pub fn within(items: usize, memory_max: Option<u64>, descriptors: usize) -> Self {
        let bytes = memory_max.map_or(BYTES_MAX, |max| BYTES_MAX.min(max / 8));
        Self { items, load: Load { bytes, descriptors } }
    }
}

/// Why an item does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// As many items wait as may.
    Items,
    /// Those that wait take too many bytes, or too many descriptors.
    Load,
}

/// A bounded queue of `T`.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    bounds: Bounds,
    load: Load,
}

/// An item and how long it may wait.
#[derive(Debug)]
pub struct Waiting<T> {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub deadline: u64,
    /// The request.
    pub item: T,
}

impl<T: Item> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new(bounds: Bounds) -> Self {
        Self { waiting: VecDeque::new(), bounds, load: Load { bytes: 0, descriptors: 0 } }
    }

    /// What it holds at most.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Puts an item at the end.
    ///
    /// # Errors
    /// Gives it back when it does not fit. One that is alone fits whatever it takes.
    pub fn push(&mut self, waiting: Waiting<T>) -> Result<(), (Waiting<T>, Full)> {
        if self.waiting.len() >= self.bounds.items {
            return Err((waiting, Full::Items));
        }
        let load = self.load.and(waiting.item.load());
        let Load { bytes, descriptors } = self.bounds.load;
        let exceeds = load.bytes > bytes || load.descriptors > descriptors;
        if exceeds && !self.waiting.is_empty() {
            return Err((waiting, Full::Load));
        }
        self.load = load;
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Puts back an item that [`Self::pop`] gave, first in line; it has its place whatever the bounds.
    pub fn put_back(&mut self, waiting: Waiting<T>) {
        self.load = self.load.and(waiting.item.load());
        self.waiting.push_front(waiting);
    }

    /// How many items still fit.
    #[must_use]
    pub fn places(&self) -> usize {
        self.bounds.items.saturating_sub(self.waiting.len())
    }

    /// The item that waits longest.
    pub fn pop(&mut self) -> Option<Waiting<T>> {
        self.take_out(0)
    }

    /// Takes out an item whose deadline is not after `now`.
    pub fn pop_expired(&mut self, now: u64) -> Option<Waiting<T>> {
        self.take_out(self.waiting.iter().position(|waiting| waiting.deadline <= now)?)
    }

    fn take_out(&mut self, index: usize) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(index)?;
        self.load = self.load.without(waiting.item.load());
        Some(waiting)
    }

    /// Drops what nobody waits for any more when `connection` has ended.
    pub fn forget(&mut self, connection: &T::Connection) {
        self.waiting.retain_mut(|waiting| !waiting.item.lose(connection));
        let loads = self.waiting.iter().map(|waiting| waiting.item.load());
        self.load = loads.fold(Load::default(), Load::and);
    }

    /// The next deadline.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.waiting.iter().map(|waiting| waiting.deadline).min()
    }

    /// True when nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

impl Load {
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

    impl Item for Letter {
        type Connection = u8;

        fn lose(&mut self, connection: &u8) -> bool {
            self.1 == *connection
        }

        /// As many bytes as its place in the alphabet, and a descriptor when it is a capital.
        fn load(&self) -> Load {
            let bytes = u64::from(self.0.to_ascii_lowercase() as u8 - b'a' + 1);
            Load { bytes, descriptors: usize::from(self.0.is_ascii_uppercase()) }
        }
    }

    fn queue(items: usize) -> Queue<Letter> {
        Queue::new(Bounds { items, load: Load { bytes: 30, descriptors: 2 } })
    }

    fn waiting(connection: u8, deadline: u64, item: char) -> Waiting<Letter> {
        Waiting { deadline, item: Letter(item, connection) }
    }

    #[test]
    fn order_and_bound_hold() {
        let mut queue = queue(2);
        queue.push(waiting(1, 10, 'a')).unwrap();
        queue.push(waiting(1, 10, 'b')).unwrap();
        let (refused, why) = queue.push(waiting(1, 10, 'c')).unwrap_err();
        assert_eq!((refused.item.0, why), ('c', Full::Items));
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
    fn nothing_fits_into_no_places() {
        assert!(queue(0).push(waiting(1, 1, 'a')).is_err());
    }

    #[test]
    fn deadlines_and_gone_callers_leave_from_anywhere() {
        let mut queue = queue(4);
        for (connection, deadline, item) in [(1, 30, 'a'), (2, 10, 'b'), (1, 20, 'c')] {
            queue.push(waiting(connection, deadline, item)).unwrap();
        }
        assert_eq!(queue.next_deadline(), Some(10));
        assert!(queue.pop_expired(9).is_none());
        assert_eq!(queue.pop_expired(10).unwrap().item.0, 'b');
        queue.forget(&1);
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_descriptors_too() {
        let mut queue = queue(100);
        let why = |refused: Result<(), (Waiting<Letter>, Full)>| refused.unwrap_err().1;
        queue.push(waiting(1, 10, 'z')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 10, 'e'))), Full::Load, "31 bytes");
        queue.push(waiting(2, 10, 'd')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 10, 'a'))), Full::Load, "31 bytes");
        assert_eq!(queue.pop().unwrap().item.0, 'z');
        queue.push(waiting(2, 20, 'B')).unwrap();
        queue.push(waiting(1, 20, 'A')).unwrap();
        assert_eq!(why(queue.push(waiting(1, 20, 'C'))), Full::Load, "three descriptors");
        queue.forget(&2);
        queue.push(waiting(1, 20, 'C')).unwrap();
        assert_eq!(queue.pop_expired(20).unwrap().item.0, 'A');
        assert_eq!(queue.pop_expired(20).unwrap().item.0, 'C');
        assert_eq!((queue.load, queue.is_empty()), (Load::default(), true));
    }
}
