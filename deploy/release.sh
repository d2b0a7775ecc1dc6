#!/bin/bash
# Makes everything of a version, in dist/VERSION: programs for each architecture with man pages and completions,
# the source, the Helm chart, the image as an OCI archive of a manifest list, a bill of materials for each program,
# release notes and checksums. Two runs of one commit are equal, byte for byte.
# The version is the tag of the commit; a commit without one, or a tree with changes, is refused.
# Environment:
#   ARCHES   architectures (amd64 arm64 arm ppc64le s390x riscv64)
#   NO_IMAGE if not empty, no image is made, for which buildah is needed
#   IMAGE_ARGUMENTS  for deploy/image.sh, such as volumes with caches
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release: $*" >&2; exit 1; }

arches=${ARCHES:-amd64 arm64 arm ppc64le s390x riscv64}
version=$(git describe --tags --exact-match --match 'v*' 2>/dev/null) ||
  fail "the commit has no tag such as v0.2.0; git tag -a makes one"
[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.]+)?$ ]] || fail "$version is no version such as v0.2.0 or v0.2.0-rc.1"
[ -z "$(git status --porcelain)" ] || fail "the tree has changes: $(git status --porcelain | head -3 | tr '\n' ' ')"
[ -n "${NO_IMAGE:-}" ] || command -v buildah >/dev/null || fail "buildah makes the image: install it, or set NO_IMAGE=1"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH CGO_ENABLED=0 GOFLAGS=-trimpath GOOS=linux GOARM=7 LC_ALL=C TZ=UTC

dist=$PWD/dist/$version
rm -rf "$dist"
mkdir -p "$dist"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# notes prints the section of CHANGELOG.md about a version.
notes() { awk -v head="## ${1#v}" 'index($0, "## ") == 1 { on = ($0 == head || index($0, head " ") == 1); next } on' CHANGELOG.md; }
notes "$version" >"$dist/RELEASE-NOTES.md"
grep -q '[^[:space:]]' "$dist/RELEASE-NOTES.md" || fail "CHANGELOG.md has no section ## ${version#v}"

# archive DIRECTORY NAME: an archive of what NAME holds in the directory; no time, user, mode or order of this machine goes in.
archive() { tar -C "$1" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u+rw,go+r,go-w --format=gnu -cf - "$2"; }

# emulator ARCH: the program that runs those of another machine's architecture, if there is one.
emulator() {
  local name
  if [ "$1" = "$(go env GOHOSTARCH)" ]; then return; fi
  name=qemu-$(sed 's/amd64/x86_64/; s/arm64/aarch64/' <<<"$1")
  command -v "$name-static" || command -v "$name" || true
}

echo "release: $version, man pages and completions"
env -u GOOS go build -tags man -o "$work/manual" ./cmd/kube-nft
mkdir -p "$work/common/man" "$work/common/completions"
"$work/manual" man --date "$SOURCE_DATE_EPOCH" "$work/common/man"
for shell in bash zsh fish; do "$work/manual" completion "$shell" >"$work/common/completions/kube-nft.$shell"; done
cp LICENSE README.md CHANGELOG.md deploy/systemd/kube-nft.service "$work/common/"
(cd integration/release/sbom && env -u GOOS go build -o "$work/sbom" .)

for arch in $arches; do
  name=kube-nft-$version-linux-$arch
  echo "release: $name"
  cp -r "$work/common" "$work/$name"
  GOARCH=$arch go build -ldflags='-s -w' -o "$work/$name/kube-nft" ./cmd/kube-nft
  if file -b "$work/$name/kube-nft" 2>/dev/null | grep -q 'dynamically linked'; then fail "$name is not static"; fi
  emulator=$(emulator "$arch")
  if [ "$arch" = "$(go env GOHOSTARCH)" ] || [ -n "$emulator" ]; then
    # shellcheck disable=SC2086 # without an emulator there is no word
    $emulator "$work/$name/kube-nft" version | grep -qx "kube-nft $version" || fail "$name does not say that it is $version"
    # shellcheck disable=SC2086
    $emulator "$work/$name/kube-nft" --manifests deploy/examples --hostname-override node-a --dry-run | grep -q '10.96.0.80 . tcp . 80' ||
      fail "the dry run of $name lacks the cluster IP of the example"
    echo "release: $name runs${emulator:+ under ${emulator##*/}}"
  else
    echo "release: $name was not run: this machine has no emulator of $arch (Debian's qemu-user-static has)"
  fi
  "$work/sbom" --program "$work/$name/kube-nft" --version "$version" --date "$SOURCE_DATE_EPOCH" >"$dist/$name.cdx.json"
  archive "$work" "$name" | gzip -9n >"$dist/$name.tar.gz"
done

echo "release: source and chart"
git archive --format=tar --prefix="kube-nft-$version/" HEAD | gzip -9n >"$dist/kube-nft-$version-source.tar.gz"
cp -rL deploy/helm/kube-nft "$work/kube-nft"
sed -i "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: $version/" "$work/kube-nft/Chart.yaml"
archive "$work" kube-nft | gzip -9n >"$dist/kube-nft-${version#v}.tgz"

if [ -z "${NO_IMAGE:-}" ]; then
  echo "release: image"
  platforms=$(for arch in $arches; do echo "linux/$arch"; done | sed 's,/arm$,/arm/v7,' | paste -sd,)
  # shellcheck disable=SC2086 # several words
  env -u GOOS -u GOARM IMAGE="localhost/kube-nft:$version" BUILDER=buildah PLATFORMS="$platforms" deploy/image.sh -q ${IMAGE_ARGUMENTS:-}
  name=kube-nft-$version-image
  buildah manifest push -q --all "localhost/kube-nft:$version" "oci:$work/$name:$version"
  archive "$work/$name" . >"$dist/$name.tar"
fi

(cd "$dist" && sha256sum -- * >SHA256SUMS)
echo "release: everything is in dist/$version"
