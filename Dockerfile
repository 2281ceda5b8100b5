# The service of cudal1-env; docs/service.md says which flags its sandbox needs.
#
#   docker build --tag cudal1 .
#   docker run --gpus all --publish 127.0.0.1:8011:8011 --volume "$PWD/tokens:/run/tokens:ro" \
#     --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined \
#     --cap-add SYS_ADMIN cudal1 --host 0.0.0.0 --token-file /run/tokens
FROM nvidia/cuda:13.0.2-devel-ubuntu24.04

RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ ninja-build python3 python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Programs read Python's folders as user 65534, so they lie where every user may read.
RUN python3 -m venv /opt/cudal1
ENV PATH=/opt/cudal1/bin:$PATH PYTHONUNBUFFERED=1

COPY requirements.lock /src/requirements.lock
COPY packages /src/packages
COPY tests/exploits /src/tests/exploits
# Without its hashes: pip would want some for the two folders, too.
RUN sed -e '/--hash/d' -e 's/ \\$//' /src/requirements.lock > /src/constraints.txt \
    && pip install --no-cache-dir --constraint /src/constraints.txt \
    /src/packages/cudal1-data "/src/packages/cudal1-env[serve]"

EXPOSE 8011
ENTRYPOINT ["cudal1-env", "serve"]
