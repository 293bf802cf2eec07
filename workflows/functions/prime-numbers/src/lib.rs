//! Prime numbers up to `n`, by trial division.

use function::Query;

/// Largest `n`.
const MAX: u32 = 10_000_000;

/// The function: `n` is the largest number to try.
///
/// # Errors
/// When `n` is missing or too large.
pub fn answer(query: &Query) -> Result<String, String> {
    let numbers = 2..=query.number("n", MAX)?;
    let primes: Vec<u32> = numbers.filter(|&number| is_prime(number)).collect();
    Ok(format!("The value is: {primes:?}"))
}

fn is_prime(number: u32) -> bool {
    (2..)
        .take_while(|divisor| divisor * divisor <= number)
        .all(|divisor| !number.is_multiple_of(divisor))
}

function::export!(answer);

#[cfg(test)]
mod tests {
    use function::Query;

    #[test]
    fn primes_up_to_a_number() {
        let answer = |query: &str| super::answer(&Query::read(query));
        assert_eq!(answer("n=13"), Ok("The value is: [2, 3, 5, 7, 11, 13]".to_owned()));
        assert_eq!(answer("n=1"), Ok("The value is: []".to_owned()));
        assert!(answer("n=x").is_err());
    }
}
