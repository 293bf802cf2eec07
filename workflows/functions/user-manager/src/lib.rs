//! Stores invented persons in a database, through the HTTP API in front of it.

use fake::Fake as _;
use fake::faker::address::en::{BuildingNumber, CityName, CountryName, StreetName, ZipCode};
use fake::faker::internet::en::{IP, UserAgent, Username};
use fake::faker::name::en::Name;
use function::{Query, client, failed, variable};
use serde::Serialize;

/// Most persons of one request.
const ENTRIES_MAX: u32 = 1000;

/// A row of the table, with the columns of the operator paper's artifact.
#[derive(Serialize)]
struct Person {
    name: String,
    username: String,
    ip_address: String,
    user_agent: String,
    country: String,
    city: String,
    street_name: String,
    zip_code: String,
    building_number: String,
}

impl Person {
    fn invented() -> Self {
        Self {
            name: Name().fake(),
            username: Username().fake(),
            ip_address: IP().fake(),
            user_agent: UserAgent().fake(),
            country: CountryName().fake(),
            city: CityName().fake(),
            street_name: StreetName().fake(),
            zip_code: ZipCode().fake(),
            building_number: BuildingNumber().fake(),
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
