//! Who may use the gateway, the dashboard or the executor of OpenWhisk: clients that know its token. They send it as a
//! bearer token, or as the password of basic authentication, as `faas-cli login` does. Client certificates are checked
//! by TLS.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::failure::{Exit, Failure};

/// Shortest token in bytes.
const TOKEN_MIN: usize = 16;

/// The token's digest. Digests are compared, so that the time of a comparison says nothing about the token.
#[derive(Clone, Debug)]
pub(crate) struct Access(Option<[u8; 32]>);

impl Access {
    /// Reads the token; without a file every client has access.
    ///
    /// # Errors
    /// When the file cannot be read, or its token is too short.
    pub(crate) fn new(token_file: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = token_file else { return Ok(Self(None)) };
        let text = fs::read_to_string(path).map_err(|error| {
            Failure::text(Exit::Missing, format!("token file {}: {error}", path.display()))
        })?;
        let token = text.trim();
        if token.len() < TOKEN_MIN {
            let text =
                format!("token file {}: a token has {TOKEN_MIN} bytes or more", path.display());
            return Err(Failure::text(Exit::Data, text));
        }
        Ok(Self::of(token))
    }

    /// Access for clients with this token.
    pub(crate) fn of(token: &str) -> Self {
        Self(Some(Sha256::digest(token).into()))
    }

    /// True if clients need a token.
    pub(crate) const fn is_restricted(&self) -> bool {
        self.0.is_some()
    }

    /// True if a request with this header `Authorization` may be served.
    pub(crate) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let Some(expected) = self.0 else { return true };
        authorization
            .and_then(token_of)
            .is_some_and(|token| <[u8; 32]>::from(Sha256::digest(token)) == expected)
    }
}

/// The token of a bearer, or the password of any user.
fn token_of(authorization: &[u8]) -> Option<Vec<u8>> {
    let space = authorization.iter().position(|byte| *byte == b' ')?;
    let (scheme, value) = (&authorization[..space], authorization[space..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(value.to_vec());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let user_and_password = STANDARD.decode(value).ok()?;
    let colon = user_and_password.iter().position(|byte| *byte == b':')?;
    Some(user_and_password[colon + 1..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_bearer_has_access_and_no_one_else() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        fs::write(&file, "0123456789abcdef\n").unwrap();
        let access = Access::new(Some(&file)).unwrap();
        assert!(access.is_restricted());
        assert!(access.admits(Some(b"Bearer 0123456789abcdef")));
        assert!(access.admits(Some(b"bearer 0123456789abcdef")));
        // admin:0123456789abcdef, and user:0123456789abcdeg.
        assert!(access.admits(Some(b"Basic YWRtaW46MDEyMzQ1Njc4OWFiY2RlZg==")));
        for wrong in [
            "Bearer 0123456789abcdeg",
            "Bearer ",
            "Basic 0123456789abcdef",
            "Basic dXNlcjowMTIzNDU2Nzg5YWJjZGVn",
            "Basic ",
            "Digest 0123456789abcdef",
            "",
            "Bearer",
        ] {
            assert!(!access.admits(Some(wrong.as_bytes())), "{wrong}");
        }
        assert!(!access.admits(None));
        assert!(Access::new(None).unwrap().admits(None));
        fs::write(&file, "short").unwrap();
        assert_eq!(Access::new(Some(&file)).err().unwrap().exit(), Exit::Data);
    }
}
