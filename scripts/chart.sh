#!/usr/bin/env bash
# The chart deploy/helm/cwasi: its checks, and what is made from it.
#
#   chart.sh write    the plain manifests in deploy/kubernetes, and tests/chart/NAME.golden.yaml of each NAME.yaml
#   chart.sh check    these files are what the chart makes now; Helm's linter finds nothing; wrong values are refused
#
# The first run builds Helm (helm.sh). That the manifests are objects of Kubernetes is tested without it, by
# `cargo test -p cwasi-operator --test manifests`.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/unpacked.sh"
source "$CHECKOUT/scripts/go.sh"
source "$CHECKOUT/scripts/helm.sh"

CHART=$CHECKOUT/deploy/helm/cwasi
CASES=$CHECKOUT/tests/chart
NAMESPACE=cwasi-system
# The oldest Kubernetes that the chart takes; without a cluster, Helm does not know any.
KUBERNETES=1.30.0
MADE="# Made from deploy/helm/cwasi by \`make manifests\`: change the chart."
# The definition is crd.yaml: `cwasi-operator crd` prints it, and the chart has a link to it.
TEMPLATE=(template cwasi "$CHART" --kube-version "$KUBERNETES" --namespace "$NAMESPACE")
RENDER=("${TEMPLATE[@]}" --set crd.create=false)

# Helm says for each link in a chart that it follows it.
helm() { "$HELM" "$@" 2> >(grep -v 'found symbolic link in path' >&2); }

# render OUT ARGUMENT…: without Helm's lines about the source of each object
render() {
    local out=$1
    shift
    { echo "$MADE"; helm "${RENDER[@]}" "$@" | sed -e '/^# Source: /d' -e '/^$/d' | sed '1{/^---$/d}'; } >"$out"
}

# render_all FOLDER: every file that is made from the chart, by its path from the checkout
render_all() {
    local kubernetes=$1/deploy/kubernetes cases=$1/tests/chart values
    mkdir -p "$kubernetes/node" "$cases"
    render "$kubernetes/node/node.yaml" --show-only templates/node.yaml --set namespace.create=true
    render "$kubernetes/runtimeclass.yaml" --show-only templates/runtimeclass.yaml
    render "$kubernetes/operator.yaml" --show-only templates/operator.yaml
    render "$kubernetes/metrics.yaml" --show-only templates/metrics.yaml --set metrics.enabled=true
    {
        echo "$MADE"
        echo "# All that an installation needs: docs/kubernetes.md."
        for part in node/node runtimeclass "$CHECKOUT/deploy/kubernetes/crd" operator; do
            [ "$part" = node/node ] || echo ---
            case $part in
            /*) cat "$part.yaml" ;;
            *) tail -n +2 "$kubernetes/$part.yaml" ;;
            esac
        done
    } >"$kubernetes/install.yaml"
    for values in "$CASES"/*.yaml; do
        [[ $values != *.golden.yaml ]] || continue
        render "$cases/$(basename "$values" .yaml).golden.yaml" --values "$values"
    done
}

check_files() {
    local folder=$1 path is_old=
    while read -r path; do
        diff -u --label "$path" --label "$path, as the chart makes it" "$CHECKOUT/$path" "$folder/$path" >&2 || is_old=yes
    done < <(cd "$folder" && find . -name '*.yaml' -printf '%P\n' | sort)
    [ -z "$is_old" ] || die "these files are not what the chart makes: run make manifests"
}

# refused TEXT ARGUMENT…: Helm says so
refused() {
    local text=$1 said
    shift
    if said=$("$HELM" "${RENDER[@]}" "$@" 2>&1 >/dev/null); then die "the chart takes $*"; fi
    [[ $said == *"$text"* ]] || die "the chart does not refuse $* with '$text', but with: $said"
}

check_refusals() {
    refused "'replica' not allowed" --set operator.replica=3
    refused "/operator/replicas" --set operator.replicas=0
    refused "/operator/replicas" --set-string operator.replicas=two
    refused "/listenAddress" --set listenAddress=::
    refused "/operator/namespace" --set operator.namespace=Shop
    refused "/image/pullPolicy" --set image.pullPolicy=Sometimes
    refused "/image/tag" --set image.tag=
    refused "/imagePullSecrets/0" --set 'imagePullSecrets[0]=registry'
    refused "/node/prefix" --set node.prefix=opt
    refused "/node/containerdConfig" --set node.containerdConfig=config.toml
    refused "/metrics/prometheusNamespace" --set metrics.prometheusNamespace=
    refused "/gateway/service/type" --set gateway.service.type=Public
    refused "/gateway/port" --set gateway.port=80
    refused "set gateway.tokenSecret to a Secret" --set gateway.enabled=true
}

check() {
    local values
    # The trap reads it when this function has ended.
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    render_all "$folder"
    check_files "$folder"
    helm lint --strict --quiet --kube-version "$KUBERNETES" "$CHART" >&2
    for values in "$CASES"/*.yaml; do
        [[ $values == *.golden.yaml ]] || helm lint --strict --quiet --kube-version "$KUBERNETES" "$CHART" --values "$values" >&2
    done
    check_refusals
    # The chart's definition is that of the operator; a release that goes leaves it.
    "$HELM" "${TEMPLATE[@]}" --show-only templates/crd.yaml 2>/dev/null |
        grep -v -e '^---$' -e '^# Source: ' -e '^  annotations:$' -e '^    helm.sh/resource-policy: keep$' |
        diff -u "$CHECKOUT/deploy/kubernetes/crd.yaml" - >&2 || die "the chart's definition is not crd.yaml"
    say "the chart: ok"
}

build_helm
case ${1:-} in
write) render_all "$CHECKOUT" ;;
check) check ;;
*) die "use chart.sh write or chart.sh check" ;;
esac
