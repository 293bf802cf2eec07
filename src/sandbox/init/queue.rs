//! The queue of sandbox init: requests that wait for a worker, in order of arrival, until their deadline or until their
//! callers are gone. Bounded in number, in bytes of init's memory, and in init's descriptors. Pure.

use std::collections::VecDeque;

use crate::work::Work;
use cwasi_modes::local::ConnectionId;
use cwasi_modes::local::load::Load;
use cwasi_sys::clock::Deadline;
use cwasi_wire::metadata;

/// Most bytes of payloads that wait; less in a container with a small memory limit.
const BYTES_MAX: u64 = 64 << 20;

/// The limits of a queue of `messages` in a container with this memory limit, whose init may hold as many descriptors
/// for them.
pub fn limits(messages: usize, memory_max: Option<u64>, descriptors: usize) -> Load {
    let bytes = memory_max.map_or(BYTES_MAX, |max| BYTES_MAX.min(max / 8));
    Load { messages, bytes, descriptors }
}

/// Why an item does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFull {
    /// The maximum number of items wait.
    Items,
    /// The waiting items would hold too many bytes or descriptors.
    Usage,
}

#[derive(Debug)]
pub struct Queue {
    waiting: VecDeque<Work>,
    pub bounds: Load,
    load: Load,
    /// No item's deadline is before this: what init asks about at each of its turns.
    earliest: Option<Deadline>,
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new(bounds: Load) -> Self {
        Self { waiting: VecDeque::new(), bounds, load: Load::default(), earliest: None }
    }

    /// Puts an item at the end, with room for `extra` items more than the limits say.
    ///
    /// # Errors
    /// Gives it back when it does not fit. One that is alone fits whatever it takes.
    pub fn push(&mut self, item: Work, extra: usize) -> Result<(), (Work, QueueFull)> {
        if self.free_slots(extra) == 0 {
            return Err((item, QueueFull::Items));
        }
        let load = self.load.and(load_of(&item));
        let Load { bytes, descriptors, .. } = self.bounds;
        let exceeds = load.bytes > bytes || load.descriptors > descriptors;
        if exceeds && !self.waiting.is_empty() {
            return Err((item, QueueFull::Usage));
        }
        self.load = load;
        self.note(item.deadline);
        self.waiting.push_back(item);
        Ok(())
    }

    /// Puts an item that [`Self::pop`] returned back to the front, whatever the limits.
    pub fn put_back(&mut self, item: Work) {
        self.load = self.load.and(load_of(&item));
        self.note(item.deadline);
        self.waiting.push_front(item);
    }

    /// Another item is about to wait, until this deadline.
    fn note(&mut self, deadline: Deadline) {
        self.earliest = self.next_deadline().map_or(Some(deadline), |it| Some(it.min(deadline)));
    }

    /// How many items still fit, with room for `extra` more. Those wait for workers that are free soon, or that are
    /// forked when requests wait for them.
    #[must_use]
    pub fn free_slots(&self, extra: usize) -> usize {
        self.bounds.messages.saturating_add(extra).saturating_sub(self.waiting.len())
    }

    /// How many items wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The item that waits longest.
    pub fn pop(&mut self) -> Option<Work> {
        let item = self.waiting.pop_front()?;
        self.load = self.load.without(load_of(&item));
        Some(item)
    }

    /// Takes out the items whose deadlines are not after `now`.
    pub fn take_expired(&mut self, now: u64) -> VecDeque<Work> {
        if self.earliest.is_none_or(|earliest| !earliest.has_passed(now)) {
            return VecDeque::new();
        }
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let late: VecDeque<_>;
        (late, self.waiting) = waiting.partition(|item| item.deadline.has_passed(now));
        self.load = self.load.without(Load::sum(late.iter().map(load_of)));
        self.earliest = self.waiting.iter().map(|item| item.deadline).min();
        late
    }

