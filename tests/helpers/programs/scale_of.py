"""What a session of EPL knows of the loss scale."""

from epl.plan.facts.names import clone_name
from epl.session.hooks import driver_of

NAMES = ("scale", "good_steps", "bad_steps")


def read(sess, number=0):
    """(loss scale, good steps, bad steps) of a session, of the scale of that number; they are the same in all copies of
    the worker."""
    driver = driver_of(sess)
    nodes = driver.graph.nodes
    names = ["epl_loss_scale%s/%s/read" % ("_%d" % number if number else "", name) for name in NAMES]
    if any(name not in nodes for name in names):
        return None
    copies = [i.index for i in driver.rewritten.plan.mesh.instances]
    tensors = [tuple(clone_name(name, i) + ":0" for name in names) for i in copies]
    known = [tuple(v.item() for v in driver.read(each)) for each in tensors]
    assert len(set(known)) == 1, known
    return known[0]
