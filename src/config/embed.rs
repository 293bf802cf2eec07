//! Parses `cwasi.embed`: the modules to run in a function's VM. Runs in launcher and shim daemon.

use super::values;

/// Most entries of one function.
pub const EMBED_MAX: usize = 32;
/// Prefix of containerd's image digests.
const SHA256: &str = "sha256:";
/// Hexadecimal digits of a sha256.
const SHA256_DIGITS: usize = 64;
/// Import modules that the host provides.
const HOSTS: [&str; 2] = [cwasi_abi::IMPORT_MODULE, "wasi_snapshot_preview1"];

/// One entry: `module[=image[@digest]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Embed {
    /// Name of the import module or of the called function.
    pub module: String,
    /// Its image; `None` = the image of a trusted function of this name.
    pub image: Option<String>,
    /// Required digest of the image, `sha256:…`.
    pub digest: Option<String>,
}

impl Embed {
    /// Parses the annotation's value.
    ///
    /// # Errors
    /// The bad entry and its fault, as the end of a sentence that starts with the annotation.
    pub fn list(value: &str) -> Result<Vec<Self>, String> {
        let mut entries: Vec<Self> = Vec::new();
        for text in values::list(value)? {
            let entry =
                entry(&text).map_err(|problem| format!("has the entry `{text}`, {problem}"))?;
            if entries.iter().any(|known| known.module == entry.module) {
                return Err(format!("names `{}` twice", entry.module));
            }
            entries.push(entry);
        }
        if entries.len() > EMBED_MAX {
            return Err(format!("has {} entries; at most {EMBED_MAX} are allowed", entries.len()));
        }
        Ok(entries)
    }
}

fn entry(text: &str) -> Result<Embed, String> {
    let (module, image) = match text.split_once('=') {
        Some((module, image)) => (module, Some(image)),
        None => (text, None),
    };
    let module = values::name(module).map_err(|problem| format!("whose module name {problem}"))?;
    if HOSTS.contains(&module.as_str()) {
        return Err("which the host itself provides".to_owned());
    }
    let Some(image) = image else { return Ok(Embed { module, image: None, digest: None }) };
    let (image, digest) = match image.split_once('@') {
        Some((image, digest)) => (image, Some(digest)),
        None => (image, None),
    };
    if image.is_empty() {
        return Err("which names no image after `=`".to_owned());
    }
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err(format!(
            "whose digest must be {SHA256} and {SHA256_DIGITS} lower-case hexadecimal digits"
        ));
    }
    Ok(Embed { module, image: Some(image.to_owned()), digest: digest.map(str::to_owned) })
}

fn is_digest(text: &str) -> bool {
    text.strip_prefix(SHA256).is_some_and(|digits| {
        digits.len() == SHA256_DIGITS
            && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_name_a_module_an_image_and_a_digest() {
        let digest = format!("sha256:{}", "0a".repeat(32));
        let value = format!("fn_utils, geo=host:5000/lib/geo:1,x=y@{digest}");
        let entries = Embed::list(&value).unwrap();
        let rows: Vec<_> = entries
            .iter()
            .map(|e| (e.module.as_str(), e.image.as_deref(), e.digest.as_deref()))
            .collect();
        assert_eq!(
            rows,
            [
                ("fn_utils", None, None),
                ("geo", Some("host:5000/lib/geo:1"), None),
                ("x", Some("y"), Some(digest.as_str()))
            ]
        );
    }

    #[test]
    fn nonsense_is_refused_with_its_entry() {
        let many: Vec<String> = (0..=EMBED_MAX).map(|n| format!("m{n}")).collect();
        for (value, part) in [
            ("a=", "no image"),
            ("cwasi", "the host itself"),
            ("-a", "`-a`"),
            ("a=b@sha256:12", "64 lower-case"),
            ("a=b@md5:12", "64 lower-case"),
            ("a,b,a=x", "`a` twice"),
            (&many.join(","), "at most 32"),
        ] {
            let problem = Embed::list(value).unwrap_err();
            assert!(problem.contains(part), "{part} missing in: {problem}");
        }
    }
}
