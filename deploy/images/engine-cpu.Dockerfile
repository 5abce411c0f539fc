# vLLM for the CPU with the adapter and the demo model, for the profile `cpu` of the compose file.
FROM python:3.11-slim-bookworm AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# The image has no compiler: this is a build stage.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# PyPI's torch is the CUDA build; the one for CPUs has an index of its own.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu PIP_NO_CACHE_DIR=1
RUN VENV=/opt/specpilot/venv PYTHON=python3 bash deploy/setup.sh \
    && /opt/specpilot/venv/bin/python -m pip install --quiet --no-deps --force-reinstall . \
    && cp -r deploy/demo_model /opt/specpilot/demo_model \
    && /opt/specpilot/venv/bin/python -m pip uninstall --yes --quiet pip

FROM python:3.11-slim-bookworm
# VLLM compiles small kernels when it starts.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc g++ libnuma1 libtcmalloc-minimal4 \
    && rm -rf /var/lib/apt/lists/* && install -d -o 65532 -g 65532 /home/specpilot
COPY --from=build /opt/specpilot /opt/specpilot
ENV PATH=/opt/specpilot/venv/bin:$PATH HOME=/home/specpilot PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /home/specpilot
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m \
    CMD ["python3", "-P", "-c", "import urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["specpilot", "engine"]
