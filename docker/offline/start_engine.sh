#!/bin/sh
# An engine of its own for one run of the tests, from Debian's docker.io package.
#
#   start_engine.sh start DIR    start it; prints how to reach it, as DOCKER_HOST=unix://...
#   start_engine.sh stop DIR     end it with everything that it has started, and remove DIR
#   start_engine.sh check        say why no engine can run here; says nothing where one can
#
# It touches nothing of the machine's: it lives in a network namespace of its own (its bridges and
# its iptables rules, which drop what the machine forwards, are there and end with it), in a mount
# namespace of its own, and in a control group by which everything it has started is found again.
# Its containers reach each other and nothing outside.
#
# Needs root. DIR must be short (a socket's path has at most 107 characters), absolute, and not yet
# exist.
set -eu

SIZE=${SIZE:-6g} # of memory, at most, for images and what containers write into their own files
BOUND_S=60 # for starting and for stopping; one takes 1 s, the other 2 s

problem() {
    [ "$(uname -s)" = Linux ] || { echo "an engine needs Linux"; return; }
    [ "$(id -u)" = 0 ] || { echo "an engine of our own needs root"; return; }
    for program in dockerd containerd runc docker iptables ip unshare; do
        command -v "$program" >/dev/null || {
            echo "$program is missing: apt-get install docker.io iproute2"
            return
        }
    done
    unshare --net --mount true 2>/dev/null ||
        echo "namespaces cannot be made here: unshare --net --mount is refused"
}

# The control groups of the engine in DIR: on version 1 there is a tree for each controller.
groups() {
    name="multihost-engine-$(echo "$1" | cksum | cut -d' ' -f1)"
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
        echo "/sys/fs/cgroup/$name"
    else
        for tree in /sys/fs/cgroup/*/; do
            echo "$tree$name"
        done
    fi
}

# The one that finds processes again.
home() {
    for group in $(groups "$1"); do
        case "$group" in
        /sys/fs/cgroup/multihost-* | /sys/fs/cgroup/pids/*) echo "$group" ;;
        esac
    done
}

processes() {
    for group in $(groups "$1"); do
        [ -d "$group" ] && find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null
    done | sort -un
}

answers() {
    docker --host "unix://$1/docker.sock" version >/dev/null 2>&1
}

start() {
    dir=$1
    why=$(problem)
    [ -z "$why" ] || { echo "no engine can run here: $why" >&2; exit 1; }
    [ ! -e "$dir" ] || { echo "$dir is there already" >&2; exit 1; }
    mkdir -m 700 -p "$dir"
    group=$(home "$dir")
    mkdir -p "$group/engine"
    # What inherits a descriptor of the caller's would keep a pipe open that the caller reads.
    DIR="$dir" GROUP="$group" SIZE="$SIZE" setsid unshare --net --mount --propagation private sh -c '
        echo $$ >"$GROUP/engine/cgroup.procs"
        ip link set lo up
        # What every engine of a machine shares otherwise: sockets of shims, plugins.
        mount -t tmpfs -o mode=755 multihost-engine /run
        # In memory, which goes with the namespace: removing 250 MB of small files takes a busy disk
        # 7 to 35 s.
        mkdir "$DIR/data"
        mount -t tmpfs -o mode=711,size="$SIZE" multihost-engine "$DIR/data"
        exec dockerd --host "unix://$DIR/docker.sock" --pidfile "$DIR/docker.pid" \
            --data-root "$DIR/data" --exec-root "$DIR/exec" --cgroup-parent "/${GROUP##*/}/containers" \
            --exec-opt native.cgroupdriver=cgroupfs --shutdown-timeout 1
    ' >"$dir/engine.log" 2>&1 </dev/null &
    engine=$!
    waited=0
    until answers "$dir"; do
        if ! kill -0 "$engine" 2>/dev/null || [ "$waited" -ge $((BOUND_S * 5)) ]; then
            echo "the engine did not start; its last words:" >&2
            tail -n 15 "$dir/engine.log" >&2
            stop "$dir"
            exit 1
        fi
        waited=$((waited + 1))
        sleep 0.2
    done
    echo "DOCKER_HOST=unix://$dir/docker.sock"
}

stop() {
    dir=$1
    [ -e "$dir" ] || return 0
    if answers "$dir"; then
        left=$(docker --host "unix://$dir/docker.sock" ps --all --quiet)
        [ -z "$left" ] || docker --host "unix://$dir/docker.sock" rm --force --volumes $left >/dev/null
    fi
    [ ! -f "$dir/docker.pid" ] || kill "$(cat "$dir/docker.pid")" 2>/dev/null || true
    waited=0
    while [ -n "$(processes "$dir")" ]; do
        # It had 3 s for going by itself.
        if [ "$waited" -ge 15 ]; then
            for pid in $(processes "$dir"); do
                kill -KILL "$pid" 2>/dev/null || true
            done
        fi
        [ "$waited" -lt $((BOUND_S * 5)) ] || { echo "cannot be killed: $(processes "$dir")" >&2; exit 1; }
        waited=$((waited + 1))
        sleep 0.2
    done
    for group in $(groups "$dir"); do
        [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} +
    done
    rm -rf "$dir"
}

case "${1:-}" in
start) start "${2:?which directory?}" ;;
stop) stop "${2:?which directory?}" ;;
check) problem ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
