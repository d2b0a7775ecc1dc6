#!/bin/bash
# Makes a release of this commit twice, in two clones at two paths under a tag that only they have, and wants them equal,
# byte for byte. Then it uses the files as their users do: it runs the program of the archive and of the image, installs
# the package and removes it, runs the kubectl plug-in that its manifest describes, renders the chart, and builds the
# source, which has no git.
# ARCHES says for which architectures (amd64 arm64); NO_IMAGE leaves the image out, for which it needs buildah and root.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release-test: $*" >&2; exit 1; }

export ARCHES=${ARCHES:-amd64 arm64} HELM=$PWD/bin/helm NFPM=$PWD/bin/nfpm IMAGE=registry.example/kube-nft
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.org GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.org
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${NO_IMAGE:-}" ]; then
  export CONTAINERS_STORAGE_CONF=$work/storage.conf
  printf '[storage]\ndriver = "vfs"\ngraphroot = "%s/graph"\nrunroot = "%s/run"\n' "$work" "$work" >"$CONTAINERS_STORAGE_CONF"
fi
version=v0.0.1-test
for clone in "$work/first" "$work/at/another/path"; do
  git clone -q . "$clone"
  if (cd "$clone" && deploy/release.sh) >"$work/refused" 2>&1; then fail "a commit without a tag makes a release"; fi
  printf '## 0.0.1-test\n\n- What is new.\n' >>"$clone/CHANGELOG.md"
  git -C "$clone" commit -qam 'A version' && git -C "$clone" tag -a -m test "$version"
  (cd "$clone" && deploy/release.sh)
done
grep -q 'has no tag' "$work/refused" || fail "the refusal says: $(cat "$work/refused")"
first=$work/first/dist/$version second=$work/at/another/path/dist/$version
diff "$first/SHA256SUMS" "$second/SHA256SUMS" || fail "two releases of one commit differ"
(cd "$first" && sha256sum --quiet -c SHA256SUMS)
[ "$(cat "$first/RELEASE-NOTES.md")" = $'\n- What is new.' ] || fail "the notes are: $(cat "$first/RELEASE-NOTES.md")"

arch=$(go env GOHOSTARCH)
grep -qw "$arch" <<<"$ARCHES" || fail "ARCHES lacks $arch, which this machine can run"
tar -C "$work" -xzf "$first/kube-nft-$version-linux-$arch.tar.gz"
program=$work/kube-nft-$version-linux-$arch/kube-nft
"$program" version | grep -qx "kube-nft $version" || fail "the program says another version"
tar -C "$work" -xzf "$first/kube-nft-$version-source.tar.gz"
(cd "$work/kube-nft-$version" && make -s build && bin/kube-nft version | grep -qx "kube-nft $version") ||
  fail "the source archive builds another version than $version"

# The chart, and what was rendered from it.
chart=$first/kube-nft-${version#v}.tgz
"$HELM" lint --strict "$chart" >/dev/null 2>&1 || fail "helm lint refuses the chart"
for mode in kubeadm kubeadm-labels base canary shadow; do
  [ "$(grep -c "image: $IMAGE:$version$" "$first/kube-nft-$mode.yaml")" -ge 1 ] || fail "kube-nft-$mode.yaml names another image"
done
"$HELM" template kube-nft "$chart" --namespace kube-system | cmp - "$first/kube-nft-kubeadm.yaml" || fail "the chart renders something else"
grep -q 'values:' "$first/kube-nft-kubeadm-labels.yaml" || fail "kube-nft-kubeadm-labels.yaml asks for no label"

# The kubectl plug-in: what the manifest's file of this architecture is, under the name that krew gives it.
sum=$(awk -v file="kube-nft-$version-linux-$arch.tar.gz" '$2 == file {print $1}' "$first/SHA256SUMS")
grep -q "sha256: $sum$" "$first/kube-nft-krew.yaml" || fail "the plug-in's manifest has another checksum"
ln -s "$program" "$work/kubectl-kube_nft"
"$work/kubectl-kube_nft" status --help | grep -q 'kubectl kube-nft status' || fail "the program is no plug-in"

# The package: its program is that of the archive, and nothing stays after its removal.
mkdir -p "$work/root/var/lib/dpkg"
touch "$work/root/var/lib/dpkg/status"
package() { dpkg --root="$work/root" --log="$work/dpkg.log" "$@" >/dev/null; }
package --install "$first"/kube-nft_*_"$(sed 's/^arm$/armhf/; s/ppc64le/ppc64el/' <<<"$arch")".deb
cmp "$program" "$work/root/usr/sbin/kube-nft" || fail "the package holds another program"
grep -q '^ExecStart=/usr/sbin/kube-nft ' "$work/root/usr/lib/systemd/system/kube-nft.service" || fail "the package's unit starts another program"
chroot "$work/root" /usr/bin/kubectl-kube_nft status --help | grep -q 'kubectl kube-nft status' || fail "the package's plug-in does not run"
package --remove kube-nft
[ -z "$(find "$work/root" -name '*kube*nft*' -not -path '*/dpkg/*')" ] || fail "the package leaves $(find "$work/root" -name '*kube*nft*')"

# The image: one program for each architecture, which is that of the archive.
if [ -z "${NO_IMAGE:-}" ]; then
  mkdir "$work/image"
  tar -C "$work/image" -xf "$first/kube-nft-$version-image.tar"
  grep -q "\"io.containerd.image.name\":\"$IMAGE:$version\"" "$work/image/index.json" || fail "the archive of the image does not have its name"
  held=$(for blob in "$work"/image/blobs/sha256/*; do { tar -xzOf "$blob" kube-nft 2>/dev/null || true; } | sha256sum; done)
  for each in $ARCHES; do
    sum=$(tar -xzOf "$first/kube-nft-$version-linux-$each.tar.gz" "kube-nft-$version-linux-$each/kube-nft" | sha256sum)
    grep -q "$sum" <<<"$held" || fail "the image for $each holds another program than the archive"
  done
fi
echo "release-test: two releases of one commit are equal; $(wc -l <"$first/SHA256SUMS") files"
