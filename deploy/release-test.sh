#!/bin/bash
# Makes a release of this commit twice, in two clones at two paths under a tag that only they have, and wants them equal,
# byte for byte. Then it builds the source archive, which has no git, and asks both for their version.
# ARCHES says for which architectures (amd64 arm64).
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release-test: $*" >&2; exit 1; }

export ARCHES=${ARCHES:-amd64 arm64} NO_IMAGE=1
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@example.org GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@example.org
export GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
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
if [ -f "$first/kube-nft-$version-linux-$arch.tar.gz" ]; then
  tar -C "$work" -xzf "$first/kube-nft-$version-linux-$arch.tar.gz"
  "$work/kube-nft-$version-linux-$arch/kube-nft" version | grep -qx "kube-nft $version" || fail "the program says another version"
fi
tar -C "$work" -xzf "$first/kube-nft-$version-source.tar.gz"
(cd "$work/kube-nft-$version" && make -s build && bin/kube-nft version | grep -qx "kube-nft $version") ||
  fail "the source archive builds another version than $version"
if command -v bin/helm >/dev/null; then bin/helm lint --strict "$first/kube-nft-${version#v}.tgz" >/dev/null 2>&1 || fail "helm lint refuses the chart"; fi
echo "release-test: two releases of one commit are equal; $(wc -l <"$first/SHA256SUMS") files"
