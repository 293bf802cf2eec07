//! A primary: prints its arguments in capitals, with an embedded library (`cwasi.embed=letters=IMAGE`).

cwasi::import! {
    mod letters {
        /// The text in capitals.
        fn capitals(text: &str) -> String;
        fn count(text: &str, letter: u32) -> Result<u32, String>;
    }
}

fn main() -> Result<(), String> {
    for text in std::env::args().skip(1) {
        let count = letters::count(&text, u32::from('a'))?;
        println!("{}! ({count}× a)", letters::capitals(&text));
    }
    Ok(())
}
