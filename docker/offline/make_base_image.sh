#!/bin/sh
# A base image without a registry: Debian bookworm with its Python 3.11, made by debootstrap.
#
#   make_base_image.sh TARBALL [TAG]
#
# TARBALL is the image's file system. It is made if it is not there yet (1 to 2 minutes, from a
# Debian mirror, as root) and kept for the next time; imported, it takes 2 s. Then the engine that
# DOCKER_HOST names has it as TAG (multihost-base:bookworm), which docker/Dockerfile takes for
# BASE_IMAGE in place of python:3.11-slim. Without a TAG nothing is imported.
set -eu

SUITE=bookworm
MIRROR=${MIRROR:-http://deb.debian.org/debian}
# venv: the Dockerfile installs into one. iproute2: tc, for compose.netem.yaml.
PACKAGES=python3,python3-venv,ca-certificates,iproute2

make() {
    command -v debootstrap >/dev/null || { echo "debootstrap is missing: apt-get install debootstrap" >&2; exit 1; }
    work=$(mktemp -d)
    trap 'rm -rf "$work" "$1.part"' EXIT
    debootstrap --force-check-gpg --variant=minbase --include="$PACKAGES" "$SUITE" "$work/root" "$MIRROR" >"$work/log" 2>&1 || {
        tail -n 15 "$work/log" >&2
        exit 1
    }
    # What an image has no use for: 80 MB of it.
    rm -rf "$work"/root/var/cache/apt/* "$work"/root/var/lib/apt/lists/* "$work"/root/usr/share/doc/* \
        "$work"/root/usr/share/locale/* "$work"/root/usr/share/man/* "$work"/root/var/log/*
    # debootstrap makes device files; an engine mounts its own.
    mkdir -p "$(dirname "$1")"
    tar --directory "$work/root" --numeric-owner --exclude './dev/*' --exclude './proc/*' --create --file "$1.part" .
    mv "$1.part" "$1" # whole, or not at all
}

tarball=${1:?where is the file system, or where is it to be kept?}
[ -f "$tarball" ] || make "$tarball"
[ -z "${2:-}" ] || docker import --change 'CMD ["python3"]' "$tarball" "$2"
