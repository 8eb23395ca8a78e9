#!/usr/bin/env python3
"""The files of deploy/k8s against Kubernetes' schemas, without a cluster.

    manifests.py deploy/k8s

Every object of every file must be of its schema, without a field too many, in the oldest version of
Kubernetes that has what they use and in the newest known. Where `kustomize` or `kubectl` is there,
what it makes of the folder is checked as well; without them, that every file is listed.

What no schema sees: that selectors, ports and names fit each other, and that a pod has time for all
that happens at its end. In the end faults are planted one by one; each must be found.
"""

import argparse
import copy
import pathlib
import shutil
import subprocess
import sys

import kubernetes_validate
import yaml

OLDEST = "1.30"  # the first with preStop: sleep switched on
SPARE = 5  # seconds that a pod has after preStop and drain


def read(folder):
    """Objects by their kind, and the kustomization."""
    objects = {}
    for path in sorted(folder.glob("*.yaml")):
        with open(path, encoding="utf-8") as file:
            for one in yaml.safe_load_all(file):
                if one["kind"] in objects:
                    raise SystemExit(f"{path}: expected one {one['kind']}, found another")
                objects[one["kind"]] = one
    return objects, objects.pop("Kustomization")


def schema_faults(objects):
    for kind, one in objects.items():
        for version in (OLDEST, kubernetes_validate.latest_version()):
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(str(part) for part in error.path)
                yield f"{kind}: Kubernetes {version}: {where}: {error.message}"
            except kubernetes_validate.SchemaNotFoundError:
                yield f"{kind}: Kubernetes {version} has no {one['apiVersion']} of it"


def fit_faults(objects):
    """What does not fit another part."""
    deployment = objects["Deployment"]
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    container = template["spec"]["containers"][0]
    for kind, selector in {
        "Deployment": deployment["spec"]["selector"]["matchLabels"],
        "Service": objects["Service"]["spec"]["selector"],
        "PodDisruptionBudget": objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    }.items():
        if not selector or not selector.items() <= labels:
            yield f"{kind}: selects {selector}, pods have {dict(labels)}"
    target = objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    if (target["kind"], target["name"]) != ("Deployment", deployment["metadata"]["name"]):
        yield f"HorizontalPodAutoscaler: scales {target}"
    if "replicas" in deployment["spec"]:
        yield "Deployment: sets replicas, which the autoscaler sets"
    names = {port["name"] for port in container["ports"]}
    numbers = {str(port["containerPort"]) for port in container["ports"]}
    probes = ("startupProbe", "readinessProbe", "livenessProbe")
    asked = {probe: container[probe]["httpGet"]["port"] for probe in probes}
    asked["Service"] = objects["Service"]["spec"]["ports"][0]["targetPort"]
    for what, port in asked.items():
        if port not in names:
            yield f"{what}: expected a port of {sorted(names)}, found {port}"
    for what, port in {
        "--port": flag(container, "port"),
        "prometheus.io/port": template["metadata"]["annotations"]["prometheus.io/port"],
    }.items():
        if port not in numbers:
            yield f"{what}: expected a port of {sorted(numbers)}, found {port}"
    grace = template["spec"]["terminationGracePeriodSeconds"]
    needed = container["lifecycle"]["preStop"]["sleep"]["seconds"] + int(flag(container, "drain"))
    if grace < needed + SPARE:
        yield f"terminationGracePeriodSeconds: expected {needed + SPARE} or more, found {grace}"
    if container["livenessProbe"]["httpGet"]["path"] == "/health":
        yield "livenessProbe: /health fails while a server drains, which would kill it"


def flag(container, name):
    """The value of an argument of the server."""
    values = [arg.split("=", 1)[1] for arg in container["args"] if arg.startswith(f"--{name}=")]
    if len(values) != 1:
        raise SystemExit(f"args: expected --{name}=VALUE once, found {container['args']}")
    return values[0]


def rendered(folder):
    """What kustomize makes of the folder, by kind; `None` where it is not installed."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            text = subprocess.run([*command, folder], check=True, stdout=subprocess.PIPE).stdout
            return {one["kind"]: one for one in yaml.safe_load_all(text)}
    return None


def faults(objects):
    return [*schema_faults(objects), *fit_faults(objects)]


def container_of(objects):
    return objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def put(place, name, value):
    place[name] = value


# what could be written by mistake
PLANTED = {
    "a misspelt field": lambda all: put(container_of(all)["livenessProbe"], "periodSecond", 3),
    "a number as text": lambda all: put(container_of(all)["ports"][0], "containerPort", "8080"),
    "an old version": lambda all: put(all["PodDisruptionBudget"], "apiVersion", "policy/v1beta1"),
    "a field of another kind": lambda all: put(all["Service"]["spec"], "replicas", 2),
    "a port that has no name": lambda all: put(
        all["Service"]["spec"]["ports"][0], "targetPort", "web"),
    "another selector": lambda all: put(all["PodDisruptionBudget"]["spec"]["selector"],
                                        "matchLabels", {"app": "octavo"}),
    "another target": lambda all: put(
        all["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"], "name", "octavos"),
    "too little time": lambda all: put(
        all["Deployment"]["spec"]["template"]["spec"], "terminationGracePeriodSeconds", 30),
    "a probe that drains fail": lambda all: put(
        container_of(all)["livenessProbe"]["httpGet"], "path", "/health"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    objects, kustomization = read(folder)
    found = faults(objects)
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    if set(kustomization["resources"]) != files:
        listed = kustomization["resources"]
        found.append(f"kustomization: lists {listed}, there are {sorted(files)}")
    made = rendered(folder)
    if made is not None:
        found += [f"rendered: {fault}" for fault in faults(made)]
        if made.keys() != objects.keys():
            found.append(f"rendered: expected {sorted(objects)}, found {sorted(made)}")
    for what, plant in PLANTED.items():
        broken = copy.deepcopy(objects)
        plant(broken)
        if not faults(broken):
            found.append(f"planted and not seen: {what}")
    for fault in found:
        print(f"FAULT {fault}")
    how = "rendered too" if made is not None else "not rendered: neither kustomize nor kubectl"
    print(f"{len(objects)} objects against Kubernetes {OLDEST} and "
          f"{kubernetes_validate.latest_version()}, {how}; {len(PLANTED)} faults planted; "
          f"{len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
