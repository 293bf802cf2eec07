//! Who is loaded into whose VM, by names out of images and containers (`coordinator::trust`, `config::embed`).
#![no_main]

use arbitrary::Arbitrary;
use cwasi_config::FunctionSpec;
use cwasi_coordinator::trust::{Deployment, EmbeddingCaller, Image, NodeFacts, judge, same_name};
use cwasi_wire::ids::Identity;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Case<'a> {
    /// The caller's `cwasi.embed`.
    embed: &'a str,
    name: &'a str,
    caller: Group,
    images: Vec<(Name<'a>, u8)>,
    deployments: Vec<(Name<'a>, Name<'a>, Group)>,
    spans: bool,
}

/// Few names, so that they meet.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Group {
    pod: u8,
    workflow: u8,
    trust: u8,
}

#[derive(Arbitrary, Debug)]
enum Name<'a> {
    Same,
    Latest,
    Any(&'a str),
}

impl Name<'_> {
    fn text(&self, name: &str) -> String {
        match self {
            Self::Same => name.to_owned(),
            Self::Latest => format!("{name}:latest"),
            Self::Any(text) => (*text).to_owned(),
        }
    }
}

fn word(number: u8) -> String {
    ["", "a", "b"][usize::from(number) % 3].to_owned()
}

fn digest(number: u8) -> String {
    format!("sha256:{:064x}", number & 3)
}

fuzz_target!(|case: Case<'_>| {
    let annotations = [("cwasi.embed", case.embed), ("cwasi.trust", "x")];
    let wishes = FunctionSpec::parse(annotations).map_or_else(|_| Vec::new(), |spec| spec.embed);
    let wish = wishes.iter().find(|wish| wish.module == case.name);
    let image_name =
        wish.and_then(|wish| wish.image.clone()).unwrap_or_else(|| case.name.to_owned());
    let images: Vec<Image> = case
        .images
        .iter()
        .map(|(name, number)| Image { name: name.text(&image_name), digest: digest(*number) })
        .collect();
    let deployments: Vec<Deployment> = case
        .deployments
        .iter()
        .map(|(image, function, group)| Deployment {
            container: "c".to_owned(),
            image: image.text(&image_name),
            path: "/m.wasm".to_owned(),
            pod_namespace: word(group.pod),
            function: function.text(case.name),
            workflow: word(group.workflow),
            trust: word(group.trust),
            engine: None,
        })
        .collect();
    let identity = Identity {
        namespace: "n".to_owned(),
        pod_namespace: word(case.caller.pod),
        function: "f".to_owned(),
    };
    let (workflow, trust) = (word(case.caller.workflow), word(case.caller.trust));
    let engine = cwasi_config::DEFAULT_ENGINE;
    let caller =
        EmbeddingCaller { identity: &identity, workflow: &workflow, trust: &trust, engine };
    let spanning = if case.spans { vec!["a".to_owned()] } else { Vec::new() };
    let known =
        NodeFacts { images: &images, deployments: &deployments, spanning: &spanning, engine };
    match judge(case.name, wish, caller, &known) {
        Ok(grant) => {
            assert!(images.contains(&grant.image), "an image that does not exist");
            let vouches = |one: &Deployment| {
                let same_scope = one.pod_namespace == identity.pod_namespace;
                let of_workflow = same_scope && !workflow.is_empty() && one.workflow == workflow;
                let may_span = same_scope || spanning.contains(&trust);
                of_workflow || (may_span && !trust.is_empty() && one.trust == trust)
            };
            let is_named = |wish: &cwasi_config::annotations::Embed| {
                let pinned = wish.digest.as_ref() == Some(&grant.image.digest);
                let named = wish.digest.is_none() && identity.pod_namespace.is_empty();
                wish.image.is_some() && (pinned || named)
            };
            let is_deployed = |one: &Deployment| {
                let by_name = wish.is_none_or(|wish| wish.image.is_none());
                vouches(one) && (!by_name || same_name(&one.function, case.name))
            };
            assert!(wish.is_some_and(is_named) || deployments.iter().any(is_deployed));
        }
        Err(refusal) => assert!(!refusal.why.is_empty()),
    }
});
