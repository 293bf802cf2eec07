// The Gateway API, of which the test cluster takes the definitions (tests/kubernetes/programs.sh).
module cwasi-gateway-api

go 1.24

require sigs.k8s.io/gateway-api v1.4.1
