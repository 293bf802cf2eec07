//! A primary that makes the calls that the harness orders, one line a block, and says how long each took.
//!
//! Runs inside a guest. Lines are those of `cwasi-bench-protocol`.

mod calls;
mod fan;
mod made;

use std::io::{BufRead as _, Write as _};

use cwasi_bench_protocol::{Answer, END, Order, READY, Verb, line};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{READY}")?;
    for order in std::io::stdin().lock().lines() {
        let order = order?;
        if order == END {
            break;
        }
        let answer = order.parse().map_err(|error| format!("{error}")).and_then(|o| perform(&o));
        writeln!(out, "{}", line(answer))?;
    }
    Ok(())
}

fn perform(order: &Order) -> Result<Answer, String> {
    match order.verb {
        Verb::Call => calls::each_its_own(order),
        Verb::Resend => calls::one_again_and_again(order),
        Verb::Flood => calls::as_many_as_fit(order),
        Verb::FanOut => fan::out(order),
        Verb::FanIn => fan::in_one(order),
    }
}
