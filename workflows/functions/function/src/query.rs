use std::fmt::Display;
use std::str::FromStr;

/// The query of a request's URL.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads `a=1&b=2`.
    #[must_use]
    pub fn read(text: &str) -> Self {
        Self(url::form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    /// The first value of this name.
    ///
    /// # Errors
    /// A sentence when it is missing.
    pub fn text(&self, name: &str) -> Result<&str, String> {
        let found = self.0.iter().find(|(key, _value)| key == name);
        found
            .map(|(_key, value)| value.as_str())
            .ok_or_else(|| format!("the query has no `{name}`"))
    }

    /// The first value of this name as a number of at most `max`.
    ///
    /// # Errors
    /// A sentence when it is missing, or no such number.
    pub fn number<T>(&self, name: &str, max: T) -> Result<T, String>
    where
        T: FromStr + PartialOrd + Display + Copy,
    {
        let text = self.text(name)?;
        let number = text.parse::<T>().ok().filter(|number| *number <= max);
        number.ok_or_else(|| format!("`{name}` must be a number of at most {max}, not `{text}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::Query;

    #[test]
    fn values_are_decoded_and_checked() {
        let query = Query::read("n=100&text=The+quick%20fox&n=5");
        assert_eq!(query.number("n", 100_u32), Ok(100));
        assert_eq!(query.text("text"), Ok("The quick fox"));
        assert_eq!(query.text("seed"), Err("the query has no `seed`".to_owned()));
        let too_large = query.number("n", 99_u32);
        assert_eq!(too_large, Err("`n` must be a number of at most 99, not `100`".to_owned()));
        assert!(Query::read("n=-1").number("n", 99_u32).is_err());
    }
}
