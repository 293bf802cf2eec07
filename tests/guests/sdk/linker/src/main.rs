//! A primary that is linked with `texts`, which is linked with `letters`; its arguments say what it does.
//!
//! Runs inside a guest. Allocates and copies after every call, so that an engine that is left in another module's
//! memory would be noticed.

cwasi::import! {
    mod texts {
        fn backwards(text: &str) -> String;
        fn join(left: &str, dashes: u32, right: &[u8]) -> Result<Vec<u8>, String>;
        fn calls() -> u32;
        fn hog(limit: u32) -> u32;
        fn misbehave(how: &str);
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let arg = |index: usize| args.get(index).map(String::as_str).unwrap_or_default();
    let number = |index: usize| arg(index).parse::<u32>().expect("the test gives a number");
    match arg(1) {
        "backwards" => println!("{}", texts::backwards(arg(2))),
        "join" => match texts::join(arg(2), number(3), arg(4).as_bytes()) {
            Ok(joined) => println!("{}", String::from_utf8_lossy(&joined)),
            Err(message) => println!("failed: {message}"),
        },
        "repeat" => repeat(number(2)),
        "large" => large(number(2) as usize),
        "hog" => println!("{} MiB", texts::hog(number(2))),
        how => texts::misbehave(how),
    }
}

/// Many calls, each with a check that everything of our own is as it was.
fn repeat(times: u32) {
    let mut kept: Vec<String> = Vec::new();
    for n in 0..times {
        let text = format!("call {n} of {times}");
        let expected: String = text.to_uppercase().chars().rev().collect();
        assert_eq!(texts::backwards(&text), expected, "what the library answers");
        kept.push(text);
        if kept.len() > 100 {
            kept.drain(..50);
        }
        let first = n + 1 - kept.len() as u32;
        for (index, text) in kept.iter().enumerate() {
            assert_eq!(
                *text,
                format!("call {} of {times}", first + index as u32),
                "our own memory"
            );
        }
    }
    println!("{} calls", texts::calls());
}

/// One call with `len` bytes there and back.
fn large(len: usize) {
    let bytes: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
    let joined = texts::join("left", 3, &bytes).expect("it joins");
    assert!(joined.starts_with(b"left---") && joined[7..] == bytes, "every byte came back");
    println!("{} bytes came back", joined.len());
}
