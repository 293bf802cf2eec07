# Exit codes, the restart policy, and the end of a function that is asked to stop.

# run NAME RESTART ARGUMENT…: a pod with one primary
run() {
    local name=$1 restart=$2 arguments
    shift 2
    arguments=$(printf ',"%s"' "$@")
    apply - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $name}
spec:
  runtimeClassName: cwasi
  restartPolicy: $restart
  terminationGracePeriodSeconds: 5
  containers: [{name: main, image: localhost/guests:test, command: [${arguments#,}]}]
YAML
}

exit_code() { field "pod/$1" '.status.containerStatuses[0].state.terminated.exitCode'; }

run success Never /probe.wasm args one
run code Never /probe.wasm exit 7
run trap Never /probe.wasm trap
run again OnFailure /probe.wasm exit 3
wait_field pod/success .status.phase Succeeded
equals "exit code of success" 0 "$(exit_code success)"
wait_field pod/code .status.phase Failed
equals "exit code of code" 7 "$(exit_code code)"
wait_field pod/trap .status.phase Failed
equals "exit code of a trap" 134 "$(exit_code trap)"
contains "log of a trap" 'unreachable|trap' "$(k logs trap)"
restarted() { [ "$(field pod/again '.status.containerStatuses[0].restartCount')" -ge 2 ]; }
wait_for "$WAIT_SECONDS" "a function that fails is restarted" restarted

# A primary that never ends by itself ends by TERM, not by KILL after the grace period.
run waits Never /probe.wasm block
wait_field pod/waits .status.phase Running
k delete pod waits --wait=false >/dev/null
wait_for 30 "a function that waits is stopped" gone pod waits
