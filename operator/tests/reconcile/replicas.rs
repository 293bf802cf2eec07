//! Numbers of pods that the operator leaves to others.

use serde_json::{Value, json};

use super::{Cluster, DEPLOYMENT};

const HPA: &str = "/apis/autoscaling/v2/namespaces/n/horizontalpodautoscalers/hello-greeter";
const SCALED: &str = "/apis/keda.sh/v1alpha1/namespaces/n/scaledobjects/hello-greeter";

fn greeter(further: &Value) -> Value {
    let mut function = json!({ "image": "i:1", "role": "secondary" });
    function.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
    json!({ "greeter": function })
}

impl Cluster {
    fn replicas(&self) -> i64 {
        self.api.get(DEPLOYMENT).unwrap()["spec"]["replicas"].as_i64().unwrap()
    }

    /// As an HPA, KEDA or `kubectl scale` does.
    fn scale(&self, replicas: i64) {
        let mut deployment = self.api.get(DEPLOYMENT).unwrap();
        deployment["spec"]["replicas"] = json!(replicas);
        self.api.put(DEPLOYMENT, deployment);
    }

    /// Sets back what others change of the number; and once more, with an apply for another cause.
    async fn leaves(&self, replicas: i64, function: Value) {
        self.scale(replicas);
        self.reconcile().await;
        assert_eq!(self.replicas(), replicas);
        let mut function = function;
        function["greeter"]["image"] = json!("i:2");
        self.write(function);
        self.reconcile().await;
        assert_eq!(self.replicas(), replicas, "with another template");
    }
}

#[tokio::test]
async fn pods_stay_when_their_number_is_left_to_an_autoscaler() {
    let cluster = Cluster::new(greeter(&json!({ "replicas": 5 })));
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 5);
    let scaled = greeter(&json!({ "scale": { "min": 2, "max": 9 } }));
    cluster.write(scaled.clone());
    cluster.reconcile().await;
    assert!(cluster.api.get(HPA).is_some());
    assert_eq!(cluster.replicas(), 5);
    assert_eq!(cluster.reconcile().await, [""; 0], "once");
    cluster.leaves(7, scaled).await;
    // Back, and on again: with more pods at least than there are.
    cluster.write(greeter(&json!({ "replicas": 3 })));
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 3);
    cluster.write(greeter(&json!({ "scale": { "min": 4, "max": 9 } })));
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 4);
}

#[tokio::test]
async fn pods_stay_when_their_number_is_left_to_others() {
    let cluster = Cluster::new(greeter(&json!({ "replicas": 3 })));
    cluster.reconcile().await;
    let others = greeter(&json!({}));
    cluster.write(others.clone());
    cluster.annotate(&json!({ "cwasi.dev/scaled-by-others": "greeter" }));
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 3);
    for number in [6, 0] {
        cluster.scale(number);
        cluster.reconcile().await;
        assert_eq!(cluster.replicas(), number);
    }
    assert_eq!(cluster.condition("Ready").0, "True", "no pod is what others want");
    // They are gone.
    cluster.write(greeter(&json!({ "scale": { "min": 2, "max": 4 } })));
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 2);
    assert_eq!(cluster.condition("Ready").0, "False");
}

/// KEDA leaves the number as it was, and an HPA does not act on 0.
#[tokio::test]
async fn a_function_without_a_pod_gets_one_when_keda_goes() {
    let on_demand = greeter(&json!({ "scale": { "min": 0, "max": 3 } }));
    let cluster = Cluster::new(on_demand.clone());
    cluster.reconcile().await;
    assert!(cluster.api.get(SCALED).is_some());
    cluster.leaves(0, on_demand.clone()).await;
    assert_eq!(cluster.condition("Ready").0, "True");
    cluster.api.lack("/apis/keda.sh/");
    cluster.reconcile().await;
    assert_eq!((cluster.replicas(), cluster.condition("Ready").0.as_str()), (1, "False"));
    // It is back.
    cluster.api.lack("nothing");
    cluster.reconcile().await;
    cluster.leaves(0, on_demand).await;
    // With a pod at least.
    cluster.write(greeter(&json!({ "scale": { "min": 1, "max": 3 } })));
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 1);
    assert!(cluster.api.get(HPA).is_some() && cluster.api.get(SCALED).is_none());
    // KEDA had one more word before its ScaledObject went.
    cluster.scale(0);
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 1);
}

