//! Trust against the rules as a user reads them.

use proptest::prelude::*;

use super::*;

fn identity(pod_namespace: &str) -> Identity {
    Identity {
        namespace: "n".into(),
        pod_namespace: pod_namespace.into(),
        function: "caller".into(),
    }
}

fn image() -> Image {
    Image { name: "localhost/fn-utils:test".into(), digest: "sha256:aa".into() }
}

fn deployment(pod: &str, workflow: &str, trust: &str) -> Deployment {
    Deployment {
        container: "c".into(),
        image: image().name,
        path: "/m.wasm".into(),
        pod_namespace: pod.into(),
        function: "fn-utils".into(),
        workflow: workflow.into(),
        trust: trust.into(),
        engine: None,
    }
}

fn wish(image: Option<&str>, digest: Option<&str>) -> Embed {
    Embed {
        module: "fn_utils".into(),
        image: image.map(str::to_owned),
        digest: digest.map(str::to_owned),
    }
}

/// The caller is of workflow `w` and trust group `t`.
fn verdict(
    pod: &str,
    wish: Option<&Embed>,
    deployments: &[Deployment],
    spanning: &[&str],
) -> Result<String, String> {
    let identity = identity(pod);
    let engine = Engine::Wasmtime;
    let caller = EmbeddingCaller { identity: &identity, workflow: "w", trust: "t", engine };
    let spanning: Vec<String> = spanning.iter().map(|&group| group.to_owned()).collect();
    let known = NodeFacts { images: &[image()], deployments, spanning: &spanning, engine };
    let judged = judge("fn_utils", wish, caller, &known);
    judged.map(|grant| grant.reason).map_err(|refusal| refusal.why)
}

#[test]
fn a_name_alone_is_never_enough() {
    for wish in [None, Some(wish(None, None))] {
        let why = verdict("", wish.as_ref(), &[], &[]).unwrap_err();
        assert!(why.contains("localhost/fn-utils:test has that name"), "{why}");
        assert!(
            why.contains("cwasi.embed=fn_utils=localhost/fn-utils:test@sha256:aa"),
            "what would help: {why}"
        );
    }
}

#[test]
fn the_callers_annotation_names_an_image() {
    let named = wish(Some("localhost/fn-utils:test"), None);
    assert!(verdict("", Some(&named), &[], &[]).is_ok());
    let in_pod = verdict("p", Some(&named), &[], &[]).unwrap_err();
    assert!(in_pod.contains("in a pod the name"), "{in_pod}");
    assert!(verdict("p", Some(&named), &[deployment("p", "w", "")], &[]).is_ok());
    assert!(verdict("p", Some(&named), &[deployment("q", "w", "t")], &[]).is_err());
    let good = wish(Some("localhost/fn-utils:test"), Some("sha256:aa"));
    assert!(verdict("p", Some(&good), &[], &[]).is_ok());
    let bad = wish(Some("localhost/fn-utils:test"), Some("sha256:bb"));
    let why = verdict("", Some(&bad), &[deployment("", "w", "t")], &[]).unwrap_err();
    assert!(
        why.contains("pins") && why.contains("sha256:bb") && why.contains("sha256:aa"),
        "{why}"
    );
    let missing = wish(Some("localhost/other"), None);
    let why = verdict("", Some(&missing), &[], &[]).unwrap_err();
    assert!(why.contains("does not have in namespace `n`"), "{why}");
}

#[test]
fn a_vm_has_one_engine() {
    let of = |engine| Deployment { engine, ..deployment("", "w", "") };
    let (same, other) = (of(Some(Engine::Wasmtime)), of(Some(Engine::Wasmedge)));
    let named = wish(Some("localhost/fn-utils:test"), None);
    let pinned = wish(Some("localhost/fn-utils:test"), Some("sha256:aa"));
    for wish in [None, Some(&named), Some(&pinned)] {
        for deployed in
            [&[of(None)][..], std::slice::from_ref(&same), &[other.clone(), same.clone()]]
        {
            assert!(verdict("", wish, deployed, &[]).is_ok(), "{deployed:?}");
        }
        let why = verdict("", wish, std::slice::from_ref(&other), &[]).unwrap_err();
        assert_eq!(
            why,
            "container c (image localhost/fn-utils:test) has the engine wasmedge, this function wasmtime: give both the \
             same cwasi.engine"
        );
    }
    // What does not vouch says nothing about the image that the caller names.
    let strange = Deployment { workflow: "x".into(), ..other };
    assert!(verdict("", Some(&named), &[strange], &[]).is_ok());
}

#[test]
fn two_deployed_images_are_one_too_many() {
    let other = Image { name: "localhost/fn-utils:2".into(), digest: "sha256:cc".into() };
    let second = Deployment { image: other.name.clone(), ..deployment("", "w", "") };
    let identity = identity("");
    let engine = Engine::Wasmtime;
    let caller = EmbeddingCaller { identity: &identity, workflow: "w", trust: "", engine };
    let deployments = [deployment("", "w", ""), second];
    let images = [image(), other];
    let known = NodeFacts { images: &images, deployments: &deployments, spanning: &[], engine };
    let why = judge("fn_utils", None, caller, &known).unwrap_err().why;
    assert!(why.contains("localhost/fn-utils:test and localhost/fn-utils:2"), "{why}");
}

#[test]
fn names_of_images_and_modules() {
    assert_eq!(last_component("docker.io/lib/fn-utils:1@sha256:aa"), "fn-utils");
    assert_eq!(last_component("host:5000/fn_utils"), "fn_utils");
    assert!(same_name("fn_utils", "fn-utils") && !same_name("fn_utils", "fn_util"));
    assert!(same_image("docker.io/lib/x:latest", "docker.io/lib/x"));
    assert!(!same_image("docker.io/lib/x:1", "docker.io/lib/x"));
}

proptest! {
    #[test]
    fn a_deployment_vouches_exactly_in_its_scope_and_group(
        pod in prop::sample::select(vec!["", "p", "q"]),
        other_pod in prop::sample::select(vec!["", "p", "q"]),
        workflow in prop::sample::select(vec!["", "w", "x"]),
        trust in prop::sample::select(vec!["", "t", "u"]),
        spanning: bool,
    ) {
        let spans: &[&str] = if spanning { &["t"] } else { &[] };
        let judged = verdict(pod, None, &[deployment(other_pod, workflow, trust)], spans);
        let same_scope = pod == other_pod;
        let expected = (same_scope && (workflow == "w" || trust == "t")) || (trust == "t" && spanning);
        prop_assert_eq!(judged.is_ok(), expected, "{:?}", judged);
    }
}
