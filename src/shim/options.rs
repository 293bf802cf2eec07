//! Runtime options: where a user or containerd's configuration says how the node is set up.
//!
//! Runs in the launcher. They arrive on the standard input of `start` in one of three shapes:
//! nothing, a protobuf `Any` (containerd 1.6 to 2.2), or `BootstrapParams` as JSON (2.3 and later, which
//! a reader that expects the `Any` would misread). Only `runtimeoptions.v1.Options` mean something to us.

use std::io::{self, Read as _};
use std::path::PathBuf;

use containerd_shim::protos::protobuf::well_known_types::any::Any;
use containerd_shim::protos::protobuf::{CodedInputStream, Message as _};

/// Longest input that is read, in bytes.
const OPTIONS_MAX: u64 = 1024 * 1024;
/// The message that `ctr --runtime-config-path` and containerd's configuration send.
const OPTIONS_TYPE: &str = "runtimeoptions.v1.Options";
/// Protobuf wire type of length-delimited fields.
const LENGTH_DELIMITED: u32 = 2;

/// Where the node configuration is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConfigSource {
    /// Nothing was said: the default file, if there is one.
    #[default]
    Default,
    /// TOML in the options.
    Body(String),
    /// A TOML file.
    Path(PathBuf),
}

/// Options that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// Standard input cannot be read.
    #[error("runtime options cannot be read from standard input: {0}")]
    Read(#[source] io::Error),
    /// The message is broken.
    #[error("runtime options ({kind}) cannot be decoded: {source}")]
    Decode {
        /// Its type.
        kind: String,
        /// What the decoder says.
        #[source]
        source: containerd_shim::protos::protobuf::Error,
    },
    /// `config_body` is no text.
    #[error("config_body of the runtime options is not UTF-8 text; it holds TOML")]
    NotText,
    /// Bootstrap parameters that are no JSON.
    #[error("bootstrap parameters cannot be decoded: {0}")]
    Bootstrap(#[source] serde_json::Error),
}

/// Reads what containerd writes to the standard input of `start`.
///
/// # Errors
/// When it is neither empty nor something that we understand.
pub fn from_stdin() -> Result<ConfigSource, OptionsError> {
    let mut bytes = Vec::new();
    io::stdin().take(OPTIONS_MAX).read_to_end(&mut bytes).map_err(OptionsError::Read)?;
    decode(&bytes)
}

/// What the bytes on standard input say.
///
/// # Errors
/// As [`from_stdin`].
pub fn decode(bytes: &[u8]) -> Result<ConfigSource, OptionsError> {
    match bytes.first() {
        None => Ok(ConfigSource::Default),
        Some(b'{') => from_bootstrap(bytes),
        Some(_) => {
            let any = Any::parse_from_bytes(bytes)
                .map_err(|source| OptionsError::Decode { kind: "Any".to_owned(), source })?;
            from_any(&any)
        }
    }
}

/// What options in a `CreateTaskRequest` or on standard input say; options of other runtimes say nothing.
///
/// # Errors
/// When they are ours and cannot be decoded.
pub fn from_any(any: &Any) -> Result<ConfigSource, OptionsError> {
    if !any.type_url.ends_with(OPTIONS_TYPE) {
        return Ok(ConfigSource::Default);
    }
    let (mut path, mut body) = (String::new(), Vec::new());
    let failed = |source| OptionsError::Decode { kind: OPTIONS_TYPE.to_owned(), source };
    let mut stream = CodedInputStream::from_bytes(&any.value);
    while let Some(tag) = stream.read_raw_tag_or_eof().map_err(failed)? {
        match (tag >> 3, tag & 7) {
            (2, LENGTH_DELIMITED) => path = stream.read_string().map_err(failed)?,
            (3, LENGTH_DELIMITED) => body = stream.read_bytes().map_err(failed)?,
            (_, LENGTH_DELIMITED) => drop(stream.read_bytes().map_err(failed)?),
            (_, 0) => drop(stream.read_raw_varint64().map_err(failed)?),
            (_, 1) => drop(stream.read_fixed64().map_err(failed)?),
            // Groups do not exist in proto3; anything else ends the message.
            _ => drop(stream.read_fixed32().map_err(failed)?),
        }
    }
    choose(path, body)
}

/// The body wins: containerd sends the path along for the record.
fn choose(path: String, body: Vec<u8>) -> Result<ConfigSource, OptionsError> {
    if !body.is_empty() {
        return String::from_utf8(body).map(ConfigSource::Body).map_err(|_| OptionsError::NotText);
    }
    Ok(if path.is_empty() { ConfigSource::Default } else { ConfigSource::Path(path.into()) })
}

/// Options inside `BootstrapParams` (containerd 2.3 and later): an extension of our type.
fn from_bootstrap(bytes: &[u8]) -> Result<ConfigSource, OptionsError> {
    let params: serde_json::Value =
        serde_json::from_slice(bytes).map_err(OptionsError::Bootstrap)?;
    let extensions = params.get("extensions").and_then(|list| list.as_array());
    for extension in extensions.into_iter().flatten() {
        let Some(value) = extension.get("value") else { continue };
        let text = |keys: [&str; 2]| {
            let found = keys.iter().find_map(|key| value.get(*key)?.as_str());
            found.unwrap_or_default().to_owned()
        };
        if text(["@type", "type_url"]).ends_with(OPTIONS_TYPE) {
            let body = base64_decode(&text(["configBody", "config_body"]));
            return choose(text(["configPath", "config_path"]), body.ok_or(OptionsError::NotText)?);
        }
    }
    Ok(ConfigSource::Default)
}

/// Standard base64, as protobuf's JSON writes `bytes`; `None` when it is not.
fn base64_decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').bytes().map(|byte| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    });
    let (mut out, mut bits, mut held) = (Vec::new(), 0_u32, 0_u32);
    for digit in digits {
        held = (held << 6) | u32::from(digit?);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push(u8::try_from((held >> bits) & 0xff).ok()?);
            held &= (1 << bits) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(fields: &[(u8, &[u8])]) -> Vec<u8> {
        let mut value = Vec::new();
        for (number, bytes) in fields {
            value.extend([number << 3 | 2, u8::try_from(bytes.len()).unwrap()]);
            value.extend_from_slice(bytes);
        }
        let any = Any { type_url: OPTIONS_TYPE.into(), value, ..Any::default() };
        any.write_to_bytes().unwrap()
    }

    #[test]
    fn the_three_shapes_of_standard_input_are_told_apart() {
        assert_eq!(decode(b"").unwrap(), ConfigSource::Default);
        let path = options(&[(1, b"io.x"), (2, b"/etc/n.toml")]);
        assert_eq!(decode(&path).unwrap(), ConfigSource::Path("/etc/n.toml".into()));
        let body = options(&[(2, b"/etc/n.toml"), (3, b"node = \"a\"")]);
        assert_eq!(decode(&body).unwrap(), ConfigSource::Body("node = \"a\"".into()));
        let params = br#"{"instanceId":"runtimeoptions.v1.Options","namespace":"default","extensions":[
            {"value":{"@type":"type.googleapis.com/runtimeoptions.v1.Options","configBody":"bm9kZT0iYSI="}}]}"#;
        assert_eq!(decode(params).unwrap(), ConfigSource::Body("node=\"a\"".into()));
        assert_eq!(decode(br#"{"instanceId":"c"}"#).unwrap(), ConfigSource::Default);
    }

    #[test]
    fn foreign_options_say_nothing_and_broken_ones_are_errors() {
        let foreign = Any { type_url: "containerd.runc.v1.Options".into(), ..Any::default() };
        assert_eq!(from_any(&foreign).unwrap(), ConfigSource::Default);
        let broken = Any { type_url: OPTIONS_TYPE.into(), value: vec![0x12, 9], ..Any::default() };
        assert!(matches!(from_any(&broken), Err(OptionsError::Decode { .. })));
        assert!(matches!(decode(b"{"), Err(OptionsError::Bootstrap(_))));
        assert!(matches!(decode(&options(&[(3, &[0xff])])), Err(OptionsError::NotText)));
    }
}
