//! Precompiled code of an image's module: an OCI artifact whose manifest has the image as its `subject`. Pure: bytes in,
//! facts out; the bytes are anybody's.
//!
//! The artifact's name is made of the image's repository and digest, as cosign names signatures: so one look-up finds it,
//! in containerd as in any registry. Its layers are pairs, a file of code and one of its signature, told apart by their
//! titles, as `oras` writes them.

use oci_spec::image::{Descriptor, ImageManifest};

use cwasi_coordinator::precompiled::{OFFERS_MAX, SIGNATURE_EXTENSION};

/// `artifactType` of the manifest.
pub const ARTIFACT_TYPE: &str = "application/vnd.cwasi.native.v1";
/// Media type of a layer with native code.
pub const CODE_TYPE: &str = "application/vnd.cwasi.native.code.v1";
/// Media type of a layer with a signature.
pub const SIGNATURE_TYPE: &str = "application/vnd.dsse.envelope.v1+json";
/// Annotation with a layer's file name.
pub const TITLE: &str = "org.opencontainers.image.title";
/// End of the artifact's tag.
const TAG_END: &str = ".cwasi";

/// One file of code, and its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedLayers {
    /// File name of the code.
    pub name: String,
    /// Digest of the code's layer.
    pub code: String,
    /// Digest of the signature's layer.
    pub signature: String,
}

/// The name of the artifact of an image: `REPOSITORY:sha256-….cwasi`. `None` for an image without a repository.
#[must_use]
pub fn name_of(image: &str, digest: &str) -> Option<String> {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let repository = name[last..].find(':').map_or(name, |colon| &name[..last + colon]);
    let (algorithm, hex) = digest.split_once(':')?;
    let is_named = !repository.is_empty() && repository != algorithm;
    is_named.then(|| format!("{repository}:{algorithm}-{hex}{TAG_END}"))
}

/// The signed code for an engine with this extension of native code, in an artifact that refers to the image `subject`.
///
/// # Errors
/// When it is no such artifact, for the user.
pub fn signed_code(
    manifest: &[u8],
    subject: &str,
    extension: &str,
) -> Result<Vec<SignedLayers>, String> {
    let manifest = ImageManifest::from_reader(manifest)
        .map_err(|error| format!("has a manifest that cannot be read ({error})"))?;
    let kind = manifest.artifact_type().as_ref().map(ToString::to_string).unwrap_or_default();
    if kind != ARTIFACT_TYPE {
        return Err(format!("is of the type `{}`, not {ARTIFACT_TYPE}", kind.escape_debug()));
    }
    let refers_to = manifest.subject().as_ref().map(|subject| subject.digest().to_string());
    if refers_to.as_deref() != Some(subject) {
        return Err("refers to another image".to_owned());
    }
    let titled = |wanted: &str| {
        manifest.layers().iter().find(|layer| title(layer) == Some(wanted)).map(digest)
    };
    let is_code = |name: &&str| name.ends_with(&format!(".{extension}"));
    let names = manifest.layers().iter().filter_map(title).filter(is_code);
    let pair = |name: &str| {
        let signature = titled(&format!("{name}.{SIGNATURE_EXTENSION}"))?;
        Some(SignedLayers { name: name.to_owned(), code: titled(name)?, signature })
    };
    Ok(names.filter_map(pair).take(OFFERS_MAX).collect())
}

fn title(layer: &Descriptor) -> Option<&str> {
    layer.annotations().as_ref()?.get(TITLE).map(String::as_str)
}

fn digest(layer: &Descriptor) -> String {
    layer.digest().to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const IMAGE: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn artifact() -> Value {
        let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let layer = |title: &str, digit: &str| json!({ "mediaType": CODE_TYPE, "digest": digest(digit), "size": 1, "annotations": { TITLE: title } });
        json!({
            "schemaVersion": 2,
            "artifactType": ARTIFACT_TYPE,
            "config": { "mediaType": "application/vnd.oci.empty.v1+json", "digest": digest("e"), "size": 2 },
            "layers": [
                layer("m.cwasm", "1"), layer("m.cwasm.sig", "2"), layer("m.so", "3"), layer("alone.cwasm", "4"),
                layer("gone.cwasm.sig", "5"),
            ],
            "subject": { "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": IMAGE, "size": 1 },
        })
    }

    #[test]
    fn the_name_has_repository_and_digest() {
        for (image, name) in [
            ("localhost/m:1", Some("localhost/m:sha256-ab.cwasi")),
            ("localhost:5000/team/m", Some("localhost:5000/team/m:sha256-ab.cwasi")),
            ("r.io/m:1@sha256:ab", Some("r.io/m:sha256-ab.cwasi")),
            ("m", Some("m:sha256-ab.cwasi")),
            ("sha256:ab", None),
            ("", None),
        ] {
            assert_eq!(name_of(image, "sha256:ab").as_deref(), name, "{image}");
        }
        assert_eq!(name_of("m", "none"), None);
    }

    #[test]
    fn code_and_signature_are_paired_by_their_titles() {
        let found = signed_code(artifact().to_string().as_bytes(), IMAGE, "cwasm").unwrap();
        let digest = |digit: &str| format!("sha256:{}", digit.repeat(64));
        let pair =
            SignedLayers { name: "m.cwasm".to_owned(), code: digest("1"), signature: digest("2") };
        assert_eq!(found, [pair]);
    }

    #[test]
    fn another_artifact_is_refused_with_the_reason() {
        let refused = |change: fn(&mut Value)| {
            let mut changed = artifact();
            change(&mut changed);
            signed_code(changed.to_string().as_bytes(), IMAGE, "cwasm").unwrap_err()
        };
        let other = |it: &mut Value| it["subject"]["digest"] = json!(IMAGE.replace('a', "b"));
        assert_eq!(refused(other), "refers to another image");
        assert_eq!(refused(|it| drop(it["subject"].take())), "refers to another image");
        assert!(refused(|it| it["artifactType"] = json!("x/y")).contains("`x/y`"));
        assert!(refused(|it| it["config"] = json!(1)).contains("cannot be read"));
    }
}
