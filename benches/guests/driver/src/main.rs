//! A primary that makes the harness's calls and reports a duration for each, one line per block. Runs inside a guest.
//! The lines are those of `cwasi-bench-protocol`.

mod calls;
mod fan;
mod made;

use std::io::{stdin, stdout};

use cwasi_bench_protocol::{Answer, Order, Verb, serve};

fn main() -> std::io::Result<()> {
    serve(stdin().lock(), stdout(), perform)
}

fn perform(order: &Order) -> Result<Answer, String> {
    match order.verb {
        Verb::Call => calls::each_its_own(order),
        Verb::Echo => calls::echoed(order),
        Verb::Resend => calls::one_again_and_again(order),
        Verb::Flood => calls::as_many_as_fit(order),
        Verb::FanOut => fan::out(order),
        Verb::FanIn => fan::in_one(order),
    }
}
