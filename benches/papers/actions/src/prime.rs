//! The thesis' CPU-bound action of the mixed loads: a prime by trial division, as its Go action finds it.

use serde_json::{Value, json};

/// The prime number `nth`, of which 2 is the first.
///
/// # Errors
/// When the parameter is missing.
pub fn prime(parameters: &Value) -> Result<Value, String> {
    let nth = parameters["nth"].as_u64().filter(|nth| *nth > 0);
    let nth = nth.ok_or("`nth` has to be a number above 0")?;
    let (mut found, mut number) = (0, 1_u64);
    while found < nth {
        number += 1;
        found += u64::from(is_prime(number));
    }
    Ok(json!({ "prime": number }))
}

/// Primes above 3 are a multiple of 6, plus or minus 1.
fn is_prime(number: u64) -> bool {
    if number <= 3 {
        return number > 1;
    }
    if number.is_multiple_of(2) || number.is_multiple_of(3) {
        return false;
    }
    let candidates = (5..).step_by(6).take_while(|divisor| divisor * divisor <= number);
    candidates
        .flat_map(|divisor| [divisor, divisor + 2])
        .all(|divisor| !number.is_multiple_of(divisor))
}
