//! The server from which a registry has its tokens (`realm` of its challenge). A user's password goes there, so it is
//! checked before.

use std::time::Duration;

use oci_client::Reference;
use reqwest::Url;
use reqwest::header::WWW_AUTHENTICATE;

use super::is_on_this_machine;

/// Longest wait for the challenge.
const CHALLENGE_MAX: Duration = Duration::from_secs(60);

/// What becomes of a password.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PasswordWay {
    /// It stays with the registry, or goes to its own host.
    Own,
    /// It goes to this host, encrypted.
    To(String),
    /// It would go to this URL, readable by all on the way.
    Readable(String),
}

/// Asks the registry for its challenge. None without an answer: the push itself says why.
pub(super) async fn password_way(reference: &Reference, plain_http: bool) -> Option<PasswordWay> {
    let registry = reference.resolve_registry();
    let scheme = if plain_http { "http" } else { "https" };
    let base = format!("{scheme}://{registry}/v2/");
    let client = reqwest::Client::builder().timeout(CHALLENGE_MAX).build().ok()?;
    let answer = client.get(&base).send().await.ok()?;
    let challenges = answer.headers().get_all(WWW_AUTHENTICATE).iter();
    let ways =
        challenges.filter_map(|challenge| way(challenge.to_str().ok()?, &Url::parse(&base).ok()?));
    // The worst of them: the push takes the first that it understands.
    ways.max_by_key(|way| match way {
        PasswordWay::Own => 0,
        PasswordWay::To(_) => 1,
        PasswordWay::Readable(_) => 2,
    })
}

/// Where the challenge of the registry `base` sends a password; `None` without a token server.
fn way(challenge: &str, base: &Url) -> Option<PasswordWay> {
    let challenges = http_auth::ChallengeParser::new(challenge);
    let bearer = challenges.flatten().find(|it| it.scheme.eq_ignore_ascii_case("bearer"))?;
    let (_, realm) = bearer.params.iter().find(|(key, _)| key.eq_ignore_ascii_case("realm"))?;
    let realm = realm.to_unescaped();
    let Ok(url) = Url::parse(&realm) else { return Some(PasswordWay::Readable(realm)) };
    let host = url.host_str().unwrap_or_default();
    let is_same = url.host() == base.host();
    Some(if url.scheme() == "https" {
        if is_same { PasswordWay::Own } else { PasswordWay::To(host.to_owned()) }
    } else if is_on_this_machine(host) || (is_same && base.scheme() == "http") {
        PasswordWay::Own
    } else {
        PasswordWay::Readable(realm)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_goes_encrypted_or_stays_where_it_goes_already() {
        let (tls, plain) = ("https://r.example/v2/", "http://r.example/v2/");
        let to = |host: &str| Some(PasswordWay::To(host.to_owned()));
        let readable = |url: &str| Some(PasswordWay::Readable(url.to_owned()));
        for (base, realm, expected) in [
            (tls, "https://r.example/token", Some(PasswordWay::Own)),
            (tls, "https://auth.example/token", to("auth.example")),
            (tls, "http://r.example/token", readable("http://r.example/token")),
            (tls, "http://auth.example/token", readable("http://auth.example/token")),
            (tls, "http://127.0.0.1:5001/token", Some(PasswordWay::Own)),
            (tls, "http://127.0.0.1.example/t", readable("http://127.0.0.1.example/t")),
            (tls, "token", readable("token")),
            (plain, "http://r.example:5001/token", Some(PasswordWay::Own)),
            (plain, "http://auth.example/token", readable("http://auth.example/token")),
        ] {
            let challenge = format!("Bearer realm=\"{realm}\",service=\"r\"");
            assert_eq!(way(&challenge, &Url::parse(base).unwrap()), expected, "{base} {realm}");
        }
        let base = Url::parse(tls).unwrap();
        assert_eq!(way("Basic realm=\"r\"", &base), None);
        let both = "Basic realm=\"r\", Bearer realm=\"http://auth.example/\"";
        assert_eq!(way(both, &base), readable("http://auth.example/"));
    }
}
