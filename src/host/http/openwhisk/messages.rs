//! The bodies of `/init` and `/run`. Pure.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::json::{JsonError, check_object, members};
use crate::caller::CALL_TIMEOUT;
use cwasi_abi::context_key;
use cwasi_coordinator::delivered::{Delivery, DeliveryError, module_of};
use cwasi_wire::envelope::Metadata;

/// Longest environment of an `/init` in bytes, as JSON.
pub const ENV_MAX: usize = 64 << 10;
/// Longest activation.
pub const ACTIVATION_MAX: Duration = Duration::from_secs(3600);
/// Longest name of a property of an activation in bytes.
const PROPERTY_MAX: usize = 64;
/// Variables that OpenWhisk sends with the first activation only. Each has its own in its context.
const OF_ONE_ACTIVATION: [&str; 4] =
    ["__OW_ACTIVATION_ID", "__OW_API_KEY", "__OW_DEADLINE", "__OW_TRANSACTION_ID"];
/// Longest properties of an activation in bytes, as they travel to the action.
const CONTEXT_MAX: usize = 7 << 10;
/// The entry that an action has without a name.
const MAIN: &str = "main";

/// A module, and the archive that it was in.
type ModuleAndArchive = (Vec<u8>, Option<Vec<u8>>);

/// Why the body of a request is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    #[error("Error unmarshaling request: {0}")]
    Body(#[source] JsonError),
    #[error("Error unmarshaling request: `{member}` {problem}")]
    Member { member: &'static str, problem: String },
    #[error("cannot decode the request: `code` is no base64: {0}")]
    Base64(#[from] base64::DecodeError),
    #[error("Initialization has failed due to: {0}")]
    Code(#[from] DeliveryError),
    #[error("the properties of the activation need {bytes} bytes, {CONTEXT_MAX} is the most")]
    Context { bytes: usize },
    #[error("the deadline of the activation has passed")]
    Deadline,
}

fn wrong(member: &'static str, problem: impl ToString) -> MessageError {
    MessageError::Member { member, problem: problem.to_string() }
}

/// Reads the body of an `/init`.
///
/// # Errors
/// When it is malformed, or has code without a module.
pub fn init(body: &[u8]) -> Result<Delivery, MessageError> {
    let mut delivery = Delivery::default();
    let body = members(body).map_err(MessageError::Body)?;
    let Some((_, value)) = body.into_iter().find(|(name, _)| name == "value") else {
        return Ok(delivery);
    };
    for (name, value) in members(value).map_err(|error| wrong("value", error))? {
        match name.as_str() {
            "code" => {
                if let Some((module, archive)) = module(value)? {
                    (delivery.module, delivery.archive) = (Some(module), archive);
                }
            }
            "main" => {
                let main: Option<String> =
                    serde_json::from_slice(value).map_err(|error| wrong("main", error))?;
                delivery.export = main.filter(|name| !name.is_empty() && name != MAIN);
            }
            "env" => delivery.env = environment(value)?,
            _ => {}
        }
    }
    Ok(delivery)
}

/// The module of `code`, which is empty if the image has it, and the archive that it was in.
fn module(code: &[u8]) -> Result<Option<ModuleAndArchive>, MessageError> {
    let code: Option<Cow<'_, str>> =
        serde_json::from_slice(code).map_err(|error| wrong("code", error))?;
    match code.as_deref().map(str::trim) {
        None | Some("") => Ok(None),
        Some(text) => Ok(Some(module_of(BASE64_STANDARD.decode(text)?)?)),
    }
}

/// Variables as OpenWhisk's runtimes make them: texts as they are, null empty, all else as JSON. Without those of the
/// first activation, which would be wrong in the next one.
fn environment(env: &[u8]) -> Result<Vec<String>, MessageError> {
    if env.len() > ENV_MAX {
        return Err(wrong("env", format!("has more than {ENV_MAX} bytes")));
    }
    let env: Option<BTreeMap<String, Value>> =
        serde_json::from_slice(env).map_err(|error| wrong("env", error))?;
    let entry = |(name, value): (String, Value)| {
        let value = match value {
            Value::Null => String::new(),
            Value::String(text) => text,
            other => other.to_string(),
        };
        let is_fine = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
        let entry = format!("{name}={value}");
        if is_fine { Ok(entry) } else { Err(wrong("env", format!("has no variable `{name}`"))) }
    };
    let stays = |(name, _): &(String, Value)| !OF_ONE_ACTIVATION.contains(&name.as_str());
    env.unwrap_or_default().into_iter().filter(stays).map(entry).collect()
}

/// One activation.
#[derive(Debug, PartialEq)]
pub struct Activation {
    /// The parameters: a JSON object.
    pub value: Vec<u8>,
    /// Its properties, for `context_get`.
    pub context: Vec<Metadata>,
    /// Milliseconds since 1970; `None` without one.
    pub deadline_ms: Option<u64>,
}

/// Reads the body of a `/run`.
///
/// # Errors
/// When it is malformed, or its properties are too long.
pub fn activation(body: &[u8]) -> Result<Activation, MessageError> {
    let mut activation =
        Activation { value: b"{}".to_vec(), context: Vec::new(), deadline_ms: None };
    for (name, value) in members(body).map_err(MessageError::Body)? {
        if name == "value" {
            if value != b"null" {
                check_object(value).map_err(|error| wrong("value", error))?;
                activation.value = value.to_vec();
            }
        } else if is_property(&name)
            && let Some(text) = text(value)
        {
            if name == "deadline" {
                activation.deadline_ms = text.parse().ok();
            }
            activation.context.push(Metadata::of([context_key::OPENWHISK, &name].concat(), text));
        }
    }
    let bytes = activation.context.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
    if bytes > CONTEXT_MAX { Err(MessageError::Context { bytes }) } else { Ok(activation) }
}

fn is_property(name: &str) -> bool {
    let is_letter =
        |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'_';
    (1..=PROPERTY_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

/// A property: a text as it is, null not at all, all else as JSON.
fn text(value: &[u8]) -> Option<String> {
    match value.first() {
        Some(b'"') => serde_json::from_slice(value).ok(),
        Some(b'n') | None => None,
        Some(_) => String::from_utf8(value.to_vec()).ok(),
    }
}

/// Time until the deadline of an activation. One from before the start of the action is none: tests of OpenWhisk's
/// runtimes send such deadlines, and no activation can have one.
///
/// # Errors
/// [`MessageError::Deadline`] when it has passed.
pub fn time_left(
    deadline_ms: Option<u64>,
    started_ms: u64,
    now_ms: u64,
) -> Result<Duration, MessageError> {
    match deadline_ms {
        Some(deadline) if deadline >= started_ms => match deadline.checked_sub(now_ms) {
            None | Some(0) => Err(MessageError::Deadline),
            Some(left) => Ok(Duration::from_millis(left).min(ACTIVATION_MAX)),
        },
        _ => Ok(CALL_TIMEOUT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_texts_or_json() {
        let body = br#"{"value":{"name":"a","main":"main","code":"","binary":false,"env":
            {"ARRAY":["a","b"],"OBJECT":{"a":"A"},"STRING":"xyz","NUMBER":3,"BOOL":true,"NULL":null}}}"#;
        let Delivery { module, archive, export, env } = init(body).unwrap();
        assert_eq!((module, archive, export), (None, None, None));
        let expected = [
            r#"ARRAY=["a","b"]"#,
            "BOOL=true",
            "NULL=",
            "NUMBER=3",
            r#"OBJECT={"a":"A"}"#,
            "STRING=xyz",
        ];
        assert_eq!(env, expected);
    }

    #[test]
    fn variables_of_the_first_activation_are_left_out() {
        let body =
            br#"{"value":{"env":{"__OW_ACTIVATION_ID":"1","__OW_API_KEY":"k","__OW_DEADLINE":"9",
            "__OW_TRANSACTION_ID":"t","__OW_NAMESPACE":"guest","__OW_ACTION_NAME":"/guest/a"}}}"#;
        let env = init(body).unwrap().env;
        assert_eq!(env, ["__OW_ACTION_NAME=/guest/a", "__OW_NAMESPACE=guest"]);
    }

    #[test]
    fn code_is_a_module_in_base64() {
        let code = BASE64_STANDARD.encode(b"\0asm\x01\0\0\0");
        let body = format!(r#"{{"value":{{"main":"niam","code":"{code}","binary":true}}}}"#);
        let delivery = init(body.as_bytes()).unwrap();
        assert_eq!(delivery.module.as_deref(), Some(&b"\0asm\x01\0\0\0"[..]));
        assert_eq!(delivery.export.as_deref(), Some("niam"));
        assert_eq!(init(b"{}").unwrap(), Delivery::default());
    }

    #[test]
    fn what_is_wrong_with_an_init_is_said() {
        let long = format!(r#"{{"value":{{"env":{{"A":"{}"}}}}}}"#, "x".repeat(ENV_MAX));
        for (body, part) in [
            ("", "Error unmarshaling request"),
            ("[]", "no JSON object"),
            (r#"{"value":[]}"#, "`value` it is no JSON object"),
            (r#"{"value":{"code":1}}"#, "`code`"),
            (r#"{"value":{"code":"function main() {}"}}"#, "no base64"),
            (r#"{"value":{"code":"YWJj"}}"#, "neither a WebAssembly module"),
            (r#"{"value":{"env":{"A=B":"x"}}}"#, "no variable `A=B`"),
            (r#"{"value":{"env":[]}}"#, "`env`"),
            (&long, "more than 65536 bytes"),
        ] {
            let error = init(body.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{part} missing in: {error}");
        }
    }

    #[test]
    fn an_activation_has_parameters_and_properties() {
        let body = r#"{"value":{"n": 1.0},"namespace":"zzz","deadline":"123","version":2,"none":null,"Bad-Key":"x"}"#;
        let Activation { value, context, deadline_ms } = activation(body.as_bytes()).unwrap();
        assert_eq!((value.as_slice(), deadline_ms), (&br#"{"n": 1.0}"#[..], Some(123)));
        let context: Vec<_> =
            context.iter().map(|pair| (pair.key.as_str(), pair.value.as_slice())).collect();
        let expected: [(&str, &[u8]); 3] = [
            ("openwhisk.namespace", b"zzz"),
            ("openwhisk.deadline", b"123"),
            ("openwhisk.version", b"2"),
        ];
        assert_eq!(context, expected);
        assert_eq!(activation(br#"{"value":null}"#).unwrap().value, b"{}");
        assert!(activation(br#"{"value":[1]}"#).is_err());
        let long = format!(r#"{{"api_key":"{}"}}"#, "x".repeat(CONTEXT_MAX));
        assert!(matches!(activation(long.as_bytes()), Err(MessageError::Context { .. })));
    }

    #[test]
    fn a_deadline_counts_from_the_start_on() {
        let left = |deadline| time_left(deadline, 1000, 5000).ok();
        assert_eq!(left(None), Some(CALL_TIMEOUT));
        assert_eq!(left(Some(123)), Some(CALL_TIMEOUT));
        assert_eq!(left(Some(1000)), None);
        assert_eq!(left(Some(5000)), None);
        assert_eq!(left(Some(5001)), Some(Duration::from_millis(1)));
        assert_eq!(left(Some(u64::MAX)), Some(ACTIVATION_MAX));
    }
}
