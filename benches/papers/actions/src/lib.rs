//! Actions of WOW and of the thesis, the same code in a guest and in a native server: `hello`, `hash` and `sleep`.

use std::time::Duration;

/// What `hash` begins with.
const INPUT: &[u8] = b"cwasi";
/// Most rounds of one `hash`, and most milliseconds of one `sleep`.
const MOST: u64 = 100_000_000;

/// The text for a query: `hello`, `hash=ROUNDS` (blake3, each round hashes the one before), `sleep=MILLISECONDS`.
///
/// # Errors
/// A sentence for any other query.
pub fn answer(query: &str) -> Result<String, String> {
    let (action, number) = query.split_once('=').unwrap_or((query, "1"));
    let number = number.parse().ok().filter(|number| (1..=MOST).contains(number));
    let number = number.ok_or_else(|| format!("a number from 1 to {MOST}, not `{query}`"))?;
    match action {
        "hello" => Ok("hello".to_owned()),
        "hash" => Ok(hash(number)),
        "sleep" => {
            std::thread::sleep(Duration::from_millis(number));
            Ok(format!("slept {number} ms"))
        }
        _ => Err(format!("no action is called `{action}`")),
    }
}

fn hash(rounds: u64) -> String {
    let mut digest = blake3::hash(INPUT);
    for _ in 1..rounds {
        digest = blake3::hash(digest.as_bytes());
    }
    digest.to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_action_answers_and_others_do_not() {
        assert_eq!(answer("hello"), Ok("hello".to_owned()));
        assert_eq!(answer("sleep=1"), Ok("slept 1 ms".to_owned()));
        let twice = blake3::hash(blake3::hash(INPUT).as_bytes());
        assert_eq!(answer("hash=2"), Ok(twice.to_hex().to_string()));
        assert_eq!(answer("hash"), answer("hash=1"));
        for wrong in ["", "hash=0", "hash=x", "sleep=100000001", "jump=1"] {
            assert!(answer(wrong).is_err(), "{wrong}");
        }
    }
}
