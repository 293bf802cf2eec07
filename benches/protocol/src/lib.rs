//! The protocol between harness and measured processes: one [`Job`] per line, one [`Answer`] per line. Runs in
//! guests and in native processes; has no clock.
//!
//! The driver guest and the native baselines use the same lines and make the same [`payload`]s, so the harness treats
//! both alike.

pub mod payload;

use std::fmt;
use std::io::{self, BufRead, Write};
use std::str::FromStr;

/// First line of a driver, once jobs can come.
pub const READY: &str = "ready";
/// The job to end.
pub const END: &str = "end";
/// First word of an answer that is an error.
const ERROR: &str = "error";
/// Most samples in one answer; of more, evenly spaced ones are kept.
pub const SAMPLES_MAX: usize = 20_000;

/// Where a payload is made, which is outside the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// In the memory that it leaves from: a region. Native baselines have none, and use a vector.
    InPlace,
    /// In an ordinary vector.
    Vector,
}

/// What a driver does, [`Job::count`] times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// One call after the other, each with a payload of its own.
    Call,
    /// As [`Self::Call`]; the callee answers as many bytes, of which the first say what it saw.
    Echo,
    /// One payload, made once, in one call after the other.
    Resend,
    /// Calls for `count` milliseconds, one after the other, of `branches` callers at a time.
    Flood,
    /// One payload to `branches` callees at a time.
    FanOut,
    /// `branches` payloads to one callee that waits for all of them.
    FanIn,
    /// No call: the program that `targets` names, `count` times.
    Compute,
}

/// One block of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub verb: Verb,
    /// Callees; a fan-out goes round them. Native baselines have their own, and ignore it.
    pub targets: Vec<String>,
    /// Length of a payload in bytes.
    pub size: usize,
    /// Where it is made.
    pub made: Made,
    /// True when the callee reads every byte, and answers with their sum.
    pub touch: bool,
    /// How often, or for how many milliseconds.
    pub count: usize,
    /// Branches of a fan-out, parts of a fan-in, or callers of a flood in one process, of which only HTTP/2 has more
    /// than 1; 1 for the others.
    pub branches: usize,
}

impl Job {
    /// The payload of a call, and what its answer has to say ([`payload::Seen::check`]).
    #[must_use]
    pub fn payload(&self, seed: u64) -> (Vec<u8>, u64) {
        let mut bytes = vec![0; self.size];
        let sum = payload::fill(&mut bytes, seed);
        (bytes, self.expected(sum))
    }

    /// What the answer to a payload with this sum has to say: the sum if the callee reads the payload, or else its length.
    #[must_use]
    pub const fn expected(&self, sum: u64) -> u64 {
        if self.touch { sum } else { self.size as u64 }
    }
}

/// What a driver measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// From before a payload is sealed and sent until the callee, the last of them, has it; ns.
    pub delivery: Vec<u64>,
    /// From there until the answer, the last of them, is back; ns.
    pub call: Vec<u64>,
    /// Calls that were made; more than there are samples when these were thinned out.
    pub calls: u64,
    /// CPU time of the driver's process that went into making payloads, ns.
    pub making_cpu: u64,
}

impl Answer {
    /// Adds one measured call.
    pub fn add(&mut self, started: u64, entered: u64, ended: u64) {
        self.delivery.push(entered.saturating_sub(started));
        self.call.push(ended.saturating_sub(started));
        self.calls += 1;
    }

    /// Keeps at most [`SAMPLES_MAX`] samples of each kind.
    pub fn thin_out(&mut self) {
        for samples in [&mut self.delivery, &mut self.call] {
            let step = samples.len().div_ceil(SAMPLES_MAX).max(1);
            let mut at = 0;
            samples.retain(|_| {
                at += 1;
                (at - 1) % step == 0
            });
        }
    }
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}

/// A word on the wire and the value that it stands for.
const VERBS: [(&str, Verb); 7] = [
    ("call", Verb::Call),
    ("echo", Verb::Echo),
    ("resend", Verb::Resend),
    ("flood", Verb::Flood),
    ("fan-out", Verb::FanOut),
    ("fan-in", Verb::FanIn),
    ("compute", Verb::Compute),
];

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = VERBS.iter().find(|(_, verb)| *verb == self.verb).map_or("", |(word, _)| word);
        let made = if self.made == Made::InPlace { "inplace" } else { "vector" };
        let touch = if self.touch { "all" } else { "none" };
        let targets = if self.targets.is_empty() { "-" } else { &self.targets.join(",") };
        let (size, count, branches) = (self.size, self.count, self.branches);
        write!(f, "{verb} {targets} {size} {made} {touch} {count} {branches}")
    }
}

impl FromStr for Job {
    type Err = Malformed;

