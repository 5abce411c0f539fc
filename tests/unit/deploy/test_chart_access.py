"""Access in the chart: Redis by TLS, roles, network policies, secrets."""

from specpilot.policy import redis_url
from tests.support.chart import FULL, OWN_REDIS, POOL, containers, named, render


def test_a_redis_of_ones_own_is_checked_by_its_own_authority() -> None:
    for item in render({**FULL, "pools": [POOL]}):
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            assert {"name": "redis-ca", "secret": {"secretName": "redis-ca"}} in pod["volumes"]


def test_the_releases_own_redis_speaks_tls_alone_and_everybody_asks_it_by_tls() -> None:
    manifests = render(OWN_REDIS)
    redis = named(manifests, "StatefulSet", "rel-redis")["spec"]["template"]["spec"]["containers"][0]
    assert redis["args"][redis["args"].index("--port") + 1] == "0"
    assert redis["args"][redis["args"].index("--tls-port") + 1] == str(redis["ports"][0]["containerPort"])
    for item in manifests:
        if item["kind"] != "Deployment":
            continue
        pod = item["spec"]["template"]["spec"]
        [container] = pod["containers"]
        [url] = [entry["value"] for entry in container["env"] if entry["name"] == "REDIS_URL"]
        assert url.startswith("rediss://")
        redis_url.parse(url.replace("$(REDIS_PASSWORD)", "p"))
        [volume] = [volume for volume in pod["volumes"] if volume["name"] == "redis-ca"]
        assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]  # the key stays with Redis
        [mount] = [mount for mount in container["volumeMounts"] if mount["name"] == "redis-ca"]
        assert f"ssl_ca_certs={mount['mountPath']}/ca.crt" in url


def test_engines_are_asked_by_gateways_controllers_and_monitoring_alone() -> None:
    manifests = render({"pools": [POOL]})
    policy = next(
        item for item in manifests if item["kind"] == "NetworkPolicy" and item["metadata"]["name"] == "rel-engine"
    )
    engine = next(item for item in manifests if item["metadata"]["name"] == "rel-engine-h200")
    labels = engine["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    [rule] = policy["spec"]["ingress"]
    components = {
        source["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for source in rule["from"]
        if "podSelector" in source
    }
    assert components == {"gateway", "controller"}
    assert rule["ports"] == [{"port": 8000, "protocol": "TCP"}]


def test_secrets_come_by_reference_alone() -> None:
    for container in containers(render({"pools": [POOL]})):
        for item in container.get("env", []):
            if "TOKEN" in item["name"] or "PASSWORD" in item["name"]:
                assert "secretKeyRef" in item["valueFrom"]
            elif item["name"] == "REDIS_URL":
                redis_url.parse(item["value"].replace("$(REDIS_PASSWORD)", "p"))
