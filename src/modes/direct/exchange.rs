//! One call on a direct connection, as its caller's shim sees it: what has happened so far, and so what may have become
//! of the call. No clock and no sockets: its user reports events and does what [`Next`] says.
//!
//! The ends are those of `docs/modes.md`. The rule behind them: the callee runs nothing before it has the whole
//! request, and whoever decides first, decides ([`super::decisions`]).

use super::decisions::Decision;

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The last bytes of the request are about to be sent.
    Complete,
    /// The callee's shim says that it runs the call.
    Accepted,
    /// It says that it does not.
    Refused,
    /// The whole answer is here.
    Answered,
    /// The connection has ended.
    Lost,
    /// The callee's shim has said nothing for too long.
    Late,
    /// The answer to [`Next::Ask`]; `None` = it could not be asked.
    Resolved(Option<Decision>),
    /// Nobody waits for the call any more.
    Deadline,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Report the next event.
    Wait,
    /// Give the call up on another connection, and report who was first.
    Ask,
    End(End),
}

/// How the call has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Answered,
    /// The callee's shim has refused it: it did not run.
    Refused,
    /// It certainly never runs.
    NotAccepted,
    /// It ran, runs, or may run.
    Unknown,
    TimedOut,
}

/// The state of one call.
#[derive(Debug, Default)]
pub struct Exchange {
    is_complete: bool,
    is_accepted: bool,
    is_lost: bool,
    is_asking: bool,
}

impl Exchange {
    /// Takes an event.
    pub fn on(&mut self, event: Event) -> Next {
        match event {
            Event::Complete => self.is_complete = true,
            Event::Accepted => self.is_accepted = true,
            // A shim that contradicts itself proves nothing.
            Event::Refused if self.is_accepted => return Next::End(End::Unknown),
            Event::Refused => return Next::End(End::Refused),
            Event::Answered => return Next::End(End::Answered),
            Event::Deadline => return Next::End(End::TimedOut),
            Event::Lost => return self.lost(),
            Event::Late => return self.late(),
            Event::Resolved(decision) => return self.resolved(decision),
        }
        Next::Wait
    }

    /// True if the callee's shim may still say something on the connection.
    #[must_use]
    pub const fn listens(&self) -> bool {
        !self.is_lost
    }

    /// True while the acceptance is awaited, which is worth a [`Event::Late`].
    #[must_use]
    pub const fn awaits_acceptance(&self) -> bool {
        self.is_complete && !self.is_accepted && !self.is_asking
    }

    fn lost(&mut self) -> Next {
        self.is_lost = true;
        if self.is_accepted {
            return Next::End(End::Unknown);
        }
        if !self.is_complete {
            return Next::End(End::NotAccepted);
        }
        if self.is_asking {
            return Next::Wait;
        }
        self.is_asking = true;
        Next::Ask
    }

    fn late(&mut self) -> Next {
        if !self.awaits_acceptance() {
            return Next::Wait;
        }
        self.is_asking = true;
        Next::Ask
    }

