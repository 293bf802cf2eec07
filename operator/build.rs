//! Generates the gRPC service of KEDA's external scalers (`src/scaler`).

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let method = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("crate::scaler::messages::{input}"))
            .output_type(format!("crate::scaler::messages::{output}"))
            .codec_path("tonic_prost::ProstCodec")
    };
    let active =
        || method("stream_is_active", "StreamIsActive", "ScaledObjectRef", "IsActiveResponse");
    let service = Service::builder()
        .name("ExternalScaler")
        .package("externalscaler")
        .method(method("is_active", "IsActive", "ScaledObjectRef", "IsActiveResponse").build())
        .method(active().server_streaming().build())
        .method(
            method("get_metric_spec", "GetMetricSpec", "ScaledObjectRef", "GetMetricSpecResponse")
                .build(),
        )
        .method(
            method("get_metrics", "GetMetrics", "GetMetricsRequest", "GetMetricsResponse").build(),
        )
        .build();
    Builder::new().compile(&[service]);
}
