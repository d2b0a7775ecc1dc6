# kube-nft in an image that holds one static program and nothing else: no shell, no nft, no
# iptables. deploy/image.sh builds it with docker, podman or buildah.
#
# BUILD_IMAGE needs Go alone, in /usr/local/go as in the official images. FINAL_IMAGE may be
# an image with CA certificates, such as gcr.io/distroless/static, for a kubeconfig that
# relies on them; a service account brings its own.
ARG BUILD_IMAGE=docker.io/library/golang:1.26
ARG FINAL_IMAGE=scratch

# The build runs on the builder's own platform, and Go compiles for the image's: nothing is emulated.
FROM --platform=${BUILDPLATFORM} ${BUILD_IMAGE} AS build
ARG TARGETOS=linux
ARG TARGETARCH
WORKDIR /src
COPY . .
ENV CGO_ENABLED=0 GOFLAGS=-trimpath GOOS=${TARGETOS} GOARCH=${TARGETARCH} GOARM=7
RUN ["/usr/local/go/bin/go", "build", "-ldflags=-s -w", "-o", "/out/kube-nft", "./cmd/kube-nft"]

FROM ${FINAL_IMAGE}
ARG VERSION=devel
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kube-nft" \
      org.opencontainers.image.description="A Kubernetes Service proxy on nftables" \
      org.opencontainers.image.source="https://github.com/kube-nft/kube-nft" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/kube-nft /kube-nft
# For kubectl exec POD -- kube-nft.
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/
# The user stays root: a container's capabilities reach another user only as ambient ones,
# which Kubernetes cannot give. The DaemonSet takes all of them away but CAP_NET_ADMIN.
ENTRYPOINT ["/kube-nft"]
