"""Checks the manifests of examples/kubernetes against Kubernetes' own schemas, in the environment of `make site`.

Kinds of operators (TFJob, MPIJob) are none of Kubernetes'; of them the pods are checked.
"""

import os
import sys

import kubernetes_validate
import yaml

FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples", "kubernetes")
VERSION = "1.30"


def parts(manifest):
    """What of a manifest has a schema of Kubernetes: itself, or the pods of an operator's kind."""
    if "kubeflow" not in manifest["apiVersion"]:
        return [manifest]
    (replicas,) = [value for key, value in manifest["spec"].items() if key.endswith("ReplicaSpecs")]
    pods = [replica["template"] for replica in replicas.values()]
    return [dict(pod, apiVersion="v1", kind="Pod", metadata={"name": "pod"}) for pod in pods]


def main():
    wrong = 0
    for name in sorted(os.listdir(FOLDER)):
        if not name.endswith(".yaml"):
            continue
        with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
            manifests = list(yaml.safe_load_all(file))
        for part in [part for manifest in manifests for part in parts(manifest)]:
            try:
                kubernetes_validate.validate(part, VERSION, strict=True)
            except kubernetes_validate.ValidationError as error:
                print("%s: %s: %s" % (name, ".".join(map(str, error.path)), error.message))
                wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