/// Between the look at a Deployment and the write somebody else may write, too.
#[tokio::test]
async fn anothers_number_that_comes_meanwhile_wins() {
    let cluster = Cluster::new(greeter(&json!({ "scale": { "min": 1, "max": 3 } })));
    cluster.reconcile().await;
    cluster.scale(0);
    super::watch(&cluster.context.cache, &cluster.context.client).await;
    cluster.scale(2);
    cluster.try_to_reconcile().await.unwrap();
    assert_eq!(cluster.replicas(), 2);
}

/// `helm uninstall` takes KEDA's controller with its kinds: nobody finishes the deletion.
#[tokio::test]
async fn a_scaled_object_that_hangs_starts_nothing() {
    let cluster = Cluster::new(greeter(&json!({ "scale": { "min": 0, "max": 3 } })));
    cluster.reconcile().await;
    let mut scaled = cluster.api.get(SCALED).unwrap();
    scaled["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    cluster.api.put(SCALED, scaled);
    cluster.scale(0);
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 1);
    assert_eq!(cluster.condition("ScalesToZero"), ("False".to_owned(), "KedaIsGone".to_owned()));
    // It is not deleted again and again.
    cluster.write(greeter(&json!({ "replicas": 1 })));
    let requests = cluster.reconcile().await;
    assert!(!requests.iter().any(|it| it.starts_with("DELETE")), "{requests:?}");
}

/// Such as by a quota, or by KEDA's webhook.
#[tokio::test]
async fn a_function_whose_scaled_object_is_refused_keeps_one_pod() {
    let cluster = Cluster::new(greeter(&json!({ "scale": { "min": 0, "max": 3 } })));
    cluster.api.refuse(SCALED, "exceeded quota");
    cluster.reconcile().await;
    cluster.scale(0);
    cluster.reconcile().await;
    assert_eq!(cluster.replicas(), 1);
    assert_eq!(cluster.condition("ScalesToZero"), ("False".to_owned(), "Refused".to_owned()));
}

/// KEDA's kinds are there, and its operator does not run.
#[tokio::test]
async fn a_scaled_object_without_an_answer_of_keda_is_named_after_a_while() {
    let cluster = Cluster::new(greeter(&json!({ "scale": { "min": 0, "max": 3 } })));
    cluster.reconcile().await;
    assert_eq!(cluster.condition("ScalesToZero").0, "True");
    let mut scaled = cluster.api.get(SCALED).unwrap();
    scaled["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
    cluster.api.put(SCALED, scaled.clone());
    cluster.reconcile().await;
    assert_eq!(cluster.condition("ScalesToZero"), ("False".to_owned(), "NoAnswer".to_owned()));
    scaled["status"] = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
    cluster.api.put(SCALED, scaled);
    cluster.reconcile().await;
    assert_eq!(cluster.condition("ScalesToZero"), ("True".to_owned(), "Keda".to_owned()));
}

/// The number is set once, also while the API takes nothing else.
#[tokio::test]
async fn a_number_that_was_handed_over_is_not_set_again() {
    let cluster = Cluster::new(greeter(&json!({ "replicas": 5 })));
    cluster.reconcile().await;
    cluster.write(greeter(&json!({ "scale": { "min": 2, "max": 9 } })));
    cluster.api.refuse_manager("cwasi-operator");
    let writes = |requests: &[String]| {
        requests.iter().filter(|it| **it == format!("PATCH {DEPLOYMENT}")).count()
    };
    assert_eq!(writes(&cluster.reconcile().await), 2);
    assert_eq!(writes(&cluster.reconcile().await), 1);
    assert_eq!((cluster.replicas(), cluster.condition("Ready").1.as_str()), (5, "Refused"));
}

/// A Job may run while others keep a function that it may call at zero, and not before one of several runs.
#[tokio::test]
async fn a_job_does_not_wait_for_a_function_that_others_keep_at_zero() {
    let mut functions = greeter(&json!({}));
    functions["hello"] = json!({ "image": "i:1" });
    let cluster = Cluster::new(functions);
    cluster.annotate(&json!({ "cwasi.dev/scaled-by-others": "greeter" }));
    cluster.reconcile().await;
    cluster.reconcile().await;
    assert_eq!(cluster.jobs(), [""; 0]);
    cluster.scale(0);
    cluster.reconcile().await;
    assert_eq!(cluster.jobs().len(), 1);
}
