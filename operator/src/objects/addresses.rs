//! A Service for each function with a port, and an Ingress or HTTPRoute for each one with clients outside of the
//! cluster.

use cwasi_workflow::{Ingress as IngressFields, Placement};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{
    HTTPIngressPath, HTTPIngressRuleValue, Ingress, IngressBackend, IngressRule,
    IngressServiceBackend, IngressSpec, IngressTLS, ServiceBackendPort,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Facilities, Object, http_route, names};
use crate::plan::{Plan, PlannedFunction};

/// All Services, Ingresses and HTTPRoutes.
#[must_use]
pub fn build(plan: &Plan, facilities: &Facilities) -> Vec<Object> {
    let mut objects = Vec::new();
    for planned in &plan.functions {
        let cluster = &planned.function.cluster;
        let (Some(port), Some(target)) = (cluster.service_port, cluster.http_port) else {
            continue;
        };
        objects.push(service(plan, planned, port, target));
        let Some(fields) = &cluster.ingress else { continue };
        match &fields.gateway {
            None => objects.push(ingress(plan, planned, fields)),
            // Where there are no Gateways, the condition says so (`crate::conditions`).
            Some(_) if !facilities.has_gateway_api => {}
            Some(gateway) => {
                objects.push(http_route::build(plan, planned, fields, gateway, port));
            }
        }
    }
    objects
}

fn metadata(plan: &Plan, planned: &PlannedFunction) -> ObjectMeta {
    let name = Some(planned.function.name.as_str());
    ObjectMeta {
        name: Some(names::object(&plan.workflow, name)),
        labels: Some(names::labels(&plan.workflow, name)),
        ..ObjectMeta::default()
    }
}

fn service(plan: &Plan, planned: &PlannedFunction, port: u16, target: u16) -> Object {
    let name = (plan.placement != Placement::Pod).then_some(planned.function.name.as_str());
    let port = ServicePort {
        name: Some("http".to_owned()),
        port: port.into(),
        target_port: Some(IntOrString::Int(target.into())),
        app_protocol: Some("http".to_owned()),
        ..ServicePort::default()
    };
    let spec = ServiceSpec {
        selector: Some(names::selector(&plan.workflow, name)),
        ports: Some(vec![port]),
        ..ServiceSpec::default()
    };
    Object::of(&Service { metadata: metadata(plan, planned), spec: Some(spec), status: None })
}

fn ingress(plan: &Plan, planned: &PlannedFunction, fields: &IngressFields) -> Object {
    let name = names::object(&plan.workflow, Some(&planned.function.name));
    let backend = IngressBackend {
        service: Some(IngressServiceBackend {
            name,
            port: Some(ServiceBackendPort { name: Some("http".to_owned()), number: None }),
        }),
        resource: None,
    };
    let path = HTTPIngressPath {
        path: Some(fields.path.clone()),
        path_type: "Prefix".to_owned(),
        backend,
    };
    let tls = fields.tls.as_ref().map(|secret| IngressTLS {
        hosts: fields.host.clone().map(|host| vec![host]),
        secret_name: Some(secret.clone()),
    });
    let spec = IngressSpec {
        ingress_class_name: fields.class.clone(),
        rules: Some(vec![IngressRule {
            host: fields.host.clone(),
            http: Some(HTTPIngressRuleValue { paths: vec![path] }),
        }]),
        tls: tls.map(|tls| vec![tls]),
        ..IngressSpec::default()
    };
    Object::of(&Ingress { metadata: metadata(plan, planned), spec: Some(spec), status: None })
}
