//! Requests that wait for a worker: bounded, in order, each until its deadline or its callers' end.

use std::collections::VecDeque;

/// What waits; `C` names a connection that it came over.
pub trait Item<C> {
    /// Notes that a connection has ended; true when nobody waits for the item any more.
    fn lose(&mut self, connection: &C) -> bool;
}

/// A bounded queue of `T`.
#[derive(Debug)]
pub struct Queue<T> {
    waiting: VecDeque<Waiting<T>>,
    capacity: usize,
}

/// An item and how long it may wait.
#[derive(Debug)]
pub struct Waiting<T> {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub deadline: u64,
    /// The request.
    pub item: T,
}

impl<T> Queue<T> {
    /// An empty queue of at most `capacity` items.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::new(), capacity }
    }

    /// Puts an item at the end.
    ///
    /// # Errors
    /// Gives it back when the queue is full.
    pub fn push(&mut self, waiting: Waiting<T>) -> Result<(), Waiting<T>> {
        if self.waiting.len() >= self.capacity {
            return Err(waiting);
        }
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Puts back an item that [`Self::pop`] gave, first in line; it has its place whatever the capacity.
    pub fn put_back(&mut self, waiting: Waiting<T>) {
        self.waiting.push_front(waiting);
    }

    /// How many items still fit.
    #[must_use]
    pub fn places(&self) -> usize {
        self.capacity.saturating_sub(self.waiting.len())
    }

    /// The item that waits longest.
    pub fn pop(&mut self) -> Option<Waiting<T>> {
        self.waiting.pop_front()
    }

    /// Takes out an item whose deadline is not after `now`.
    pub fn pop_expired(&mut self, now: u64) -> Option<Waiting<T>> {
        let index = self.waiting.iter().position(|waiting| waiting.deadline <= now)?;
        self.waiting.remove(index)
    }

    /// Drops what nobody waits for any more when `connection` has ended.
    pub fn forget<C>(&mut self, connection: &C)
    where
        T: Item<C>,
    {
        self.waiting.retain_mut(|waiting| !waiting.item.lose(connection));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter and who waits for it.
    #[derive(Debug)]
    struct Letter(char, u8);

    impl Item<u8> for Letter {
        fn lose(&mut self, connection: &u8) -> bool {
            self.1 == *connection
        }
    }

    fn waiting(connection: u8, deadline: u64, item: char) -> Waiting<Letter> {
        Waiting { deadline, item: Letter(item, connection) }
    }

    #[test]
    fn order_and_bound_hold() {
        let mut queue = Queue::new(2);
        queue.push(waiting(1, 10, 'a')).unwrap();
        queue.push(waiting(1, 10, 'b')).unwrap();
        assert_eq!(queue.push(waiting(1, 10, 'c')).unwrap_err().item.0, 'c');
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
        assert!(Queue::new(0).push(waiting(1, 1, 'a')).is_err());
    }

    #[test]
    fn deadlines_and_gone_callers_leave_from_anywhere() {
        let mut queue = Queue::new(4);
        for (connection, deadline, item) in [(1, 30, 'a'), (2, 10, 'b'), (1, 20, 'c')] {
            queue.push(waiting(connection, deadline, item)).unwrap();
        }
        assert_eq!(queue.next_deadline(), Some(10));
        assert!(queue.pop_expired(9).is_none());
        assert_eq!(queue.pop_expired(10).unwrap().item.0, 'b');
        queue.forget(&1);
        assert_eq!(queue.next_deadline(), None);
    }
}
