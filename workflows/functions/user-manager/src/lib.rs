//! Stores invented persons in a database, through the HTTP API in front of it.

use fake::Fake as _;
use fake::faker::address::en::CityName;
use fake::faker::internet::en::SafeEmail;
use fake::faker::name::en::{FirstName, LastName};
use function::{Query, client, failed, variable};
use serde::Serialize;

/// Most persons of one request.
const ENTRIES_MAX: u32 = 1000;

/// A row of the table.
#[derive(Serialize)]
struct Person {
    first_name: String,
    last_name: String,
    email: String,
    city: String,
}

impl Person {
    fn invented() -> Self {
        Self {
            first_name: FirstName().fake(),
            last_name: LastName().fake(),
            email: SafeEmail().fake(),
            city: CityName().fake(),
        }
    }
}

/// The function: `entries` persons are posted to the address in the environment variable `USERS_URL`.
///
/// # Errors
/// When one of them is missing, or the API refuses a person.
pub fn answer(query: &Query) -> Result<String, String> {
    let entries = query.number("entries", ENTRIES_MAX)?;
    let url = variable("USERS_URL")?;
    let client = client();
    for _ in 0..entries {
        client.post(&url).send_json(Person::invented()).map_err(failed(&url))?;
    }
    Ok(format!("Iterated {entries} times"))
}

function::export!(answer);
