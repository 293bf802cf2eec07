# Runs in the machine (scripts/vm.sh): compilers with cgroup v2.
#
# A module is compiled in a cgroup below `cwasi-compile`, whose limit holds. The cgroup goes with the compiler, and the
# compiler with the container that waits for it.

ALL=/sys/fs/cgroup/cwasi-compile
gone() { [ ! -e $ALL ]; }
compiling() { pid=$(cat $ALL/*/cgroup.procs 2>/dev/null) && [ -n "$pid" ]; }
config() {
    mkdir -p /etc/cwasi
    printf '[compile]\n%s\n' "$1" >/etc/cwasi/config.toml
}

# A number in LEB128, of always five bytes.
number() {
    for shift in 0 7 14 21 28; do
        printf "\\$(printf '%03o' $(($1 >> shift & 127 | (shift < 28 ? 128 : 0))))"
    done
}

# A module whose last function calls another one $1 times: the compiler has a function's instructions in memory. Of 18
# functions, function 16 is called, whose number is the opcode's, so that one byte repeats.
bomb() {
    local length=$((2 * $1 + 2))
    printf '\0asm\1\0\0\0'
    printf '\1\4\1\140\0\0'
    printf '\3\23\22' && head -c 18 /dev/zero
    printf '\7\12\1\6_start\0\0'
    printf '\12' && number $((1 + 17 * 3 + 5 + length)) && printf '\22'
    for _ in $(seq 17); do printf '\2\0\13'; done
    number $length && printf '\0' && head -c $((2 * $1)) /dev/zero | tr '\0' '\20' && printf '\13'
}

config 'memory = "1GiB"
memory_per_mib = "1MiB"'
bomb 400000 >/rootfs/slow.wasm
ctr run --rm --runtime io.containerd.cwasi.v1 --rootfs /rootfs slow /slow.wasm >/slow.log 2>&1 &
client=$!
wait_for "a compiler in its cgroup" compiling
grep -q cwasi-compiler "/proc/$pid/cmdline" || fail "$pid is no compiler"
[ "$(cat $ALL/*/pids.max)" = 32 ] || fail "processes of a compiler: $(cat $ALL/*/pids.max)"
# In MiB: a little more than what is set, for the module's size; for all compilers half of the machine.
[ $(($(cat $ALL/*/memory.max) >> 20)) = 1024 ] || fail "memory of a compiler: $(cat $ALL/*/memory.max)"
total=$(grep MemTotal /proc/meminfo | tr -dc 0-9)
[ $(($(cat $ALL/memory.max) >> 20)) = $((total >> 11)) ] || fail "memory of all compilers: $(cat $ALL/memory.max)"
[ "$(cat $ALL/cpu.weight)" = 100 ] || fail "weight of all compilers: $(cat $ALL/cpu.weight)"
kill -9 "$client"
wait "$client"
wait_for "the compiler to end with its container" gone
[ ! -e "/proc/$pid" ] || fail "the compiler lives: $(cat "/proc/$pid/cmdline")"
ctr container rm slow >/dev/null 2>&1
say "a compiler ends with its container"

config 'memory = "64MiB"
memory_per_mib = "1MiB"'
bomb 200000 >/rootfs/bomb.wasm
function_run bomb /bomb.wasm --rm
[ "$code" != 0 ] || fail "a compiler has more than its limit"
for part in 'more than its 64 MiB of memory: raise memory,' '[compile]' /etc/cwasi/config.toml; do
    case $said in *"$part"*) ;; *) fail "no '$part' in: $said" ;; esac
done
dmesg | grep -q 'oom_memcg=/cwasi-compile/' || fail "another limit ended it: $(dmesg | tail -n 3)"
wait_for "its cgroup to go" gone
ctr container rm bomb >/dev/null 2>&1
config ''
function_run after '/act.wasm#call' --rm
[ "$code" = 3 ] || fail "a function after it: $code, $said"
wait_for "the last compiler's cgroup to go" gone
say "a compiler's memory is limited"
