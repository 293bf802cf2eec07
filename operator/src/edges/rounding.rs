//! Numbers for people: two digits, which stay while they still are about right. So a status changes when what it says
//! does.

/// A number is kept while the new one is within this part of it.
const KEPT_WITHIN: f64 = 0.1;

/// The number to show: `shown` if it is still about right, else `number` with two digits.
#[must_use]
pub fn settled(shown: f64, number: f64) -> f64 {
    if shown > 0.0 && number > 0.0 && (number - shown).abs() <= KEPT_WITHIN * shown {
        return shown;
    }
    two_digits(number)
}

/// Two significant digits; no number is 0.
#[must_use]
pub fn two_digits(number: f64) -> f64 {
    if !number.is_finite() || number <= 0.0 {
        return 0.0;
    }
    let power = number.log10().floor() - 1.0;
    // Steps below 1 are divided by a power, which is exact, and not multiplied by a fraction, which is not.
    if power < 0.0 {
        let scale = 10_f64.powf(-power);
        (number * scale).round() / scale
    } else {
        let step = 10_f64.powf(power);
        (number / step).round() * step
    }
}

/// The same for whole numbers; all up to 99 stay as they are.
#[must_use]
pub fn settled_count(shown: i64, number: u64) -> i64 {
    let exact = i64::try_from(number).unwrap_or(i64::MAX);
    if exact < 100 {
        return exact;
    }
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let rounded = settled(shown as f64, number as f64);
    #[expect(clippy::cast_possible_truncation, reason = "beyond i64::MAX it is i64::MAX")]
    let count = rounded as i64;
    count
}

/// Part of the whole in percent, as `93%`. 100 is all of it and 0 nothing; without a whole it is `-`.
#[must_use]
pub fn percent(shown: &str, part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let (part, whole) = (u128::from(part), u128::from(whole));
    let now = match 100 * part / whole {
        0 if part > 0 => 1,
        down => down,
    };
    // A point more or less is no news, but for the first and the last one.
    let before = shown.strip_suffix('%').and_then(|it| it.parse::<u128>().ok());
    match before.filter(|before| (1..=99).contains(before) && (1..=99).contains(&now)) {
        Some(before) if before.abs_diff(now) <= 1 => shown.to_owned(),
        _ => format!("{now}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_two_digits() {
        for (number, text) in [
            (0.0, "0"),
            (-1.0, "0"),
            (f64::NAN, "0"),
            (0.006_66, "0.0067"),
            (0.123, "0.12"),
            (1.0, "1"),
            (9.96, "10"),
            (12.4, "12"),
            (128.0, "130"),
            (999.0, "1000"),
            (1_234_567.0, "1200000"),
        ] {
            assert_eq!(two_digits(number).to_string(), text, "{number}");
        }
    }

    #[test]
    fn a_number_stays_while_it_is_about_right() {
        assert_eq!(settled(12.0, 13.1).to_string(), "12");
        assert_eq!(settled(12.0, 13.3).to_string(), "13");
        assert_eq!(settled(12.0, 0.0).to_string(), "0");
        assert_eq!(settled(0.0, 0.5).to_string(), "0.5");
        assert_eq!(
            [settled_count(0, 99), settled_count(98, 99), settled_count(0, 12_345)],
            [99, 99, 12_000]
        );
        assert_eq!([settled_count(12_000, 13_000), settled_count(12_000, 7)], [12_000, 7]);
        assert_eq!(settled_count(0, u64::MAX), i64::MAX);
    }

    #[test]
    fn only_all_calls_are_a_hundred_percent() {
        for (shown, part, whole, expected) in [
            ("", 0, 0, "-"),
            ("93%", 0, 0, "-"),
            ("", 5, 5, "100%"),
            ("", 9999, 10_000, "99%"),
            ("", 1, 10_000, "1%"),
            ("", 0, 10_000, "0%"),
            ("93%", 94, 100, "93%"),
            ("93%", 95, 100, "95%"),
            ("99%", 5, 5, "100%"),
            ("-", 1, 2, "50%"),
            ("", u64::MAX, u64::MAX, "100%"),
        ] {
            assert_eq!(percent(shown, part, whole), expected, "{shown} {part}/{whole}");
        }
    }
}
