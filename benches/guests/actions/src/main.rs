//! A primary that runs the action of its argument and ends. Runs inside a guest.

fn main() -> Result<(), String> {
    let query = std::env::args().nth(1).ok_or("the argument is an action")?;
    println!("{}", bench_actions::answer(&query)?);
    Ok(())
}
