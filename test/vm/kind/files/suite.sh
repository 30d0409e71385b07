# Runs in the guest, in the repository: the end-to-end suite in a kind cluster.
set -euo pipefail
# The image's archive is for docker load as well as for kind, so it is tried here.
loaded=$(docker load -i "$E2E_ARCHIVE" | sed -n 's/^Loaded image: //p')
docker run --rm --network none "$loaded" version >&2
docker rmi "$loaded" > /dev/null
exec test/e2e/kind/run "$@"
