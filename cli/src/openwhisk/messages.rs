//! Bodies of WOW's executor that OpenWhisk's do not have. Pure.

use std::path::PathBuf;

use cwasi_host::http::openwhisk::error_text;
use cwasi_host::http::openwhisk::json::check_object;
use cwasi_modes::CallError;
use serde::Deserialize;
use serde_json::json;

/// What an action asks for.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Capabilities {
    /// A directory of the host, which the action opens by the same path.
    pub dir: Option<PathBuf>,
    /// Sockets to every destination.
    #[serde(default)]
    pub net_access: bool,
}

#[derive(Debug, Default, Deserialize)]
struct Init {
    #[serde(default)]
    value: InitValue,
}

#[derive(Debug, Default, Deserialize)]
struct InitValue {
    annotations: Option<Capabilities>,
}

/// The capabilities that an `/init` asks for.
///
/// # Errors
/// When it is malformed.
pub fn capabilities(body: &[u8]) -> Result<Capabilities, serde_json::Error> {
    let init: Init = serde_json::from_slice(body)?;
    Ok(init.value.annotations.unwrap_or_default())
}

/// The body of a response to a `/run`, whose status is 200 whatever became of it.
#[must_use]
pub fn ended(result: &Result<Vec<u8>, CallError>) -> Vec<u8> {
    let failed = |status: &str, code: u32, text: &str| {
        let result = json!({ "error": text });
        let body =
            json!({ "status": status, "status_code": code, "success": false, "result": result });
        body.to_string().into_bytes()
    };
    match result {
        Ok(result) if check_object(result).is_ok() => {
            // As it is: numbers keep their digits.
            let start = br#"{"status":"success","status_code":0,"success":true,"result":"#;
            [start, result.as_slice(), b"}"].concat()
        }
        Ok(_) => failed("application error", 1, "The action did not return a dictionary."),
        Err(error @ (CallError::Failed { .. } | CallError::CommandFailed { .. })) => {
            failed("application error", 1, error_text(error))
        }
        Err(error) => failed("action developer error", 2, error_text(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn capabilities_are_none_unless_they_are_asked_for() {
        let asked = |annotations: &str| {
            let body = format!(r#"{{"value":{{"code":"","annotations":{annotations}}}}}"#);
            capabilities(body.as_bytes())
        };
        assert_eq!(capabilities(b"{}").unwrap(), Capabilities::default());
        assert_eq!(asked("null").unwrap(), Capabilities::default());
        let both = asked(r#"{"dir":"/data","net_access":true,"more":1}"#).unwrap();
        assert_eq!(both, Capabilities { dir: Some("/data".into()), net_access: true });
        assert!(asked(r#"{"net_access":"yes"}"#).is_err());
    }

    #[test]
    fn an_end_is_one_of_three() {
        let read = |result| serde_json::from_slice::<Value>(&ended(&result)).unwrap();
        let good = read(Ok(br#"{"n":1}"#.to_vec()));
        assert_eq!((&good["status"], &good["result"]["n"]), (&json!("success"), &json!(1)));
        let text = read(Ok(b"1".to_vec()));
        assert_eq!((&text["status_code"], &text["success"]), (&json!(1), &json!(false)));
        let failed = read(Err(CallError::Failed { message: "no".to_owned() }));
        assert_eq!(failed["result"], json!({ "error": "no" }));
        let timeout = read(Err(CallError::Timeout { target: "a".to_owned() }));
        assert_eq!(timeout["status"], "action developer error");
    }
}
