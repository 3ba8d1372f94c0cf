#!/bin/sh
# Run the tests with another Python than the machine's: in a Debian root made by debootstrap.
#
#   python_root.sh make ROOT [SUITE]     SUITE: trixie (Python 3.13, the default), sid (3.14), ...
#   python_root.sh run ROOT COMMAND...   COMMAND runs in a copy of this project, in ROOT
#
# ROOT has a virtual environment with what the group `test` of pyproject.toml pins, but for torch and
# what needs it: the wheel for these Pythons brings gigabytes of CUDA, and the tests of torch are
# skipped without it. `make` goes on where it was interrupted, and is quick if nothing is missing.
# Mirror: MIRROR. pip's settings, the CA certificates and the resolver of this machine apply.
set -eu

MIRROR=${MIRROR:-http://deb.debian.org/debian}
# gcc, g++: for the I/O shim and its tests. iproute2: for hosts made from namespaces.
PACKAGES=python3,python3-venv,python3-dev,ca-certificates,gcc,g++,git,iproute2,make,mount
WITHOUT="accelerate einops megatron-core torch"
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH

fail() {
    echo "error: $*" >&2
    exit 1
}

# What this machine says of the network, as it is now.
take_over() {
    for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf; do
        [ ! -r "$file" ] || { mkdir -p "$root$(dirname "$file")" && cat "$file" >"$root$file.part" && mv "$root$file.part" "$root$file"; }
    done
}

copy_project() {
    rm -rf "$root/src.part"
    mkdir "$root/src.part"
    git -C "$project" ls-files -z --cached --others --exclude-standard --deduplicate |
        (cd "$project" && xargs -0 sh -c 'for each; do [ ! -e "$each" ] || printf "%s\0" "$each"; done' sh) |
        tar --directory "$project" --null --files-from - --create --file - |
        tar --directory "$root/src.part" --extract --no-same-owner --file -
    rm -rf "$root/src"
    mv "$root/src.part" "$root/src"
}

# The mounts are those of a mount namespace of its own: they end with the command. The root of that
# namespace is ROOT itself, since the kernel refuses to make namespaces of users in a chroot.
inside() {
    unshare --mount --propagation private sh -eu -c '
        root=$1; shift
        mount --bind "$root" "$root"
        for each in proc sys dev; do mount --rbind "/$each" "$root/$each"; done
        mkdir -p "$root/before"
        cd "$root"
        pivot_root . before
        exec chroot . sh -eu -c "
            umount -l /before
            cd /src
            export HOME=/root LC_ALL=C.UTF-8 PATH=/venv/bin:/usr/sbin:/usr/bin:/sbin:/bin
            exec \"\$@\"" sh "$@"' sh "$root" "$@"
}

make_root() {
    # Root is about to run programs of it: nobody else may have made it, or be able to write it.
    if [ -e "$root" ]; then
        [ ! -L "$root" ] && [ "$(stat --format %u "$root")" = "$(id -u)" ] ||
            fail "$root belongs to another user, or is a link"
        [ -z "$(find "$root" -maxdepth 0 -perm /022)" ] || fail "other users can write $root"
    else
        mkdir -m 755 -p "$root"
    fi
    if [ ! -e "$root/made" ]; then
        command -v debootstrap >/dev/null || fail "debootstrap is missing: apt-get install debootstrap"
        [ ! -e "$root" ] || [ -z "$(ls -A "$root")" ] || fail "$root is not empty, and no root that this script has made"
        echo "Making a root of Debian $1 in $root: one to three minutes."
        debootstrap --force-check-gpg --variant=minbase --include="$PACKAGES" "$1" "$root" "$MIRROR" >"$root.log" 2>&1 || {
            tail -n 15 "$root.log" >&2
            fail "debootstrap has failed: $root.log"
        }
        rm -f "$root.log"
        touch "$root/made"
    fi
    take_over
    copy_project
    inside sh -eu -c '
        [ -x /venv/bin/python ] || python3 -m venv /venv
        python - "$@" >/requirements.new <<END
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    found = tomllib.load(file)
lines = [*found["dependency-groups"]["test"], *found["project"]["optional-dependencies"]["stacks"]]
print(*(line for line in lines if line.partition("==")[0] not in sys.argv[1:]), sep="\n")
END
        newest=$(sed -n "s/^ORBAX_NEWEST := //p" Makefile)
        echo "# Beside the orbax that is installed: $newest" >>/requirements.new
        cmp -s /requirements.new /requirements.txt || {
            pip install --quiet --requirement /requirements.new
            pip install --quiet --no-deps --editable .
            pip install --quiet --no-deps --upgrade --target /venv/orbax-newest/site-packages "$newest"
            mv /requirements.new /requirements.txt
        }' sh $WITHOUT
}

project=$(cd "$(dirname "$0")/.." && pwd)
[ $# -ge 2 ] || fail "usage: $0 make ROOT [SUITE] | run ROOT COMMAND..."
action=$1
[ "$(id -u)" = 0 ] || fail "only root can make and enter a root directory: run this as root, or with sudo"
mkdir -p "$2"
root=$(cd "$2" && pwd)
shift 2
case $action in
make) make_root "${1:-trixie}" ;;
run)
    [ -e "$root/requirements.txt" ] || fail "there is no Python in $root yet: $0 make $root"
    copy_project
    inside "$@"
    ;;
*) fail "there is no action $action" ;;
esac
