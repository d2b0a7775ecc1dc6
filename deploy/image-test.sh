#!/bin/bash
# Builds the image twice, compares the two, and runs the program in it. Then it builds one for two
# architectures. It needs neither a registry nor a container runtime: buildah builds in a chroot, on an empty base image to
# which this machine's Go, its modules and its build cache are lent. Root; leaves nothing
# behind but those caches.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
export BUILDAH_ISOLATION=chroot CONTAINERS_STORAGE_CONF=$work/storage.conf
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$work" "$work" >"$CONTAINERS_STORAGE_CONF"
trap 'buildah rm --all >/dev/null 2>&1 || true; rm -rf "$work"' EXIT
mkdir "$work/tmp"
export CGO_ENABLED=0 GOFLAGS=-trimpath

fail() {
  echo "image-test: $*" >&2
  exit 1
}

# make_base NAME: an image that has nothing but the environment of Go.
make_base() {
  local container
  container=$(buildah from scratch)
  buildah config --env HOME=/root --env GOTOOLCHAIN=local \
    --env GOMODCACHE="$(go env GOMODCACHE)" --env GOCACHE="$(go env GOCACHE)" "$container"
  buildah commit -q "$container" "$1" >/dev/null
  buildah rm "$container" >/dev/null
}

build() {
  local modules cache
  modules=$(go env GOMODCACHE) cache=$(go env GOCACHE)
  IMAGE=$1 BUILDER=buildah BUILD_IMAGE=localhost/base deploy/image.sh -q \
    -v "$(go env GOROOT):/usr/local/go:ro" -v "$modules:$modules" -v "$cache:$cache" -v "$work/tmp:/tmp"
}

# run ARGUMENT...: the program in the image, with the example manifests at /manifests.
run() { buildah run -v "$PWD/deploy/examples:/manifests:ro" "$container" -- /kube-nft "$@"; }

go build -o /dev/null ./cmd/kube-nft # fills the caches
make_base localhost/base
build localhost/first
build localhost/second
identity() { buildah inspect --type image --format '{{.FromImageID}}' "localhost/$1"; }
[ "$(identity first)" = "$(identity second)" ] || fail "two builds of one tree differ"

container=$(buildah from localhost/first)
root=$(buildah mount "$container")
[ "$(find "$root" -type f -perm /111)" = "$root/kube-nft" ] || fail "the image holds more programs than kube-nft: $(find "$root" -type f -perm /111)"
run version
# As kubectl exec POD -- kube-nft, without a slash.
buildah run "$container" -- kube-nft version >/dev/null || fail "kube-nft is not in the image's PATH"
run --manifests /manifests --hostname-override node-a --dry-run >"$work/ruleset"
grep -q '10.96.0.80 . tcp . 80' "$work/ruleset" || fail "the dry run lacks the cluster IP of the example"

export PLATFORMS=linux/amd64,linux/arm64
build localhost/both
build localhost/again
[ "$(buildah manifest inspect localhost/both)" = "$(buildah manifest inspect localhost/again)" ] || fail "two builds for two architectures differ"
for arch in amd64 arm64; do
  container=$(buildah from --pull=false --arch "$arch" localhost/both)
  root=$(buildah mount "$container")
  # e_machine of the ELF header: EM_X86_64, EM_AARCH64.
  machine=$(od -An -t u2 -j 18 -N 2 "$root/kube-nft" | tr -d " ")
  [ "$machine" = "$(sed 's/amd64/62/; s/arm64/183/' <<<"$arch")" ] || fail "the program in the image for $arch is of machine $machine"
done
echo "image-test: the image is reproducible, $(du -m "$root/kube-nft" | cut -f1) MB, and holds kube-nft alone"
