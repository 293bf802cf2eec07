# Functions in one pod, and in two pods of one node, on each node; their logs.
GREETINGS=$'Hello, Ada!\nHello, Grace!'

# The manifest, on a node.
on_node() {
    sed "s#^\( *\)runtimeClassName: cwasi#&\n\1nodeSelector: {kubernetes.io/hostname: $1}#" \
        "$CHECKOUT/deploy/kubernetes/hello/$2"
}

for node in node1 node2; do
    on_node "$node" one-pod.yaml | apply -
    wait_job hello
    equals "log of hello in one pod on $node" "$GREETINGS" "$(k logs job/hello -c hello | grep ^Hello)"
    contains "log of greeter in one pod on $node" 'greeting Grace for hello-caller' "$(k logs job/hello -c greeter)"
    delete job hello
    on_node "$node" two-pods.yaml | apply -
    wait_rollout deployment/greeter
    wait_job hello
    equals "log of hello beside a Deployment on $node" "$GREETINGS" "$(k logs job/hello | grep ^Hello)"
    contains "log of greeter in a Deployment on $node" 'greeting Ada for hello-caller' "$(k logs deployment/greeter)"
    delete job hello
    delete deployment greeter
    wait_for 30 "no pod is left" gone pods
done
