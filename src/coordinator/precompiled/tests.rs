//! Signatures and keys: what a node believes, and each way in which it does not.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use super::*;

/// What comes before the 32 bytes of a private key, as `openssl genpkey` writes it.
const PRIVATE_PREFIX: [u8; 16] =
    [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
const PUBLIC_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64_STANDARD.encode(der))
}

/// Writes the keys that a seed of such bytes gives: the path of the private one, and that of the public one as the
/// configuration has it.
pub fn key_files(dir: &Path, seed: u8) -> (PathBuf, String) {
    let (private, public) =
        (dir.join(format!("{seed}.pem")), dir.join(format!("{seed}.public.pem")));
    let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
    let der = [&PRIVATE_PREFIX[..], &[seed; 32]].concat();
    fs::write(&private, pem("PRIVATE KEY", &der)).unwrap();
    let der = [&PUBLIC_PREFIX[..], pair.public_key().as_ref()].concat();
    fs::write(&public, pem("PUBLIC KEY", &der)).unwrap();
    (private, public.display().to_string())
}

fn node() -> Fingerprint {
    let own = |text: &str| text.to_owned();
    Fingerprint {
        version: own("2"),
        options: own("fast"),
        architecture: own("m68k"),
        features: own("fpu mmu"),
    }
}

fn statement() -> Statement {
    let Fingerprint { version, options, architecture, .. } = node();
    Statement {
        module: "aa".to_owned(),
        engine: Engine::Wasmtime,
        version,
        options,
        architecture,
        features: vec!["fpu".to_owned()],
        code: "bb".to_owned(),
        length: 4,
    }
}

struct Signer {
    _dir: tempfile::TempDir,
    private: SigningKey,
    trusted: TrustedKeys,
}

impl Signer {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (private, public) = key_files(dir.path(), 7);
        let (private, trusted) =
            (SigningKey::read(&private).unwrap(), TrustedKeys::read(&[public]));
        assert_eq!(trusted.unusable(), "");
        Self { _dir: dir, private, trusted }
    }

    fn verify(&self, signature: &[u8]) -> Result<Verified, PrecompiledError> {
        verify(signature, &self.trusted, ("aa", Engine::Wasmtime), &node())
    }
}

#[test]
fn a_signature_of_a_trusted_key_is_believed() {
    let signer = Signer::new();
    let verified = signer.verify(&sign(&signer.private, &statement())).unwrap();
    assert_eq!((verified.code(), verified.length()), ("bb", 4));
    assert_eq!(Some(verified.key()), signer.trusted.ids().next());
}

#[test]
fn a_key_may_stand_in_the_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let (private, public) = key_files(dir.path(), 7);
    let text = fs::read_to_string(&public).unwrap();
    let keys = TrustedKeys::read(std::slice::from_ref(&text));
    let signature = sign(&SigningKey::read(&private).unwrap(), &statement());
    verify(&signature, &keys, ("aa", Engine::Wasmtime), &node()).unwrap();
    let keys = TrustedKeys::read(&[text.replace("PUBLIC", "PRIVATE")]);
    assert!(keys.is_empty() && keys.unusable().contains("an entry of trusted_keys is no public"));
}

#[test]
fn without_its_key_a_signature_is_worth_nothing() {
    let signer = Signer::new();
    let signature = sign(&signer.private, &statement());
    let dir = tempfile::tempdir().unwrap();
    let (other, public) = key_files(dir.path(), 8);
    let with = |keys: &[String]| {
        let keys = TrustedKeys::read(keys);
        verify(&signature, &keys, ("aa", Engine::Wasmtime), &node()).unwrap_err().to_string()
    };
    let error = with(&[]);
    assert!(error.contains("this node trusts no key: name the public key"), "{error}");
    let error = with(&[public]);
    assert!(error.contains("none of this node's trusted keys has signed it"), "{error}");
    let error = with(&[dir.path().join("none.pem").display().to_string()]);
    assert!(error.contains("trusts no key") && error.contains("none.pem"), "{error}");
    // A private key is no public one.
    let error = with(&[other.display().to_string()]);
    assert!(error.contains("8.pem is no public Ed25519 key"), "{error}");
}