    fn resolved(&mut self, decision: Option<Decision>) -> Next {
        self.is_asking = false;
        match decision {
            Some(Decision::GivenUp) if self.is_accepted => Next::End(End::Unknown),
            Some(Decision::GivenUp) => Next::End(End::NotAccepted),
            Some(Decision::Accepted) if !self.is_lost => {
                self.is_accepted = true;
                Next::Wait
            }
            None if !self.is_lost => Next::Wait,
            Some(Decision::Accepted) | None => Next::End(End::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Instant;

    use proptest::prelude::*;

    use super::super::decisions::Decisions;
    use super::*;
    use cwasi_wire::network::TryId;

    const ID: TryId = TryId([7; 16]);

    #[test]
    fn a_call_that_is_not_complete_has_not_run() {
        assert_eq!(Exchange::default().on(Event::Lost), Next::End(End::NotAccepted));
    }

    #[test]
    fn a_lost_connection_is_asked_about_before_anything_is_said() {
        for (decision, end) in [
            (Some(Decision::Accepted), End::Unknown),
            (Some(Decision::GivenUp), End::NotAccepted),
            (None, End::Unknown),
        ] {
            let mut exchange = Exchange::default();
            assert_eq!(exchange.on(Event::Complete), Next::Wait);
            assert_eq!(exchange.on(Event::Lost), Next::Ask);
            assert_eq!(exchange.on(Event::Resolved(decision)), Next::End(end));
        }
    }

    #[test]
    fn an_accepted_call_may_take_its_time() {
        let mut exchange = Exchange::default();
        exchange.on(Event::Complete);
        assert_eq!(exchange.on(Event::Late), Next::Ask);
        assert_eq!(exchange.on(Event::Late), Next::Wait, "it is asked once");
        assert_eq!(exchange.on(Event::Resolved(Some(Decision::Accepted))), Next::Wait);
        assert_eq!(exchange.on(Event::Late), Next::Wait);
        assert_eq!(exchange.on(Event::Answered), Next::End(End::Answered));
    }

    /// What travels between the two shims.
    #[derive(Clone, Copy, Debug)]
    enum Packet {
        Part,
        Last,
        Accepted,
        Ended,
    }

    /// Two shims, a connection and one to ask on, in simulated time: each step does one of the things that can happen.
    #[derive(Debug, Default)]
    struct World {
        exchange: Exchange,
        decisions: Decisions,
        /// Parts of the request that are not sent yet.
        parts: u8,
        complete: bool,
        /// On their way to the callee, and to the caller. The first arrive even after the connection broke for the
        /// caller: they were in the callee's socket.
        there: VecDeque<Packet>,
        back: VecDeque<Packet>,
        lost: bool,
        /// The callee's shim reads no more from the connection.
        deaf: bool,
        asks: bool,
        runs: u32,
        running: bool,
        dead: bool,
        end: Option<End>,
    }

    impl World {
        fn report(&mut self, event: Event) {
            if self.end.is_some() {
                return;
            }
            match self.exchange.on(event) {
                Next::Wait => {}
                Next::Ask => self.asks = true,
                Next::End(end) => self.end = Some(end),
            }
        }

        fn send(&mut self) {
            if self.end.is_some() || self.lost || self.complete {
                return;
            }
            if self.parts > 0 {
                self.parts -= 1;
                self.there.push_back(Packet::Part);
                return;
            }
            self.complete = true;
            self.report(Event::Complete);
            self.there.push_back(Packet::Last);
        }

        fn arrive_there(&mut self) {
            if self.dead || self.deaf {
                return;
            }
            if let Some(Packet::Last) = self.there.pop_front()
                && self.decisions.accept(ID)
            {
                self.runs += 1;
                self.running = true;
            }
        }

        fn say(&mut self, packet: Packet) {
            if self.running && !self.dead && !self.lost {
                self.running = !matches!(packet, Packet::Ended);
                self.back.push_back(packet);
            }
        }

        fn arrive_back(&mut self) {
            match self.back.pop_front() {
                Some(Packet::Accepted) => self.report(Event::Accepted),
                Some(Packet::Ended) => self.report(Event::Answered),
                _ => {}
            }
        }

        fn break_connection(&mut self) {
            if !self.lost {
                self.lost = true;
                self.back.clear();
                self.report(Event::Lost);
            }
        }

        fn answer_ask(&mut self, reaches: bool) {
            if !std::mem::take(&mut self.asks) {
                return;
            }
            let reaches = reaches && !self.dead;
            let decision = reaches.then(|| self.decisions.give_up(ID, Instant::now()));
            self.report(Event::Resolved(decision));
        }

        fn step(&mut self, choice: u8) {
            match choice % 12 {
                0..=2 => self.send(),
                3 | 4 => self.arrive_there(),
                5 => self.say(Packet::Accepted),
                6 => self.say(Packet::Ended),
                7 => self.arrive_back(),
                8 => self.report(Event::Late),
                9 => self.answer_ask(choice < 200),
                10 => self.break_connection(),
                _ if choice > 240 => self.dead = true,
                _ if choice > 220 => self.deaf = true,
                _ => {}
            }
        }

        /// Everything that is still on its way arrives.
        fn settle(&mut self) {
            for _ in 0..self.there.len() {
                self.arrive_there();
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Whatever is lost, late or broken: no call runs twice, and what the caller hears is true for ever.
        #[test]
        fn the_end_is_true(parts in 0..3_u8, choices in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut world = World { parts, ..World::default() };
            for choice in choices {
                world.step(choice);
            }
            world.settle();
            prop_assert!(world.runs <= 1);
            match world.end {
                Some(End::Answered) => prop_assert_eq!(world.runs, 1),
                Some(End::NotAccepted | End::Refused) => prop_assert_eq!(world.runs, 0, "{:?}", world),
                Some(End::Unknown | End::TimedOut) | None => {}
            }
        }
    }

    #[test]
    fn the_simulation_reaches_every_end() {
        let ends = [
            (vec![0, 3, 6, 7], Some(End::Answered)),
            (vec![10], Some(End::NotAccepted)),
            (vec![0, 10, 9], Some(End::NotAccepted)),
            (vec![0, 3, 10, 9], Some(End::Unknown)),
            (vec![0, 8, 9, 3], Some(End::NotAccepted)),
            (vec![0, 251, 10, 9], Some(End::Unknown)),
        ];
        for (choices, end) in ends {
            let mut world = World::default();
            choices.iter().for_each(|choice| world.step(*choice));
            world.settle();
            assert_eq!(world.end, end, "{choices:?} {world:?}");
        }
    }
}