    fn from_str(line: &str) -> Result<Self, Malformed> {
        let malformed = || Malformed(format!("not a job: {line}"));
        let words: Vec<&str> = line.split_whitespace().collect();
        let [verb, targets, size, made, touch, count, branches] = words.as_slice() else {
            return Err(malformed());
        };
        let number = |word: &str| word.parse::<usize>().map_err(|_not| malformed());
        let targets = if *targets == "-" { "" } else { targets };
        Ok(Self {
            verb: VERBS.iter().find(|(word, _)| word == verb).ok_or_else(malformed)?.1,
            targets: targets.split(',').filter(|name| !name.is_empty()).map(Into::into).collect(),
            size: number(size)?,
            made: if *made == "inplace" { Made::InPlace } else { Made::Vector },
            touch: *touch == "all",
            count: number(count)?,
            branches: number(branches)?,
        })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.calls, self.making_cpu)?;
        for samples in [&self.delivery, &self.call] {
            f.write_str(" ;")?;
            for sample in samples {
                write!(f, " {sample}")?;
            }
        }
        Ok(())
    }
}

impl FromStr for Answer {
    type Err = Malformed;

    /// An answer, or the driver's own words about what went wrong.
    fn from_str(line: &str) -> Result<Self, Malformed> {
        if let Some(said) = line.strip_prefix(ERROR) {
            return Err(Malformed(said.trim().to_owned()));
        }
        let malformed = || Malformed(format!("not an answer: {line:.200}"));
        let numbers = |part: &str| -> Result<Vec<u64>, Malformed> {
            part.split_whitespace().map(|word| word.parse().map_err(|_not| malformed())).collect()
        };
        let parts: Vec<&str> = line.split(';').collect();
        let [head, delivery, call] = parts.as_slice() else { return Err(malformed()) };
        let [calls, making_cpu] = numbers(head)?[..] else { return Err(malformed()) };
        Ok(Self { delivery: numbers(delivery)?, call: numbers(call)?, calls, making_cpu })
    }
}

/// Takes the jobs of `input` and answers each on `output`, until told to end or until nothing comes any more.
///
/// # Errors
/// When a job cannot be read or an answer not be told.
pub fn serve<E: fmt::Display>(
    input: impl BufRead,
    mut output: impl Write,
    mut perform: impl FnMut(&Job) -> Result<Answer, E>,
) -> io::Result<()> {
    writeln!(output, "{READY}")?;
    output.flush()?;
    for job in input.lines() {
        let job = job?;
        if job == END {
            break;
        }
        let answer = match job.parse() {
            Ok(job) => perform(&job).map_err(|error| format!("{error:#}")),
            Err(malformed) => Err(malformed.to_string()),
        };
        writeln!(output, "{}", line(answer))?;
        output.flush()?;
    }
    Ok(())
}

/// The line for an answer or an error.
fn line(answer: Result<Answer, String>) -> String {
    match answer {
        Ok(answer) => answer.to_string(),
        Err(error) => format!("{ERROR} {}", error.replace('\n', " ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_come_back_from_their_lines() {
        for (_, verb) in VERBS {
            for targets in [vec![], vec!["a".to_owned(), "b".to_owned()]] {
                let job = Job {
                    verb,
                    targets,
                    size: 3,
                    made: Made::InPlace,
                    touch: true,
                    count: 4,
                    branches: 5,
                };
                assert_eq!(job.to_string().parse(), Ok(job));
            }
        }
        assert!("call a 1".parse::<Job>().is_err());
        assert!("jump - 1 vector all 1 1".parse::<Job>().is_err());
        assert!("call - x vector all 1 1".parse::<Job>().is_err());
    }

    #[test]
    fn answers_and_errors_come_back_from_their_lines() {
        let mut answer = Answer { making_cpu: 9, ..Answer::default() };
        answer.add(10, 15, 30);
        answer.add(40, 41, 42);
        assert_eq!((&answer.delivery[..], &answer.call[..]), (&[5, 1][..], &[20, 2][..]));
        assert_eq!(line(Ok(answer.clone())).parse(), Ok(answer));
        assert_eq!(line(Ok(Answer::default())).parse(), Ok(Answer::default()));
        let error = line(Err("two\nlines".to_owned())).parse::<Answer>();
        assert_eq!(error, Err(Malformed("two lines".to_owned())));
        assert!("1 2 ; 3".parse::<Answer>().is_err());
    }

    #[test]
    fn each_order_is_answered_until_the_end() {
        let jobs = "call a 3 vector all 4 1\njump\nflood a 0 vector all 1 1\nend\ncall a 3 vector all 5 1\n";
        let (mut said, mut seen) = (Vec::new(), Vec::new());
        let performed = serve(jobs.as_bytes(), &mut said, |job| {
            seen.push(job.count);
            if job.size == 0 { Err("nothing\nto send") } else { Ok(Answer::default()) }
        });
        assert!(performed.is_ok());
        assert_eq!(seen, [4, 1]);
        let empty = Answer::default();
        let expected = format!("ready\n{empty}\nerror not a job: jump\nerror nothing to send\n");
        assert_eq!(String::from_utf8(said).unwrap(), expected);
    }

    #[test]
    fn many_samples_are_thinned_out_evenly() {
        let mut answer = Answer::default();
        for at in 0..2 * SAMPLES_MAX as u64 + 1 {
            answer.add(0, at, at);
        }
        answer.thin_out();
        assert!(answer.call.len() <= SAMPLES_MAX && answer.call.len() > SAMPLES_MAX / 2);
        assert_eq!(answer.call[1], 3);
        assert_eq!(answer.calls, 2 * SAMPLES_MAX as u64 + 1);
    }
}
