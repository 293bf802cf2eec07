# Runs in the machine (scripts/vm.sh): the gateway and the metrics as the units of deploy/systemd, under a real systemd.
# needs: systemd
# needs: guests
# needs: units
#
# They serve, end after the requests that they have, start again after a crash, and have no more than their units give them.

# Polls of `wait_for`, and seconds between them: programs start slowly on the emulated processor.
POLLS=300 PAUSE=1
ask() { wget -q -O - --post-data "$1" http://127.0.0.1:8080/function/callee; }
numbers() { wget -q -O - "http://127.0.0.1:$1/metrics"; }
property() { systemctl show --property "$2" --value "$1.service"; }
# Of the process of a unit: a field of its status, and the options of its mount at a path.
status() { sed -n "s/^$2:[[:space:]]*//p" "/proc/$(property "$1" MainPID)/status"; }
mount_of() { awk -v path="$2" '$5 == path { found = $6 } END { print found }' "/proc/$(property "$1" MainPID)/mountinfo"; }

function_run callee /server.wasm --detach --annotation cwasi.role=secondary --annotation cwasi.function=callee \
    --annotation cwasi.http=gateway
[ "$code" = 0 ] || fail "the function does not start: $said"
systemctl start cwasi-gateway cwasi-metrics || fail "the units do not start: $(systemctl status cwasi-gateway cwasi-metrics)"
is_served() { [ "$(ask hello 2>&1)" = hello ]; }
wait_for "an answer by HTTP" is_served
has_metrics() { numbers 9477 | grep -q '^cwasi_function_instances{.*function="callee".*} 1$'; }
wait_for "the function's metrics" has_metrics
edge='caller="gateway",callee="callee",mode="local"'
counts_calls() { numbers 9477 | grep -q "^cwasi_calls_total{.*${edge}[,}].* [1-9]"; }
wait_for "the gateway's calls in the metrics" counts_calls
say "both units serve"

before=$(property cwasi-gateway MainPID)
# Less than the 30 s after which a gateway that ends gives up on its requests.
ask '!sleep 25000' >/answer 2>/client.log &
client=$!
in_flight() { numbers 8080 | grep -q '^cwasi_gateway_requests_in_flight 1$'; }
wait_for "the request to be in flight" in_flight
systemctl restart --no-block cwasi-gateway || fail "no restart"
is_ending() { [ "$(property cwasi-gateway ActiveState)" = deactivating ]; }
wait_for "the gateway to be asked to end" is_ending
[ ! -s /answer ] || fail "the request ended before: $(cat /answer)"
wait "$client" || fail "the request was lost: $(cat /client.log)"
[ "$(cat /answer)" = slept ] || fail "the answer: $(cat /answer)"
wait_for "an answer of the next gateway" is_served
[ "$(property cwasi-gateway MainPID)" != "$before" ] || fail "it is the same process"
say "a restart lets a request end"

for unit in cwasi-gateway cwasi-metrics; do
    before=$(property $unit MainPID)
    kill -9 "$before"
    restarted() { [ "$(property $unit NRestarts)" = 1 ] && [ "$(property $unit MainPID)" -gt 0 ]; }
    wait_for "$unit to start again" restarted
done
wait_for "an answer after the crash" is_served
wait_for "the metrics after the crash" has_metrics
say "after a crash they start again"

# CAP_DAC_OVERRIDE and CAP_NET_BIND_SERVICE; none.
for expected in cwasi-gateway-0000000000000402 cwasi-metrics-0000000000000000; do
    unit=${expected%-*}
    for field in CapBnd CapEff CapPrm; do
        [ "$(status "$unit" $field)" = "${expected##*-}" ] || fail "$field of $unit: $(status "$unit" $field)"
    done
    [ "$(status "$unit" NoNewPrivs)" = 1 ] || fail "$unit may gain privileges"
    case $(mount_of "$unit" /) in ro*) ;; *) fail "the root of $unit: $(mount_of "$unit" /)" ;; esac
done
[ "$(status cwasi-gateway Seccomp)" = 2 ] || fail "the gateway has no filter of system calls"
case $(mount_of cwasi-metrics /run/cwasi) in rw*) ;; *) fail "metrics cannot lock: $(mount_of cwasi-metrics /run/cwasi)" ;; esac
case $(mount_of cwasi-gateway /run/cwasi) in rw*) ;; *) fail "the gateway cannot count: $(mount_of cwasi-gateway /run/cwasi)" ;; esac
[ "$(stat -c %a /run/cwasi)" = 700 ] || fail "the state is open to others"
[ "$(stat -c %a /var/lib/cwasi/callbacks)" = 700 ] || fail "the callbacks are open to others"
say "their sandboxes hold"

systemctl stop cwasi-gateway cwasi-metrics || fail "no stop"
for unit in cwasi-gateway cwasi-metrics; do
    [ "$(property $unit Result)" = success ] || fail "$unit ended with $(property $unit Result)"
done
ls -d /run/cwasi/g/host-* >/group 2>&1 && fail "the gateway's group is left: $(cat /group)"
! ask hello >/dev/null 2>&1 || fail "it still answers"
