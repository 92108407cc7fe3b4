"""Audits what tests compile: of no variable may the update be known to be wrong. What is not shown passes."""

import functools

from epl import compiler
from epl.audit.audit import WRONG, audit
from epl.audit.audited_job import audit_table, by_design
from epl.rules import effects

# Nodes of all workers together, beyond which a program is not looked at: tests with such are about size.
MOST_NODES = 20000


def audited(compile_program):
    """`compiler.compile` that audits what it has made, as soon as it has made the graphs of all workers of a job.

    A job whose workers each compile their own part, in processes of their own, is audited if it has one worker.
    """
    job = {"of": None, "graphs": {}}

    @functools.wraps(compile_program)
    def compile_and_audit(program, config, cluster, *args, **kwargs):
        compiled = compile_program(program, config, cluster, *args, **kwargs)
        key = (program, config.to_dict(), cluster.worker_num, cluster.gpu_num_per_worker)
        if job["of"] is None or job["of"][0] is not program or job["of"][1:] != key[1:]:
            job.update({"of": key, "graphs": {}})
        job["graphs"][cluster.worker_index] = compiled.graph
        if len(job["graphs"]) == cluster.worker_num:
            graphs = job["graphs"]
            job.update({"of": None, "graphs": {}})
            check(program, graphs, config)
        return compiled

    return compile_and_audit


def check(program, graphs, config):
    """AssertionError where an update is known not to be one device's."""
    writes = program.apply_calls and any(graph.find(effects.is_write) for graph in graphs.values())
    if not writes or sum(len(graph.nodes) for graph in graphs.values()) > MOST_NODES:
        return
    found = audit(program, graphs, by_design(config))
    assert not any(finding.verdict == WRONG for finding in found), audit_table(found)


def audit_compiles():
    """From now on every program that this process compiles is audited."""
    if not hasattr(compiler.compile, "__wrapped__"):
        compiler.compile = audited(compiler.compile)
