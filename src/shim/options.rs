//! Runtime options from containerd: they name the node's configuration. Runs in the launcher.
//!
//! They arrive on the standard input of `start` in one of three shapes: nothing, a protobuf `Any` (containerd 1.6 to
//! 2.2), or `BootstrapParams` as JSON (2.3 and later). `runtimeoptions.v1.Options` apply to this runtime, and the
//! fields of `runc.v1.Options` about cgroups.

use std::io::{self, Read as _};
use std::path::PathBuf;

use protobuf::well_known_types::any::Any;
use protobuf::{CodedInputStream, Message as _};

use cwasi_config::RuncOptions;

/// Longest input in bytes.
const OPTIONS_MAX: u64 = 1024 * 1024;
/// The message that `ctr --runtime-config-path` and containerd's configuration send.
const OPTIONS_TYPE: &str = "runtimeoptions.v1.Options";
/// What `ctr` and clients of runc send.
const RUNC_TYPE: &str = "runc.v1.Options";
/// Protobuf wire type of numbers and truths.
const VARINT: u32 = 0;
/// Protobuf wire type of length-delimited fields.
const LENGTH_DELIMITED: u32 = 2;

/// Source of the node's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ConfigSource {
    /// Not given: the default file, if it exists.
    #[default]
    Default,
    /// TOML in the options.
    Body(String),
    Path(PathBuf),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Source of the node's configuration.
    pub source: ConfigSource,
    pub runc: RuncOptions,
}

