//! What the API's errors mean.

use cwasi_cli::cause;
use cwasi_cli::cluster::ClusterError;

/// What the API said to a request.
pub(super) fn of_request(
    error: kube::Error,
    url: &str,
    (verb, resource): (&'static str, &'static str),
    namespace: &str,
) -> ClusterError {
    let namespace = namespace.to_owned();
    match error {
        kube::Error::Api(status) if status.code == 401 => {
            ClusterError::Unauthorized { message: status.message }
        }
        kube::Error::Api(status) if status.code == 403 => {
            ClusterError::Denied { verb, resource, namespace, message: status.message }
        }
        kube::Error::Api(status) => {
            ClusterError::Refused { verb, resource, namespace, message: status.message }
        }
        kube::Error::Service(error) => {
            ClusterError::Away { url: url.to_owned(), cause: cause::root(error.as_ref()) }
        }
        kube::Error::HyperError(error) => {
            ClusterError::Away { url: url.to_owned(), cause: cause::root(&error) }
        }
        error => ClusterError::Refused { verb, resource, namespace, message: cause::root(&error) },
    }
}
