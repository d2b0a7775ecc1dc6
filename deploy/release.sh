#!/bin/bash
# Makes everything of a version, in dist/VERSION; docs/release.md lists the files. The image and the packages hold the
# programs of the archives. Two runs of one commit are equal, byte for byte.
# The version is the tag of the commit; a commit without one, or a tree with changes, is refused.
# Environment:
#   ARCHES   architectures (amd64 arm64 arm ppc64le s390x riscv64)
#   IMAGE    where the image will be, without a tag: the chart and the manifests name it (ghcr.io/kube-nft/kube-nft)
#   DOWNLOADS  where the files will be, for the manifest of the kubectl plug-in (the releases of the repository on GitHub)
#   NO_IMAGE if not empty, no image is made, for which buildah is needed
#   HELM, NFPM  the programs (those that make release puts into bin)
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release: $*" >&2; exit 1; }

arches=${ARCHES:-amd64 arm64 arm ppc64le s390x riscv64}
image=${IMAGE:-ghcr.io/kube-nft/kube-nft} helm=${HELM:-$PWD/bin/helm} nfpm=${NFPM:-$PWD/bin/nfpm}
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

# platform ARCH: how registries call it.
platform() { echo "linux/$1" | sed 's,/arm$,/arm/v7,'; }

echo "release: $version, man pages and completions"
env -u GOOS go build -tags man -o "$work/manual" ./cmd/kube-nft
mkdir -p "$work/common/man" "$work/common/completions"
"$work/manual" man --date "$SOURCE_DATE_EPOCH" "$work/common/man"
for shell in bash zsh fish; do "$work/manual" completion "$shell" >"$work/common/completions/kube-nft.$shell"; done
cp LICENSE README.md CHANGELOG.md deploy/systemd/kube-nft.service "$work/common/"
(cd integration/release/sbom && env -u GOOS go build -o "$work/sbom" .)

# The unit of the archives, as make install has it, is for /usr/local; packages have the program in /usr.
package() {
  local name=$1 arch=$2 kind
  mkdir "$work/package"
  cp -r "$work/$name/." "$work/package"
  sed -i 's,/usr/local/sbin,/usr/sbin,' "$work/package/kube-nft.service"
  find "$work/package" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +
  for kind in deb rpm; do
    env -u GOOS ARCH="${arch/%arm/arm7}" VERSION="$version" DIR="$work/package" \
      "$nfpm" package --config deploy/nfpm.yaml --packager "$kind" --target "$dist/" >/dev/null
  done
  rm -r "$work/package"
}

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
  package "$name" "$arch"
  mkdir -p "$work/image/$(platform "$arch")/out"
  ln "$work/$name/kube-nft" "$work/image/$(platform "$arch")/out/kube-nft"
done

echo "release: source and chart"
git archive --format=tar --prefix="kube-nft-$version/" HEAD | gzip -9n >"$dist/kube-nft-$version-source.tar.gz"
cp -rL deploy/helm/kube-nft "$work/kube-nft"
sed -i "s/^version: .*/version: ${version#v}/; s/^appVersion: .*/appVersion: $version/" "$work/kube-nft/Chart.yaml"
sed -i "s,repository: kube-nft .*,repository: $image," "$work/kube-nft/values.yaml"
archive "$work" kube-nft | gzip -9n >"$dist/kube-nft-${version#v}.tgz"

echo "release: manifests, alerts, dashboard, kubectl plug-in"
# manifest NAME ARGUMENT...: the chart's objects as a file for kubectl apply.
manifest() { "$helm" template kube-nft "$dist/kube-nft-${version#v}.tgz" --namespace kube-system "${@:2}" >"$dist/kube-nft-$1.yaml"; }
manifest kubeadm --set mode=kubeadm
sed -n 's/^ \{6\}//; /^affinity:/,$p' deploy/overlays/kubeadm-labels/daemonset.yaml >"$work/labels.yaml"
manifest kubeadm-labels --set mode=kubeadm --values "$work/labels.yaml"
manifest base --set mode=base
manifest canary --set mode=canary
manifest shadow --set mode=shadow
cp deploy/alerts.yaml "$dist/kube-nft-alerts.yaml"
cp deploy/dashboard.json "$dist/kube-nft-dashboard.json"
archive docs schema | gzip -9n >"$dist/kube-nft-$version-schema.tar.gz"
downloads=${DOWNLOADS:-https://github.com/kube-nft/kube-nft/releases/download}/$version
{
  cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata: {name: kube-nft}
spec:
  version: $version
  homepage: https://github.com/kube-nft/kube-nft
  shortDescription: Look at kube-nft on all nodes of a cluster
  description: |
    kube-nft is a Kubernetes Service proxy on nftables. "check" says whether
    kube-proxy may stop, "status" has a line for each node.
  platforms:
END
  for arch in $arches; do
    name=kube-nft-$version-linux-$arch
    cat <<END
  - selector: {matchLabels: {os: linux, arch: $arch}}
    uri: $downloads/$name.tar.gz
    sha256: $(sha256sum <"$dist/$name.tar.gz" | cut -d' ' -f1)
    bin: kube-nft
    files: [{from: $name/kube-nft, to: .}, {from: $name/LICENSE, to: .}]
END
  done
} >"$dist/kube-nft-krew.yaml"

if [ -z "${NO_IMAGE:-}" ]; then
  echo "release: image"
  platforms=$(for arch in $arches; do platform "$arch"; done | paste -sd,)
  env -u GOOS -u GOARM IMAGE="localhost/kube-nft:$version" BUILDER=buildah PLATFORMS="$platforms" PROGRAMS="$work/image" \
    deploy/image.sh -q --identity-label=false
  name=kube-nft-$version-image
  buildah manifest push -q --all "localhost/kube-nft:$version" "oci:$work/$name:$version"
  # containerd and kind load the archive under this name, by which the manifests know the image.
  sed -i "s|\"org.opencontainers.image.ref.name\":|\"io.containerd.image.name\":\"$image:$version\",&|" "$work/$name/index.json"
  archive "$work/$name" . >"$dist/$name.tar"
fi

(cd "$dist" && sha256sum -- * >SHA256SUMS)
echo "release: everything is in dist/$version"
