//! A primary that makes the harness's calls and reports a duration for each, one line per block. Runs inside a guest.
//! The lines are those of `cwasi-bench-protocol`.

mod calls;
mod fan;
mod made;

use std::io::{stdin, stdout};

use cwasi_bench_protocol::{Answer, Job, Verb, serve};

fn main() -> std::io::Result<()> {
    serve(stdin().lock(), stdout(), perform)
}

fn perform(job: &Job) -> Result<Answer, String> {
    match job.verb {
        Verb::Call => calls::each_its_own(job),
        Verb::Echo => calls::echoed(job),
        Verb::Resend => calls::one_again_and_again(job),
        Verb::Flood => calls::as_many_as_fit(job),
        Verb::FanOut => fan::out(job),
        Verb::FanIn => fan::in_one(job),
        Verb::Compute => Err("this guest only calls".to_owned()),
    }
}
