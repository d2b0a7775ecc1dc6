#!/bin/bash
# Builds the container image with the first of docker, podman and buildah that works here.
# Environment:
#   IMAGE        name and tag of the image      (kube-nft:VERSION, by git describe)
#   BUILDER      docker, podman or buildah      (the first that works)
#   BUILD_IMAGE  image with Go                  (see Dockerfile)
#   FINAL_IMAGE  image that the program goes to (scratch)
#   PLATFORMS    such as linux/amd64,linux/arm64: a manifest list of an image for each, cross-compiled
#   PROGRAMS     folder of programs PLATFORM/out/kube-nft that the images of PLATFORMS get; nothing is compiled then, and
#                BUILD_IMAGE is not needed. Not with docker
# Arguments go to the builder's build command. Two builds of one commit are equal: no time
# but the commit's goes in.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(git describe --tags --always --dirty 2>/dev/null || echo devel)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 0)
export SOURCE_DATE_EPOCH
image=${IMAGE:-kube-nft:$version}

works() {
  case $1 in
    docker) docker info ;;
    podman | buildah) "$1" info ;;
  esac >/dev/null 2>&1
}

builder=${BUILDER:-}
for candidate in docker podman buildah; do
  [ -n "$builder" ] && break
  if works "$candidate"; then builder=$candidate; fi
done
if [ -z "$builder" ]; then
  echo "image.sh: none of docker, podman and buildah works here; install one, such as Debian's package buildah" >&2
  exit 1
fi

arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$revision")
[ -z "${BUILD_IMAGE:-}" ] || arguments+=(--build-arg "BUILD_IMAGE=$BUILD_IMAGE")
[ -z "${FINAL_IMAGE:-}" ] || arguments+=(--build-arg "FINAL_IMAGE=$FINAL_IMAGE")
case $builder in
  docker)
    arguments+=(-t "$image" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")
    if [ -n "${PLATFORMS:-}" ]; then
      docker buildx build --platform "$PLATFORMS" "${arguments[@]}" "$@" .
    else
      docker build "${arguments[@]}" "$@" .
    fi ;;
  podman | buildah)
    arguments+=(--timestamp "$SOURCE_DATE_EPOCH")
    if [ -n "${PLATFORMS:-}" ]; then
      "$builder" manifest rm "$image" >/dev/null 2>&1 || true
      # Without a word the builder takes the image's platform for its own, and wants Go for that one.
      host=$("$builder" info --format "$([ "$builder" = podman ] && echo '{{.Host.Arch}}' || echo '{{.host.arch}}')")
      # One after the other: the list has them in the order in which they end.
      for platform in ${PLATFORMS//,/ }; do
        programs=() # in place of the stage that compiles
        [ -z "${PROGRAMS:-}" ] || programs=(--build-context "build=$PROGRAMS/$platform")
        "$builder" build "${programs[@]}" --platform "$platform" --manifest "$image" --build-arg "BUILDPLATFORM=linux/$host" "${arguments[@]}" "$@" .
      done
    else
      "$builder" build -t "$image" "${arguments[@]}" "$@" .
    fi ;;
esac
echo "built $image${PLATFORMS:+ for $PLATFORMS} with $builder"