#[test]
fn no_bit_of_a_signature_can_change() {
    let signer = Signer::new();
    let signature = sign(&signer.private, &statement());
    for bit in 0..signature.len() * 8 {
        let mut damaged = signature.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(signer.verify(&damaged).is_err(), "bit {bit}");
    }
    for length in 0..signature.len() {
        assert!(signer.verify(&signature[..length]).is_err(), "{length} bytes");
    }
    let long = vec![b' '; usize::try_from(SIGNATURE_MAX).unwrap() + 1];
    let error = signer.verify(&long).unwrap_err().to_string();
    assert!(error.contains("more than 65536 bytes"), "{error}");
}

#[test]
fn code_for_something_else_is_refused_with_its_difference() {
    let signer = Signer::new();
    let own = |text: &str| text.to_owned();
    type Change = fn(&mut Statement);
    let changes: [(Change, &str); 7] = [
        (|it| it.module = "cc".to_owned(), "it is of another module, sha256:cc"),
        (
            |it| it.engine = Engine::Wasmedge,
            "for the engine wasmedge, and this function has wasmtime",
        ),
        (
            |it| it.version = "1".to_owned(),
            "it is for wasmtime 1, and this node has 2: compile it again",
        ),
        (
            |it| it.options = "slow".to_owned(),
            "compiled with `slow`, and this node compiles with `fast`",
        ),
        (|it| it.architecture = "vax".to_owned(), "for processors of vax, and this one is m68k"),
        (|it| it.features.push("fp".to_owned()), "features that this node's processor lacks: fp"),
        (|it| it.length = u64::MAX, "code of more than 536870912 bytes is not taken"),
    ];
    for (change, part) in changes {
        let mut changed = statement();
        change(&mut changed);
        let error = signer.verify(&sign(&signer.private, &changed)).unwrap_err().to_string();
        assert!(error.contains(part), "{part} missing in: {error}");
    }
    let json = String::from_utf8(statement().to_json()).unwrap();
    let more = json.replacen('{', r#"{"until":1,"#, 1);
    let error = signer.verify(&envelope::seal(&signer.private, more.as_bytes())).unwrap_err();
    assert!(
        error.to_string().contains("another version of `cwasi compile`"),
        "{}",
        own(&error.to_string())
    );
}

#[test]
fn a_file_that_is_no_key_is_named_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let (private, public) = key_files(dir.path(), 9);
    let error = SigningKey::read(Path::new(&public)).err().unwrap().to_string();
    assert!(error.contains("openssl genpkey -algorithm ed25519"), "{error}");
    assert!(SigningKey::read(&dir.path().join("none")).err().unwrap().to_string().contains("none"));
    fs::write(&private, "no key").unwrap();
    SigningKey::read(&private).err().unwrap();
    // Another curve's, of the right length.
    let der = [&PUBLIC_PREFIX[..8], &[0x6e, 3, 0x21, 0], &[1; 32]].concat();
    fs::write(&public, pem("PUBLIC KEY", &der)).unwrap();
    let keys = TrustedKeys::read(&[public]);
    assert!(keys.is_empty() && keys.unusable().contains("no public Ed25519 key"));
}

#[test]
fn a_key_that_another_user_can_change_is_not_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let (_, public) = key_files(dir.path(), 9);
    fs::set_permissions(&public, fs::Permissions::from_mode(0o666)).unwrap();
    let keys = TrustedKeys::read(&[public]);
    assert!(
        keys.is_empty() && keys.unusable().contains("everybody may write"),
        "{}",
        keys.unusable()
    );
}

proptest::proptest! {
    #[test]
    fn foreign_bytes_are_never_believed(bytes in proptest::collection::vec(0_u8.., 0..200)) {
        proptest::prop_assert!(Signer::new().verify(&bytes).is_err());
    }
}