    /// Drops the items whose last caller was on `connection`, which has ended.
    pub fn forget(&mut self, connection: ConnectionId) {
        // A complete group stays complete: its handler runs as long as one caller waits for it.
        self.waiting.retain(|item| item.calls().any(|call| call.connection.id != connection));
        self.load = Load::sum(self.waiting.iter().map(load_of));
    }

    /// When to ask again for expired items.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Deadline> {
        self.earliest.filter(|_| !self.is_empty())
    }

    /// True when nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// The resources of init that work holds while it waits.
fn load_of(work: &Work) -> Load {
    Load::sum(work.calls().map(|call| {
        let load = Load::of(&call.payload);
        Load { bytes: load.bytes + metadata::length(&call.request.metadata) as u64, ..load }
    }))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::work::fixture;
    use cwasi_modes::Payload;
    use cwasi_sys::segment::Segment;
    use cwasi_wire::envelope::Metadata;

    #[test]
    fn heads_are_memory_of_init_too() {
        let payload = Payload::Inline(vec![7; 5]);
        let mut request = fixture::request(fixture::connection(1), 1, payload);
        request.request.metadata = vec![Metadata::of("key", vec![b'v'; 1000])];
        let work = Work::one(request, Deadline::NEVER);
        assert_eq!(
            load_of(&work).bytes,
            5 + metadata::length(&work.first().request.metadata) as u64
        );
        assert!(load_of(&work).bytes > 1000);
    }

    fn queue(items: usize) -> Queue {
        Queue::new(Load { messages: items, bytes: 30, descriptors: 2 })
    }

    /// A request with a letter for its id. It has as many bytes as the letter's place in the alphabet, or a segment
    /// when the letter is a capital.
    fn waiting(connection: u64, deadline: u64, letter: char) -> Work {
        let id = letter as u8;
        let payload = if letter.is_ascii_uppercase() {
            Payload::Segment(Segment::copy_of(&[id]).unwrap())
        } else {
            Payload::Inline(vec![0; usize::from(id - b'a' + 1)])
        };
        let call = fixture::request(fixture::connection(connection), id, payload);
        Work::one(call, Deadline::at_ns(deadline))
    }

    fn letter(work: &Work) -> char {
        char::from(work.first().id.0[0])
    }

    /// The letters of the items that expire at `now`.
    fn expired(queue: &mut Queue, now: u64) -> String {
        queue.take_expired(now).iter().map(letter).collect()
    }

    #[test]
    fn order_and_bound_hold() {
        let mut queue = queue(2);
        queue.push(waiting(1, 10, 'a'), 0).unwrap();
        queue.push(waiting(1, 10, 'b'), 0).unwrap();
        let (refused, why) = queue.push(waiting(1, 10, 'c'), 0).unwrap_err();
        assert_eq!((letter(&refused), why), ('c', QueueFull::Items));
        let first = queue.pop().unwrap();
        assert_eq!(letter(&first), 'a');
        queue.push(waiting(2, 10, 'd'), 0).unwrap();
        queue.put_back(first);
        assert_eq!(letter(&queue.pop().unwrap()), 'a');
        assert_eq!(letter(&queue.pop().unwrap()), 'b');
        assert_eq!(letter(&queue.pop().unwrap()), 'd');
        assert!(queue.is_empty());
    }

    #[test]
    fn nothing_fits_without_slots() {
        assert!(queue(0).push(waiting(1, 1, 'a'), 0).is_err());
    }

    #[test]
    fn workers_that_were_free_before_make_no_room_now() {
        let mut queue = queue(1);
        queue.push(waiting(1, 1, 'a'), 2).unwrap();
        queue.push(waiting(1, 1, 'b'), 2).unwrap();
        assert_eq!([0, 1, 2].map(|extra| queue.free_slots(extra)), [0, 0, 1]);
        assert!(queue.push(waiting(1, 1, 'c'), 1).is_err());
        queue.pop().unwrap();
        assert!(queue.push(waiting(1, 1, 'c'), 0).is_err());
    }

    #[test]
    fn deadlines_and_gone_callers_leave_from_anywhere() {
        let mut queue = queue(4);
        for (connection, deadline, item) in [(1, 30, 'a'), (2, 10, 'b'), (1, 20, 'c')] {
            queue.push(waiting(connection, deadline, item), 0).unwrap();
        }
        assert_eq!(queue.next_deadline(), Some(Deadline::at_ns(10)));
        assert_eq!(expired(&mut queue, 9), "");
        assert_eq!(expired(&mut queue, 10), "b");
        assert_eq!(queue.next_deadline(), Some(Deadline::at_ns(20)));
        queue.forget(ConnectionId(1));
        assert_eq!(queue.next_deadline(), None);
    }

    #[test]
    fn waiting_requests_are_bounded_in_bytes_and_descriptors() {
        let mut queue = queue(100);
        let why = |refused: Result<(), (Work, QueueFull)>| refused.unwrap_err().1;
        queue.push(waiting(1, 10, 'z'), 0).unwrap();
        assert_eq!(why(queue.push(waiting(1, 10, 'e'), 0)), QueueFull::Usage, "31 bytes");
        queue.push(waiting(2, 10, 'd'), 0).unwrap();
        assert_eq!(why(queue.push(waiting(1, 10, 'a'), 0)), QueueFull::Usage, "31 bytes");
        assert_eq!(letter(&queue.pop().unwrap()), 'z');
        queue.push(waiting(2, 20, 'B'), 0).unwrap();
        queue.push(waiting(1, 20, 'A'), 0).unwrap();
        assert_eq!(why(queue.push(waiting(1, 20, 'C'), 0)), QueueFull::Usage, "three descriptors");
        queue.forget(ConnectionId(2));
        queue.push(waiting(1, 20, 'C'), 0).unwrap();
        assert_eq!(expired(&mut queue, 20), "AC");
        assert_eq!((queue.load, queue.is_empty()), (Load::default(), true));
    }

    #[test]
    fn init_walks_what_waits_only_when_a_deadline_passes() {
        let mut queue = queue(4);
        for (deadline, item) in [(10, 'a'), (20, 'b')] {
            queue.push(waiting(1, deadline, item), 0).unwrap();
        }
        queue.pop().unwrap();
        assert_eq!(queue.next_deadline(), Some(Deadline::at_ns(10)), "that of one that has left");
        assert_eq!(expired(&mut queue, 10), "");
        assert_eq!(queue.next_deadline(), Some(Deadline::at_ns(20)));
        queue.pop().unwrap();
        queue.push(waiting(1, 30, 'c'), 0).unwrap();
        assert_eq!(queue.next_deadline(), Some(Deadline::at_ns(30)), "nothing waited before");
    }

    proptest! {
        #[test]
        fn each_item_expires_at_its_deadline(steps in vec((0..6_u8, 0..30_u64), 0..100)) {
            let (mut queue, mut kept) = (queue(20), VecDeque::new());
            for (step, number) in steps {
                match step {
                    0 => prop_assert_eq!(queue.pop().map(|work| work.deadline), kept.pop_front()),
                    1 => {
                        if let Some(work) = queue.pop() {
                            queue.put_back(work);
                        }
                    }
                    2 => {
                        let late: Vec<_> =
                            queue.take_expired(number).iter().map(|work| work.deadline).collect();
                        let (naive, stay): (Vec<_>, VecDeque<_>) =
                            (kept.iter().filter(|it| it.has_passed(number)).copied().collect(),
                             kept.iter().filter(|it| !it.has_passed(number)).copied().collect());
                        prop_assert_eq!(late, naive);
                        kept = stay;
                    }
                    _ => {
                        if queue.push(waiting(1, number, 'a'), 0).is_ok() {
                            kept.push_back(Deadline::at_ns(number));
                        }
                    }
                }
                prop_assert!(queue.next_deadline() <= kept.iter().copied().min());
                prop_assert_eq!(queue.next_deadline().is_none(), kept.is_empty());
            }
        }
    }
}