impl From<ConfigSource> for RuntimeOptions {
    fn from(source: ConfigSource) -> Self {
        Self { source, ..Self::default() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    #[error("runtime options cannot be read from standard input: {0}")]
    Read(#[source] io::Error),
    /// The message is malformed.
    #[error("runtime options ({kind}) cannot be decoded: {source}")]
    Decode {
        kind: String,
        #[source]
        source: protobuf::Error,
    },
    #[error("config_body of the runtime options is not UTF-8 text; it holds TOML")]
    NotText,
    #[error("bootstrap parameters cannot be decoded: {0}")]
    Bootstrap(#[source] serde_json::Error),
}

/// Reads the standard input of `start`.
///
/// # Errors
/// When it is neither empty nor a known shape.
pub fn from_stdin() -> Result<RuntimeOptions, OptionsError> {
    let mut bytes = Vec::new();
    io::stdin().take(OPTIONS_MAX).read_to_end(&mut bytes).map_err(OptionsError::Read)?;
    decode(&bytes)
}

/// Decodes the bytes of standard input.
///
/// # Errors
/// As [`from_stdin`].
pub fn decode(bytes: &[u8]) -> Result<RuntimeOptions, OptionsError> {
    match bytes.first() {
        None => Ok(RuntimeOptions::default()),
        Some(b'{') => from_bootstrap(bytes),
        Some(_) => {
            let any = Any::parse_from_bytes(bytes)
                .map_err(|source| OptionsError::Decode { kind: "Any".to_owned(), source })?;
            from_any(&any)
        }
    }
}

/// Decodes options of a `CreateTaskRequest` or of standard input. Options of other runtimes are ignored.
///
/// # Errors
/// When they are of a known type and malformed.
pub fn from_any(any: &Any) -> Result<RuntimeOptions, OptionsError> {
    if any.type_url.ends_with(RUNC_TYPE) {
        return from_runc(&any.value);
    }
    if !any.type_url.ends_with(OPTIONS_TYPE) {
        return Ok(RuntimeOptions::default());
    }
    let (mut path, mut body) = (String::new(), Vec::new());
    let failed = |source| OptionsError::Decode { kind: OPTIONS_TYPE.to_owned(), source };
    let mut stream = CodedInputStream::from_bytes(&any.value);
    while let Some(tag) = stream.read_raw_tag_or_eof().map_err(failed)? {
        match (tag >> 3, tag & 7) {
            (2, LENGTH_DELIMITED) => path = stream.read_string().map_err(failed)?,
            (3, LENGTH_DELIMITED) => body = stream.read_bytes().map_err(failed)?,
            (_, kind) => skip(&mut stream, kind).map_err(failed)?,
        }
    }
    choose(path, body).map(RuntimeOptions::from)
}

/// Of `runc.v1.Options`. A truth that is false is not sent: it says nothing.
fn from_runc(bytes: &[u8]) -> Result<RuntimeOptions, OptionsError> {
    let mut runc = RuncOptions::default();
    let failed = |source| OptionsError::Decode { kind: RUNC_TYPE.to_owned(), source };
    let mut stream = CodedInputStream::from_bytes(bytes);
    while let Some(tag) = stream.read_raw_tag_or_eof().map_err(failed)? {
        match (tag >> 3, tag & 7) {
            (3, LENGTH_DELIMITED) => {
                runc.shim_cgroup = Some(stream.read_string().map_err(failed)?);
            }
            (9, VARINT) => runc.systemd_cgroup = Some(stream.read_bool().map_err(failed)?),
            (_, kind) => skip(&mut stream, kind).map_err(failed)?,
        }
    }
    Ok(RuntimeOptions { runc, ..RuntimeOptions::default() })
}

/// Passes over a field's value of this wire type.
fn skip(stream: &mut CodedInputStream<'_>, kind: u32) -> Result<(), protobuf::Error> {
    match kind {
        LENGTH_DELIMITED => drop(stream.read_bytes()?),
        VARINT => drop(stream.read_raw_varint64()?),
        1 => drop(stream.read_fixed64()?),
        // Groups do not exist in proto3; anything else ends the message.
        _ => drop(stream.read_fixed32()?),
    }
    Ok(())
}

/// The body takes precedence: containerd sends the path along with it.
fn choose(path: String, body: Vec<u8>) -> Result<ConfigSource, OptionsError> {
    if !body.is_empty() {
        return String::from_utf8(body).map(ConfigSource::Body).map_err(|_| OptionsError::NotText);
    }
    Ok(if path.is_empty() { ConfigSource::Default } else { ConfigSource::Path(path.into()) })
}

/// Options inside `BootstrapParams` (containerd 2.3 and later): an extension of our type.
fn from_bootstrap(bytes: &[u8]) -> Result<RuntimeOptions, OptionsError> {
    let params: serde_json::Value =
        serde_json::from_slice(bytes).map_err(OptionsError::Bootstrap)?;
    let extensions = params.get("extensions").and_then(|list| list.as_array());
    for extension in extensions.into_iter().flatten() {
        let Some(value) = extension.get("value") else { continue };
        let text = |keys: [&str; 2]| {
            let found = keys.iter().find_map(|key| value.get(*key)?.as_str());
            found.unwrap_or_default().to_owned()
        };
        let kind = text(["@type", "type_url"]);
        if kind.ends_with(OPTIONS_TYPE) {
            let body = base64_decode(&text(["configBody", "config_body"]));
            let source =
                choose(text(["configPath", "config_path"]), body.ok_or(OptionsError::NotText)?);
            return source.map(RuntimeOptions::from);
        }
        if kind.ends_with(RUNC_TYPE) {
            let shim = text(["shimCgroup", "shim_cgroup"]);
            let driver = ["systemdCgroup", "systemd_cgroup"];
            let runc = RuncOptions {
                systemd_cgroup: driver.iter().find_map(|key| value.get(*key)?.as_bool()),
                shim_cgroup: (!shim.is_empty()).then_some(shim),
            };
            return Ok(RuntimeOptions { runc, ..RuntimeOptions::default() });
        }
    }
    Ok(RuntimeOptions::default())
}

/// Decodes standard base64, as in protobuf's JSON; `None` if it is malformed.
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
        let decode = |bytes: &[u8]| decode(bytes).map(|options| options.source);
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
    fn of_runcs_options_those_about_cgroups_count() {
        let runc = |systemd_cgroup, shim: Option<&str>| RuntimeOptions {
            runc: RuncOptions { systemd_cgroup, shim_cgroup: shim.map(str::to_owned) },
            ..RuntimeOptions::default()
        };
        let any = |value: &[u8]| {
            let type_url = "containerd.runc.v1.Options".into();
            from_any(&Any { type_url, value: value.to_vec(), ..Any::default() })
        };
        // no_pivot_root, shim_cgroup, io_uid, root, systemd_cgroup
        let all = b"\x08\x01\x1a\x02/s\x20\x07\x3a\x01r\x48\x01";
        assert_eq!(any(all).unwrap(), runc(Some(true), Some("/s")));
        assert_eq!(any(b"\x08\x01").unwrap(), runc(None, None));
        assert!(matches!(any(b"\x1a\x09"), Err(OptionsError::Decode { .. })));
        let params = br#"{"extensions":[{"value":{"@type":"x/containerd.runc.v1.Options","systemdCgroup":true}}]}"#;
        assert_eq!(decode(params).unwrap(), runc(Some(true), None));
    }

    #[test]
    fn foreign_options_are_ignored() {
        let foreign = Any { type_url: "containerd.kata.v1.Options".into(), ..Any::default() };
        assert_eq!(from_any(&foreign).unwrap(), RuntimeOptions::default());
        let broken = Any { type_url: OPTIONS_TYPE.into(), value: vec![0x12, 9], ..Any::default() };
        assert!(matches!(from_any(&broken), Err(OptionsError::Decode { .. })));
        assert!(matches!(decode(b"{"), Err(OptionsError::Bootstrap(_))));
        assert!(matches!(decode(&options(&[(3, &[0xff])])), Err(OptionsError::NotText)));
    }
}
