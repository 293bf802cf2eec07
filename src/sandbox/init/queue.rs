//! Requests that wait for a worker: bounded, in order, each until its deadline or its caller's end.

use std::collections::VecDeque;

/// A bounded queue of `T`; `C` names the connection that an item came over.
#[derive(Debug)]
pub struct Queue<C, T> {
    waiting: VecDeque<Waiting<C, T>>,
    capacity: usize,
}

/// An item and how long it may wait.
#[derive(Debug)]
pub struct Waiting<C, T> {
    /// Where it came from.
    pub connection: C,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub deadline: u64,
    /// The request.
    pub item: T,
}

impl<C: PartialEq, T> Queue<C, T> {
    /// An empty queue of at most `capacity` items.
    #[must_use]
    pub const fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::new(), capacity }
    }

    /// Puts an item at the end.
    ///
    /// # Errors
    /// Gives it back when the queue is full.
    pub fn push(&mut self, waiting: Waiting<C, T>) -> Result<(), Waiting<C, T>> {
        if self.waiting.len() >= self.capacity {
            return Err(waiting);
        }
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Puts back an item that [`Self::pop`] gave, first in line; it has its place whatever the capacity.
    pub fn put_back(&mut self, waiting: Waiting<C, T>) {
        self.waiting.push_front(waiting);
    }

    /// The item that waits longest.
    pub fn pop(&mut self) -> Option<Waiting<C, T>> {
        self.waiting.pop_front()
    }

    /// Takes out an item whose deadline is not after `now`.
    pub fn pop_expired(&mut self, now: u64) -> Option<Waiting<C, T>> {
        let index = self.waiting.iter().position(|waiting| waiting.deadline <= now)?;
        self.waiting.remove(index)
    }

    /// Drops everything that came over `connection`.
    pub fn forget(&mut self, connection: &C) {
        self.waiting.retain(|waiting| waiting.connection != *connection);
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

    fn waiting(connection: u8, deadline: u64, item: char) -> Waiting<u8, char> {
        Waiting { connection, deadline, item }
    }

    #[test]
    fn order_and_bound_hold() {
        let mut queue = Queue::new(2);
        queue.push(waiting(1, 10, 'a')).unwrap();
        queue.push(waiting(1, 10, 'b')).unwrap();
        assert_eq!(queue.push(waiting(1, 10, 'c')).unwrap_err().item, 'c');
        let first = queue.pop().unwrap();
        assert_eq!(first.item, 'a');
        queue.push(waiting(2, 10, 'd')).unwrap();
        queue.put_back(first);
        assert_eq!(queue.pop().unwrap().item, 'a');
        assert_eq!(queue.pop().unwrap().item, 'b');
        assert_eq!(queue.pop().unwrap().item, 'd');
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
        assert_eq!(queue.pop_expired(10).unwrap().item, 'b');
        queue.forget(&1);
        assert_eq!(queue.next_deadline(), None);
    }
}
